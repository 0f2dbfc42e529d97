"""Every code block of the README and the guides is run, or is on a list that says why not."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from contextlib import closing
from dataclasses import replace

import fsspec
import pytest

from .pages import LANGUAGES, RUN, Block, blocks_of, pages, read_blocks
from .prompt import PORT, Prompt, parse
from .running import Page, frame, inside, is_output
from .scenes import SCENES, Scene
from .smaller import shrink
from .unrun import NOT_RUN, UNREACHABLE
from .world import CATALOGUE, Bucket, write_bucket, write_photos, write_prices, write_vectors


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Photographs of birds, in one folder for each."""
    root = tmp_path_factory.mktemp("photos")
    write_photos(root)
    return root


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A home directory, whose cache of features the pages share."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Runs that pages take for granted, each trained once."""
    return tmp_path_factory.mktemp("trained")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages() if blocks_of(page)])
def test_a_page_runs_from_top_to_bottom(page, photos, home, trained, drawn_once, tmp_path, monkeypatch):
    scene = SCENES.get(page, Scene())
    shrink(monkeypatch)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("COLUMNS", "200")  # tables as wide as they like
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "data"))
    lay_out(tmp_path, photos, scene)
    monkeypatch.setattr(Bucket, "root", str(tmp_path / "bucket"))
    fsspec.register_implementation("s3", Bucket, clobber=True)
    for name, value in scene.environment.items():
        monkeypatch.setenv(name, value)
    with inside(tmp_path / "here"), closing(Prompt(tuple(UNREACHABLE), trained)) as prompt:
        shown = Page(prompt, {"__name__": "__main__"}, scene.replaced)
        shown.prepare(scene.before)
        exec(scene.names, shown.names)
        before = None
        for block in blocks_of(page):
            shown.prepare("\n".join(do for start, do in scene.between.items() if block.text.startswith(start)))
            if (page, block.opening) not in NOT_RUN and (block.language != "text" or is_output(block, before)):
                shown.run(block)
            before = block
        for truth in scene.after:
            assert eval(truth, shown.names), f"{page}: {truth}"


def lay_out(root, photos, scene):
    """The files that every page may ask for, and the data sets of this one."""
    here, data = root / "here", root / "data"
    here.mkdir(), data.mkdir()
    for name in scene.data:
        CATALOGUE[name](data)
    shutil.copytree(photos, here / "photos")
    for name in ("catalogue", "new-arrivals", "other", "birds"):
        shutil.copytree(photos, here / name)
    write_prices(here / "catalogue")
    write_prices(here / "new-arrivals")
    some = sorted(photos.rglob("*.jpg"))
    write_bucket(root / "bucket", photos)
    if scene.vectors:
        write_vectors(here)
    names = "a b query photo bird enrolled one two unknown mug1 mug2 mug3 boot1 boot2 boot3"
    for name, path in zip(names.split(), some, strict=False):
        shutil.copy(path, here / f"{name}.jpg")


@pytest.mark.parametrize("page", pages())
def test_every_block_has_a_language(page):
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block.place} has no language, or one that is not in use here"


def test_text_that_is_no_output_is_on_the_list():
    for page in pages():
        before = None
        for block in blocks_of(page):
            known = block.language in RUN or block.language in ("yaml", "json", "csv") or is_output(block, before)
            assert known or (page, block.opening) in NOT_RUN, f"{block.place} is neither run nor on the list"
            before = block


def test_what_is_on_the_list_exists():
    there = {(page, block.opening) for page in pages() for block in blocks_of(page)}
    assert set(NOT_RUN) <= there
    words = " ".join(block.text for page in pages() for block in blocks_of(page))
    for beginning in UNREACHABLE:
        assert beginning in words
    assert set(SCENES) <= set(pages())
    for page, scene in SCENES.items():
        whole = "".join(block.text for block in blocks_of(page))
        assert all(opening in whole for opening in scene.between), page
        assert all(part in whole for part in scene.replaced), page


def test_the_proxy_and_the_unit_of_the_service_are_those_of_the_command():
    from nearkin.cli.serve import serve

    assert inspect.signature(serve).parameters["port"].default == PORT
    blocks = {block.language: block.text for block in blocks_of("docs/guide/service.md")}
    assert f"proxy_pass http://127.0.0.1:{PORT};" in blocks["nginx"]
    (command,) = re.findall(r"^ExecStart=\S+/nearkin (.+)$", blocks["ini"], flags=re.MULTILINE)
    parse(shlex.split(command))


PAGE = """\
text
```sh
nearkin data info
```

```text
12 classes
```
- a list

  ```python
  x = 1
  ```
"""


def test_blocks_are_read_with_place_and_language():
    command, output, inner = read_blocks(PAGE, "page.md")
    assert (command.language, command.line, command.text) == ("sh", 2, "nearkin data info\n")
    assert is_output(output, command)
    assert (inner.language, inner.text, inner.follows) == ("python", "x = 1\n", False)
    assert not is_output(replace(output, follows=False), command)
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        read_blocks("```sh\nls\n", "page.md")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("85.5% named rightly", "3% named rightly", True),
        ("same               yes", "same  no", True),
        ("   0.5133  Pullover  01a1", "   0.1  Bag  99", True),
        ("85.5% named rightly", "3% named wrongly", False),
        (" distance  label", " distance  name", False),
    ],
)
def test_output_is_compared_without_its_numbers(shown, printed, same):
    assert (frame(shown) == frame(printed)) is same


def test_a_block_that_fails_says_where(tmp_path):
    with inside(tmp_path), closing(Prompt()) as prompt:
        page = Page(prompt, {}, {})
        for text in ("nearkin data inof photos/", "nearkin data info nowhere/", "false", "true | false | true"):
            with pytest.raises(pytest.fail.Exception, match=r"x\.md:7"):
                page.run(Block("x.md", 7, "sh", f"{text}\necho reached\n", False))
            assert "reached" not in page.printed
        page.run(Block("x.md", 7, "sh", "for n in 1 2; do nearkin --version; done | wc -l\n", False))
        assert page.printed.strip() == "2"
        with pytest.raises(AssertionError, match=r"x\.md:9"):
            page.run(Block("x.md", 9, "python", "unknown\n", False))
        with pytest.raises(AssertionError, match="three"):
            page.run(Block("x.md", 9, "text", "three\n", True))
        with pytest.raises(AssertionError, match="max_stepz"):
            page.run(Block("x.md", 9, "yaml", "training: {max_stepz: 3}\n", False))
