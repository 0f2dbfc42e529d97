"""The book of results: verdicts, pages, and that commands, pictures and pages it names are there."""

from __future__ import annotations

import importlib
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
claims = importlib.import_module("studies.claims.claim")
book_pages = importlib.import_module("studies.book.pages")
book_picture = importlib.import_module("studies.book.picture")
book_evidence = importlib.import_module("studies.claims.kept_book")
studies = importlib.import_module("studies.book.catalogue")
DOCUMENTS = importlib.import_module("studies.claims").documents()

EVERY = [claim for one in DOCUMENTS for claim in one.claims]
NUMBERS = st.floats(-10, 10).map(lambda value: round(value, 3))


@st.composite
def comparisons(draw):
    low, value, high = sorted(draw(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
    above, below = draw(st.tuples(NUMBERS, NUMBERS).map(sorted))
    sides = draw(st.sampled_from([{"above": above}, {"below": below}, {"above": above, "below": below}]))
    return claims.Compared("it", value, low, high, **sides)


@given(comparisons())
def test_shown_means_that_every_point_of_the_interval_is_where_the_claim_puts_it(one):
    inside = [
        (one.above is None or point > one.above) and (one.below is None or point < one.below)
        for point in (one.low, one.value, one.high)
    ]
    assert one.shown == all(inside)
    assert not one.opposed or not any(inside)


@given(st.lists(comparisons(), min_size=1, max_size=5))
def test_a_claim_holds_if_and_only_if_no_comparison_is_missing(some):
    holds = claims.verdict_of(claims.Evidence(some)) is claims.Verdict.HOLDS
    assert holds == (sum(one.shown for one in some) == len(some))
    assert claims.verdict_of(claims.Evidence([*some, claims.Compared("never", 0, 0, 0, above=1)])) is not (
        claims.Verdict.HOLDS
    )


@given(comparisons())
def test_the_picture_has_the_interval_on_the_side_that_the_verdict_says(one):
    value, low, high = book_picture.place(one)
    assert low <= value <= high
    if one.low < one.high:
        assert (low > 0) == one.shown
    if one.opposed and one.low < one.high:
        assert value < 0


@pytest.mark.parametrize("wrong", [{}, {"why_not": "no", "evidence": lambda: None, "command": "x"}])
def test_a_claim_needs_evidence_or_a_reason(wrong):
    with pytest.raises(ValueError, match="evidence"):
        claims.Claim("a", "text", "where", None, **wrong)


def made_up(*compared, **more):
    evidence = claims.Evidence(compared, claims.Table(("a|b",), [("1",)]))
    claim = claims.Claim("one", "It rises.", "Table 1", None, "Small.", lambda: evidence, command="python x.py", **more)
    other = claims.Claim("two", "It [falls].", "Table 2", claims.Table(("n",), [("3.5",)]), why_not="No data.")
    return claims.Document("paper", "A paper", "Someone, 2020", [claim, other])


def test_pages_say_what_was_found():
    document = made_up(
        claims.Compared("a against b", 1.26, 0.5, 2, above=0),
        claims.Compared("c against d", -1, -2, -0.5, above=0),
        claims.Compared("e against f", 0, -1, 1, above=-0.5, below=0.5, digits=2),
    )
    found = book_pages.pages(book_pages.look_up([document]), Path("nowhere"))
    page, index = found["paper.md"], found["index.md"]
    assert "| a against b | +1.3 (+0.5 to +2.0) | above 0 | shown |" in page
    assert "| c against d | -1.0 (-2.0 to -0.5) | above 0 | the opposite is shown |" in page
    assert "| e against f | 0.00 (-1.00 to +1.00) | above -0.5 and below 0.5 | not shown |" in page
    assert "Verdict: **does not hold**, shown in 1 of 3, the opposite in 1." in page
    assert "a\\|b" in page
    assert "```bash\npython x.py\n```" in page
    assert "Why not: No data." in page
    counts = "2 claims: 0 hold, 1 do not (of 1 the opposite is shown, at least in part), 1 cannot be tested here "
    counts += "(0 of them are only not run yet)."
    assert counts in index
    assert "| [It rises.](paper.md#one) | [paper](paper.md) | Table 1 | **does not hold**" in index
    assert "| all |  | 2 | 0 | 1 | 1 |" in index


def test_what_is_not_there_is_not_linked_to(tmp_path):
    document = made_up(claims.Compared("a", 1, 0.5, 2, above=0), picture="p.png", page="results/r.md")
    book = book_pages.look_up([document])
    assert "p.png" not in book_pages.pages(book, tmp_path)["paper.md"]
    for name, text in (("images/p.png", ""), ("results/r.md", "# Runs\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    page = book_pages.pages(book, tmp_path)["paper.md"]
    assert "![It rises.](../images/p.png)" in page
    assert "More: [Runs](../results/r.md)." in page
    assert "**holds**." in page


def test_keys_are_there_once():
    document = made_up(claims.Compared("a", 1, 0.5, 2, above=0))
    twice = claims.Document("paper", "A", "B", [*document.claims, document.claims[0]])
    for documents in ([twice], [document, document]):
        with pytest.raises(ValueError, match="twice"):
            book_pages.look_up(documents)


def test_an_error_says_whose_evidence_it_was():
    def broken():
        raise KeyError("line")

    claim = claims.Claim("one", "It.", "Table", None, evidence=broken, command="python x.py")
    with pytest.raises(KeyError) as caught:
        book_pages.look_up([claims.Document("paper", "A", "B", [claim])])
    assert "paper/one" in caught.value.__notes__[0]


@pytest.fixture(scope="module")
def book():
    """Every claim with its evidence, which takes seconds to compute."""
    return book_pages.look_up(DOCUMENTS)


def test_all_evidence_is_finite_and_fills_its_table(book):
    for document, found in book.values():
        for each in found:
            claim, evidence = each.claim, each.evidence
            for one in evidence.compared if evidence else ():
                assert all(map(math.isfinite, (one.value, one.low, one.high))), (document.slug, claim.key)
                assert one.low <= one.value <= one.high, (document.slug, claim.key)
            if evidence and evidence.table:
                assert {len(row) for row in evidence.table.rows} <= {len(evidence.table.head)}, claim.key


def test_the_kept_page_is_what_the_ledgers_say(book):
    made = book_pages.pages(book)
    folder = ROOT / "docs" / "book"
    assert [path.name for path in folder.glob("*.md")] == [book_pages.INDEX]
    assert (folder / book_pages.INDEX).read_text(encoding="utf-8") == made[book_pages.INDEX]
    nav = (ROOT / "mkdocs.yml").read_text()
    assert all(f"book/{name}" in nav for name in made)
    assert (ROOT / "docs" / "images" / book_pages.PICTURE).exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.slug)
def test_what_claims_name_is_there(document):
    for claim in document.claims:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", claim.key)
        assert not claim.picture or (ROOT / "docs" / "images" / claim.picture).exists(), claim.key
        assert not claim.page or (ROOT / "docs" / claim.page).exists(), claim.key
        if claim.theirs:
            assert {len(row) for row in claim.theirs.rows} == {len(claim.theirs.head)}, claim.key


def scripts():
    """Script to the words that commands of claims and studies give it."""
    commands = [one.command for one in studies.STUDIES] + [sample.study.command for sample in studies.SAMPLES]
    commands += [claim.command for claim in EVERY]
    found: dict[str, set[str]] = {}
    for command in commands:
        for part in filter(None, re.split(r"\s*(?:&&|;|\n)\s*", command)):
            words = shlex.split(part)
            if words[0] == "python":
                found.setdefault(words[1], set()).update(words[2:])
            else:
                assert words[0] in ("nearkin", "make"), command
    return found


@pytest.mark.parametrize(("script", "words"), sorted(scripts().items()))
def test_commands_name_scripts_and_options_that_exist(script, words):
    source = (ROOT / script).read_text(encoding="utf-8")
    for word in words:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in source, word


def test_every_script_of_a_claim_is_in_a_study():
    listed = {shlex.split(study.command)[1] for study in studies.STUDIES}
    assert scripts().keys() <= listed


def test_every_study_is_finished_and_serves_a_document():
    assert not [study.name for study in studies.STUDIES if not study.finished()]
    known = set(importlib.import_module("studies.claims").ORDER)
    assert not [study.name for study in studies.STUDIES if not set(study.documents) <= known]


def test_names_of_studies_are_there_once():
    names = [study.name for study in studies.STUDIES]
    assert len(set(names)) == len(names)


def test_the_quick_book_is_quick_and_serves_every_document():
    assert sum(sample.seconds for sample in studies.SAMPLES) <= 12.5 * 60
    served = {document for sample in studies.SAMPLES for document in sample.study.documents}
    assert served == set(importlib.import_module("studies.claims").ORDER)


def test_kept_books_agree_with_the_table_of_recalls():
    lines = (STUDIES / "adversary" / "adversary-cub" / "recall.csv").read_text().splitlines()[1:4]
    book = book_evidence.kept_book("adversary-cub")
    for line in lines:
        name, base, difference, low, high, _ = line.split(",")
        found = book.compared(name, base, metric="P@1")
        assert [found.value, found.low, found.high] == pytest.approx([100 * float(x) for x in (difference, low, high)])


def test_values_of_the_table_are_those_of_the_queries():
    book = book_evidence.KeptBook("adversary-cifar", STUDIES / "adversary" / "adversary-cifar")
    listed = book.value("triplet", "P@1")
    book._table = {}
    assert book.value("triplet", "P@1") == pytest.approx(listed, abs=0.02)


def test_kept_books_tell_unknown_names():
    with pytest.raises(KeyError, match="quartet"):
        book_evidence.kept_book("adversary-cub").per_class("quartet")
    with pytest.raises(FileNotFoundError, match="nothing"):
        book_evidence.KeptBook("nothing")


def test_the_list_needs_no_data():
    done = subprocess.run(
        [sys.executable, str(STUDIES / "book" / "run.py"), "--list"], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == len(studies.STUDIES) + 1


def test_the_map_names_every_study():
    listed = set(re.findall(r"^\| \[(\w+)\]\(\1/run\.py\)", (STUDIES / "README.md").read_text(), flags=re.MULTILINE))
    assert listed == {path.parent.name for path in STUDIES.glob("*/run.py")} - {"book"}


def test_the_readme_of_the_benchmarks_names_every_script():
    folder = ROOT / "benchmarks"
    text = (folder / "README.md").read_text()
    results = {path.with_suffix(".py").name for path in folder.glob("*.json")}
    assert [name for name in sorted(results) if f"`{name}`" not in text] == []
