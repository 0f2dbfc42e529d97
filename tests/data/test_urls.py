import pytest

from nearkin.data.stores import file_name, is_url, protocols, redacted, redacted_text, sibling_url


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("https://host/a.jpg", True),
        ("s3://bucket/a.jpg", True),
        ("memory://a.jpg", True),
        ("zip://a.jpg::https://host/b.zip", True),
        ("simplecache::s3://bucket/a.jpg", True),
        ("simplecache::zip::s3://bucket/a.zip", True),
        ("photos/a.jpg", False),
        ("C:\\photos\\a.jpg", False),
        ("C://photos/a.jpg", False),
        ("a::b.jpg", False),
        ("cub200", False),
        ("odd name: with colons.jpg", False),
    ],
)
def test_urls_are_told_from_paths(text, answer):
    assert is_url(text) is answer


@pytest.mark.parametrize(
    ("url", "links"),
    [
        ("http://host/a", ["https"]),
        ("https://host/a", ["https"]),
        ("local://a", ["file"]),
        ("zip://a.jpg::gcs://b/c.zip", ["zip", "gs"]),
        ("zip://a.jpg::/etc/b.zip", ["zip", "file"]),
        ("https://host/a::file:///etc/passwd", ["https", "file"]),
        ("simplecache::s3://b/c", ["simplecache", "s3"]),
    ],
)
def test_each_link_has_its_protocol_as_fsspec_reads_it(url, links):
    from fsspec.core import _un_chain

    same = {"http": "https", "local": "file", "gcs": "gs"}
    assert protocols(url) == links
    try:
        chain = [same.get(protocol, protocol) for _, protocol, _ in _un_chain(url, {})]
    except ImportError:
        return  # the package of that filesystem is not installed here
    assert chain == links


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("https://ann:secret@host/a.jpg", "https://host/a.jpg"),
        ("https://ann:se@cret@host/a.jpg", "https://host/a.jpg"),
        ("https://host/a.jpg?X-Signature=secret", "https://host/a.jpg"),
        ("zip://a.jpg::https://ann:secret@host/b.zip?secret", "zip://a.jpg::https://host/b.zip"),
        ("s3://bucket/owl@2x.jpg", "s3://bucket/owl@2x.jpg"),
        ("abfs://photos@account/a.jpg", "abfs://photos@account/a.jpg"),
        ("what?.jpg", "what?.jpg"),
    ],
)
def test_people_see_no_secrets(url, seen):
    assert redacted(url) == seen
    assert redacted_text(f"404, url='{url}' refused") == f"404, url='{seen}' refused"


@pytest.mark.parametrize(
    ("manifest", "item"),
    [
        ("https://host/data/manifest.csv", "https://host/data/x/1.jpg"),
        ("https://host/manifest.csv?token=a/b", "https://host/x/1.jpg"),
        ("memory://manifest.csv", "memory://x/1.jpg"),
        ("zip://in/manifest.csv::https://host/b.zip", "zip://in/x/1.jpg::https://host/b.zip"),
        ("simplecache::s3://bucket/a/manifest.csv", "simplecache::s3://bucket/a/x/1.jpg"),
    ],
)
def test_relative_paths_are_beside_the_manifest(manifest, item):
    assert sibling_url(manifest, "x/1.jpg") == item


def test_the_format_is_told_by_the_file():
    assert file_name("https://host/a.wav?b.jpg") == "host/a.wav"
    assert file_name("zip://a.wav::https://host/b.zip") == "a.wav"
    assert file_name("simplecache::s3://bucket/no#1.wav") == "bucket/no#1.wav"
    assert file_name("odd?.wav") == "odd?.wav"
