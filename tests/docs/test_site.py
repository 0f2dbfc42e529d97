"""The site as a reader walks it: every page is in the menu, every link leads somewhere, no task is far away.

Pages are read as text, which takes a moment; `make docs` builds them in earnest, and fails on the same faults.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from studies.claims import documents

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOME, README = DOCS / "index.md", ROOT / "README.md"
PAGES = sorted(DOCS.rglob("*.md"))
BOOK = {DOCS / "book" / f"{document.slug}.md": document for document in documents()}
"""Pages that are made when the site is built, each with a heading for every claim of its document."""
GUIDES = sorted((DOCS / "guide").glob("*.md"))
HELP = [DOCS / f"{name}.md" for name in ("troubleshooting", "security", "glossary", "architecture")]
OUTSIDE = [
    README,
    *(ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md", "benchmarks/README.md", "studies/README.md")),
]

FENCES = re.compile(r"^```.*?^```|<!--.*?-->", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def name(page):
    return page.relative_to(ROOT).as_posix()


@cache
def text(page):
    """A page without its blocks of code."""
    return FENCES.sub("", page.read_text(encoding="utf-8"))


def links(page):
    """(whether it is a picture, file, place in it) of every link in the text that stays in the project."""
    for picture, link in LINK.findall(INLINE.sub("", text(page).replace("[`", "[").replace("`]", "]"))):
        if not ELSEWHERE.match(link):
            path, _, place = link.partition("#")
            yield bool(picture), (page.parent / unquote(path)).resolve() if path else page, unquote(place)


@cache
def places(page):
    """The headings of a page as links name them: as Python-Markdown's `toc` makes them."""
    if page in BOOK:
        return {claim.key for claim in BOOK[page].claims}
    found = set()
    for heading in HEADING.findall(text(page)):
        plain = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading).replace("`", "").replace("*", "")
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())
        again = 0
        while (f"{slug}_{again}" if again else slug) in found:
            again += 1
        found.add(f"{slug}_{again}" if again else slug)
    return found


def linked(page):
    """The pages that a page links to; those of the book lead back, and to what they have from other pages."""
    if page in BOOK:
        return set()
    return {file for picture, file, _ in links(page) if file.suffix == ".md" and not picture}


@cache
def clicks(start):
    """How many clicks each page is away from one, by links in the text alone: a repository shows no menu."""
    away, waiting = {start: 0}, deque([start])
    while waiting:
        page = waiting.popleft()
        for other in linked(page):
            if other not in away and other.is_relative_to(DOCS):
                away[other] = away[page] + 1
                waiting.append(other)
    return away


@cache
def settings():
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def menu(entries):
    """Every page of a menu, in order."""
    for entry in entries:
        for value in entry.values():
            yield from menu(value) if isinstance(value, list) else [DOCS / value]


def test_every_page_is_in_the_menu_once():
    listed = list(menu(settings()["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == {*PAGES, *BOOK}


def test_the_build_fails_on_links_that_lead_nowhere():
    checks = settings()["validation"]
    assert settings()["strict"]
    assert checks["nav"].items() >= {"omitted_files": "warn", "not_found": "warn"}.items()
    assert checks["links"].items() >= {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}.items()


@pytest.mark.parametrize("page", [*OUTSIDE, *PAGES], ids=name)
def test_links_lead_somewhere(page):
    for _, file, place in links(page):
        assert file.exists() or file in BOOK, f"there is no {file}"
        assert not place or file.suffix != ".md" or place in places(file), f"{name(file)} has no heading {place}"
        assert page in OUTSIDE or file.is_relative_to(DOCS), f"{file} is not of the site"


@pytest.mark.parametrize(
    ("start", "wanted"), [(HOME, PAGES), (README, [*GUIDES, *HELP])], ids=["every page", "every task"]
)
def test_pages_are_two_clicks_away(start, wanted):
    assert not [name(page) for page in wanted if clicks(start).get(page, 99) > 2]


def test_the_first_page_names_every_guide():
    assert linked(HOME) >= set(GUIDES)


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_guide_says_what_one_gets_and_needs_and_where_to_go_next(page):
    title, opening, rest = page.read_text(encoding="utf-8").split("\n\n", 2)
    assert title.startswith("# ")
    assert re.fullmatch(r"> \*\*You get\*\* .+\n> \*\*You need\*\* .+", opening)
    last = re.split(r"^## ", rest, flags=re.MULTILINE)[-1]
    assert last.startswith("Next\n")
    assert LINK.search(last)


def test_titles_differ():
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in GUIDES + HELP]
    assert len(titles) == len(set(titles))


AMERICAN = re.compile(
    r"\b(?:colors?|behavior\w*|neighbor\w*|center(?:s|ed)?|gray\w*|analyz\w+|optimiz\w+|normaliz\w+|regulariz\w+|"
    r"initializ\w+|recogniz\w+|generaliz\w+|organiz\w+|randomiz\w+|summariz\w+|visualiz\w+|penaliz\w+|minimiz\w+|"
    r"maximiz\w+|quantiz\w+|labeled|labeling|modeled|modeling|favor\w*|enroll(?:s|ment)?|fulfill|artifacts?|catalogs?)\b"
)
NAMES = ("generalized sum pooling", "generalized max", "k-center")  # as their papers spell them


@pytest.mark.parametrize("page", [HOME, *GUIDES, *HELP], ids=name)
def test_spelling_is_british(page):
    prose = re.sub(r"\]\([^)]*\)", "]", INLINE.sub("", text(page))).lower()
    for words in NAMES:
        prose = prose.replace(words, "")
    assert not AMERICAN.findall(prose)
