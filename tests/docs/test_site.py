"""The site as a reader walks it: every page is in the menu, every link leads somewhere, no task is far away."""

from __future__ import annotations

import importlib.util
import re
from collections import deque
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

markdown = pytest.importorskip("markdown")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOME, README = DOCS / "index.md", ROOT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
GUIDES = sorted((DOCS / "guide").glob("*.md"))
HELP = [DOCS / f"{name}.md" for name in ("troubleshooting", "security", "glossary", "architecture")]
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def name(page):
    return page.relative_to(ROOT).as_posix()


class Rendered(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, html):
        super().__init__()
        self.links, self.pictures, self.places = [], [], set()
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append(given["src"])
        self.places |= {given[key] for key in ("id", "name") if given.get(key)}


@cache
def generated():
    """The hook that fills the generated parts of pages."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.on_page_markdown


@cache
def rendered(page):
    text = page.read_text(encoding="utf-8")
    if "<!-- generated: " in text:
        text = generated()(text)
    return Rendered(markdown.markdown(text, extensions=["attr_list", "fenced_code", "tables", "toc", "admonition"]))


def target(page, link):
    """The file and the place in it that a link of a page names; None for one that leaves the project."""
    if ELSEWHERE.match(link):
        return None
    path, _, place = link.partition("#")
    return ((page.parent / unquote(path)).resolve() if path else page), unquote(place)


def linked(page):
    """The pages that a page links to in its text."""
    found = (target(page, link) for link in rendered(page).links)
    return {place[0] for place in found if place is not None and place[0].suffix == ".md"}


@cache
def clicks(start):
    """How many clicks each page is away from a page, by links in the text alone: the repository shows no menu."""
    away, waiting = {start: 0}, deque([start])
    while waiting:
        page = waiting.popleft()
        for other in linked(page):
            if other not in away and other.is_relative_to(DOCS):
                away[other] = away[page] + 1
                waiting.append(other)
    return away


class _Settings(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags of its own do not matter here."""


_Settings.add_multi_constructor("!", lambda loader, suffix, node: None)
_Settings.add_multi_constructor("tag:", lambda loader, suffix, node: None)


@cache
def settings():
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Settings)


def menu(entries):
    """Every page of a menu, in order."""
    for entry in entries:
        for value in entry.values():
            yield from menu(value) if isinstance(value, list) else [DOCS / value]


def test_every_page_is_in_the_menu_once():
    listed = list(menu(settings()["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == set(PAGES)


def test_the_build_fails_on_links_that_lead_nowhere():
    checks = settings()["validation"]
    assert settings()["strict"]
    assert checks["nav"].items() >= {"omitted_files": "warn", "not_found": "warn"}.items()
    assert checks["links"].items() >= {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}.items()


@pytest.mark.parametrize("page", [README, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=name)
def test_links_lead_somewhere(page):
    for link in rendered(page).links:
        place = target(page, link)
        if place is None:
            continue
        file, anchor = place
        assert file.exists(), f"{link}: no such file"
        if anchor and file.suffix == ".md":
            assert anchor in rendered(file).places, f"{link}: no such heading"
        if page.is_relative_to(DOCS):
            assert file.is_relative_to(DOCS), f"{link} leaves the site"
    for picture in rendered(page).pictures:
        place = target(page, picture)
        assert place is None or place[0].is_file(), f"{picture}: no such picture"


@pytest.mark.parametrize("start", [HOME, README], ids=name)
@pytest.mark.parametrize("page", [*GUIDES, *HELP], ids=name)
def test_every_task_is_two_clicks_away(start, page):
    assert clicks(start).get(page, 99) <= 2


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_is_far_from_the_first(page):
    assert clicks(HOME).get(page, 99) <= 2


def test_the_first_page_names_every_guide():
    assert linked(HOME) >= set(GUIDES)


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_guide_says_what_one_gets_and_needs_and_where_to_go_next(page):
    text = page.read_text(encoding="utf-8")
    title, opening = text.split("\n\n", 2)[:2]
    assert title.startswith("# ")
    assert re.fullmatch(r"> \*\*You get\*\* .+\n> \*\*You need\*\* .+", opening)
    last = re.split(r"^## ", text, flags=re.MULTILINE)[-1]
    assert last.startswith("Next\n")
    assert re.search(r"\]\([\w./-]+\.md", last)


def test_titles_differ():
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in GUIDES + HELP]
    assert len(titles) == len(set(titles))


AMERICAN = re.compile(
    r"\b(?:colors?|behavior\w*|neighbor\w*|center(?:s|ed)?|gray\w*|analyz\w+|optimiz\w+|normaliz\w+|"
    r"regulariz\w+|initializ\w+|recogniz\w+|generaliz\w+|organiz\w+|randomiz\w+|summariz\w+|visualiz\w+|penaliz\w+|"
    r"minimiz\w+|maximiz\w+|quantiz\w+|labeled|labeling|modeled|modeling|favor\w*|enroll(?:s|ment)?|fulfill|judgment|"
    r"artifacts?|catalogs?|dialogs?)\b",
    re.IGNORECASE,
)
NAMES = ("generalized sum pooling", "generalized max", "k-center")  # as their papers spell them
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|\$[^$\n]*\$|<!--.*?-->", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [HOME, *GUIDES, *HELP], ids=name)
def test_spelling_is_british(page):
    prose = CODE.sub(" ", page.read_text(encoding="utf-8")).lower()
    for words in NAMES:
        prose = prose.replace(words, " ")
    assert not AMERICAN.findall(prose)
