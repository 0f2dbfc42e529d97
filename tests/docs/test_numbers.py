"""Every number that tells how well something does stands beside the command that made it.

A machine can see this much: a section whose text or tables hold a percentage, an interval, a ratio or a decimal must
name a command of this repository (`python benchmarks/…`, `python studies/…`, `nearkin …`, `make …`), or have a table
that the docs generate; in the section itself, or under a heading that it belongs to. Others are on a list, with the
reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from .pages import DOCS, ROOT

_COMMAND = re.compile(
    r"\bpython (?:benchmarks|studies)/[\w/]+\.py|\bnearkin (?!is\b|needs\b)[a-z]+|\bmake [a-z]+|"
    r"<!-- (?:generated|sizing): [\w-]+ -->"
)
_HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$|^\*\*([^*]+[?.])\*\*")
_BOLD = 7
"""The level of a bold question or title; what stands above it is of other questions."""
_RESULT = re.compile(
    r"\d(?:\.\d+)? ?%"  # a share
    r"|[+±-]?\d+\.\d+ \(?[+-]?\d+\.\d+ to [+-]?\d+\.\d+"  # a value with its interval
    r"|± ?\d"
    r"|\d points?\b|\b(?:MAP@R|P@1|Recall@1|EER|ECE|accuracy)(?: of)? \d+\.\d"
    r"|\b0\.\d+ of (?:the|its|one|an?)\b|\d m?s\b(?! of)|\d (?:[MG]B|minutes|seconds)\b"
    r"|\b\d+(?:\.\d+)? times (?:as|faster|slower|more|less|the)\b"
    r"|^\|.*\| *[+-]?\d+\.\d+ *(?:\||\()",  # a cell of a table
    flags=re.MULTILINE,
)

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("docs/book/index.md", "Every claim"): "what the documents claim; each leads to the section with its command",
    ("docs/guide/comparing.md", "How many classes are needed"): "arithmetic: 2 / 2^n",
    ("docs/guide/confidence.md", "How sure is it?"): "says what a probability of 80 % means",
    ("docs/guide/confidence.md", "Which estimator?"): "the nearest neighbour is sure by definition",
    ("docs/guide/confidence.md", "Where to draw the line"): "what the user asks for",
    ("docs/guide/large-batches.md", "What is the same, and what is not"): "arithmetic: 4,096 squared, 4 bytes each",
    ("docs/guide/product-search.md", "3. What is it?"): "printed by the block before, shown with its output",
    ("docs/guide/service.md", "Asking"): "a limit of the service",
    ("docs/guide/several-processes.md", "Stopping, resuming, errors"): "a limit of the program",
    (
        "docs/guide/short-embeddings.md",
        "How short may embeddings be?",
    ): "arithmetic: 10^7 items of 128 numbers, 4 bytes each",
    ("docs/guide/unknown.md", "I don't know"): "probabilities sum to one",
    ("docs/guide/unknown.md", "Four scores"): "the share that the user asks for",
    ("docs/guide/verification.md", "What each number means"): "chance, and the cost of accepting nobody",
}
"""Page and heading of sections whose numbers no command of ours makes, and why."""


@dataclass(frozen=True)
class Section:
    """What stands under one heading, without what stands under the headings below it."""

    page: str
    heading: str
    above: tuple[str, ...]
    """The texts under the headings that it belongs to; that of the page itself only on pages of results."""
    text: str


def pages_with_numbers():
    return [
        "README.md",
        "docs/index.md",
        *sorted(
            path.relative_to(ROOT).as_posix()
            for folder in ("book", "guide", "results")
            for path in (DOCS / folder).glob("*.md")
        ),
    ]


def sections_of(text, page):
    """The sections of a page; in the README a paragraph that begins with a bold question or title is one too."""
    found, levels, inside = [], {0: ["(top)", []]}, False
    level = 0

    def close():
        above = tuple(
            "\n".join(levels[depth][1])
            for depth in sorted(levels, reverse=True)
            if (0 if page.startswith("docs/results") else 1) < depth < level < _BOLD
        )
        heading, lines = levels[level]
        found.append(Section(page, heading, above, "\n".join(lines)))

    for line in text.splitlines():
        inside ^= line.lstrip().startswith("```")
        heading = None if inside else _HEADING.match(line)
        bold = heading is not None and heading[1] is None
        if heading is None or (bold and page != "README.md"):
            levels[level][1].append(line)
            continue
        close()
        level = _BOLD if bold else len(heading[1])
        for depth in [depth for depth in levels if depth >= level]:
            del levels[depth]
        levels[level] = [heading[3] or heading[2], [line] if bold else []]
    close()
    return found


def claims(section):
    """The first result in a section's prose and tables, if there is one; code and what it prints is not prose."""
    prose = re.sub(r"^```.*?^```", "", section.text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`[^`]*`", "", prose)
    prose = re.sub(r"\b(?:95|90) % (?=interval|confidence)|\b95 %(?=[,;.)]| over)", "", prose)
    found = _RESULT.search(prose)
    return found and found[0]


def has_command(section):
    """Whether what made its numbers is told; where nothing could be tested, they are those of a document."""
    return "Verdict: **cannot be tested here**" in section.text or any(
        _COMMAND.search(text) for text in (section.text, *section.above)
    )


@pytest.mark.parametrize("page", pages_with_numbers())
def test_numbers_stand_beside_what_made_them(page):
    bare = [
        (section.heading, claims(section))
        for section in sections_of((ROOT / page).read_text(encoding="utf-8"), page)
        if claims(section) and not has_command(section) and (page, section.heading) not in EXCEPTIONS
    ]
    assert not bare, f"{page}: name the command that makes the numbers of {bare}"


def test_what_is_excepted_exists_and_needs_it():
    needed = {
        (page, section.heading)
        for page in pages_with_numbers()
        for section in sections_of((ROOT / page).read_text(encoding="utf-8"), page)
        if claims(section) and not has_command(section)
    }
    assert set(EXCEPTIONS) <= needed


PAGE = """\
# A page

By `nearkin train photos/`.

## Bare

It is 3.2 times as fast.

## Told

`python benchmarks/retrieval.py`: MAP@R 14.2, with its 95 % interval.

### Below

+0.4 (+0.1 to +0.6)

## Nothing

With 95 % intervals, and `nearkin audit` says the rest.

```text
85 % right
```
"""


@pytest.mark.parametrize(("page", "expected"), [("docs/guide/x.md", ["Bare"]), ("docs/results/x.md", [])])
def test_a_number_without_a_command_is_found(page, expected):
    bare = [one.heading for one in sections_of(PAGE, page) if claims(one) and not has_command(one)]
    assert bare == expected


def test_a_bold_question_of_the_readme_is_a_section():
    text = "## Numbers\n\n`make demo`\n\n**Does it help?** By 2 %.\n"
    (section,) = (one for one in sections_of(text, "README.md") if one.heading == "Does it help?")
    assert claims(section)
    assert not has_command(section)
