"""URLs as fsspec writes them: `https://host/a.jpg`, `s3://bucket/a.jpg`, or a chain, `zip://a.jpg::s3://bucket/b.zip`.

The links of a chain stand from the file outwards: the last one says where the bytes come from.
"""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://|[a-z0-9]+::[A-Za-z][A-Za-z0-9+.\-]*(://|::)")
_INSIDE_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://[^\s'\"<>)]+")
_USER = re.compile(r"^(?!abfss?:|az:|adl:)([^/]+://)[^/]*@")  # Azure's `abfs://container@account` names no person
_HTTP_QUERY = re.compile(r"^(https?://[^?#]*)[?#].*$", re.DOTALL)
_FAMILIES = {"http": "https", "local": "file", "gcs": "gs", "s3a": "s3", "abfss": "abfs"}


def is_url(text: str) -> bool:
    """Whether a text is a URL, chained or not, rather than a path or a name."""
    return _URL.match(text) is not None


def redacted(url: str) -> str:
    """A URL as people may see it: without user, password and query, where secrets are; a path as it is."""
    if not is_url(url):
        return url
    return "::".join(_USER.sub(r"\1", link).partition("?")[0] for link in url.split("::"))


def redacted_text(text: str) -> str:
    """A text whose URLs are as `redacted` gives them."""
    return _INSIDE_TEXT.sub(lambda match: redacted(match[0]), text)


def protocols(url: str) -> list[str]:
    """The protocol of each link, told apart as fsspec does; of two that go to one place, such as http, the usual."""
    return [_FAMILIES.get(name, name) for name in map(_protocol, url.split("::"))]


def file_name(url: str) -> str:
    """The path of the file, without a query, by which its format is told; a path as it is."""
    if not is_url(url):
        return url
    links = url.split("::")
    return _HTTP_QUERY.sub(r"\1", links[_place(links)]).partition("://")[2]


def sibling_url(url: str, path: str) -> str:
    """The URL of what is called `path` in the folder of the file `url`, which lends no query."""
    links = url.split("::")
    place = _place(links)
    link = _HTTP_QUERY.sub(r"\1", links[place])
    links[place] = link[: max(link.rfind("/"), link.find("://") + 2) + 1] + path
    return "::".join(links)


def _place(links: list[str]) -> int:
    """Which link names the file: the first that has a path, since a cache takes that of the link after it."""
    return next((row for row, link in enumerate(links) if link.partition("://")[2]), len(links) - 1)


def _protocol(link: str) -> str:
    name, mark, _ = link.partition("://")
    if mark:
        return name if len(name) > 1 else "file"
    if link.startswith("data:"):
        return "data"
    return link if re.fullmatch("[a-z0-9]+", link) else "file"
