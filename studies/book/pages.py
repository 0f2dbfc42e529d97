"""The pages of the book of results: one for each document, and the first one with every claim and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.claims.claim import Claim, Compared, Document, Evidence, Table, Verdict, verdict_of
from studies.page_tables import table
from studies.places import DOCS

INDEX = "index.md"
"""The page that the repository has."""
PICTURE = "book.png"


@dataclass(frozen=True)
class Found:
    """A claim and what our runs say of it now."""

    claim: Claim
    evidence: Evidence | None

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.evidence)

    @property
    def counted(self) -> str:
        """How many of its comparisons are shown, where not all are."""
        if self.evidence is None or self.verdict is Verdict.HOLDS:
            return ""
        compared = self.evidence.compared
        opposed = sum(each.opposed for each in compared)
        against = f", the opposite in {opposed}" if opposed else ""
        return f"shown in {sum(each.shown for each in compared)} of {len(compared)}{against}"


Book = dict[str, tuple[Document, list[Found]]]
"""Slug to a document and its claims."""


def look_up(documents: Sequence[Document]) -> Book:
    """Read the ledgers for every claim of every document."""
    book: Book = {}
    for document in documents:
        keys = Counter(claim.key for claim in document.claims)
        if document.slug in book or keys.most_common(1)[0][1] > 1:
            raise ValueError(f"document {document.slug!r} or one of its claims' keys is there twice: rename one")
        book[document.slug] = document, [Found(claim, _evidence(claim, document.slug)) for claim in document.claims]
    return book


def _evidence(claim: Claim, slug: str) -> Evidence | None:
    """What the ledgers have of a claim; an error says of which."""
    try:
        return claim.evidence() if claim.evidence else None
    except Exception as error:
        error.add_note(f"Evidence of {slug}/{claim.key}: is `{claim.command}` finished?")
        raise


def pages(book: Book, docs: Path = DOCS, drawn: Collection[str] = ()) -> dict[str, str]:
    """File name in `docs/book` to its text.

    Args:
        book: what was looked up.
        docs: pictures and pages that are not there are not linked to.
        drawn: names of pictures that are about to be there.
    """
    made = {f"{slug}.md": document_page(document, found, docs, drawn) for slug, (document, found) in book.items()}
    return {INDEX: index_page(book), **made}


def document_page(document: Document, found: Sequence[Found], docs: Path = DOCS, drawn: Collection[str] = ()) -> str:
    """Every claim of a document."""
    parts = [
        f"# {document.title}",
        f"{document.authors}. {_counts(found)} How verdicts are made is told [on the first page](index.md); this page "
        "is made from the claims and the ledgers when the site is built (`make docs`).",
        *_overview(document.slug, docs, drawn),
        table(
            ("claim", "where", "verdict"),
            [(f"[{each.claim.key}](#{each.claim.key})", each.claim.where, _verdict(each)) for each in found],
        ),
    ]
    for each in found:
        parts += _section(each, docs)
    return "\n\n".join(parts) + "\n"


def picture_of(slug: str) -> str:
    """File name in `docs/images` of a document's picture."""
    return f"book-{slug}.png"


def _overview(slug: str, docs: Path, drawn: Collection[str]) -> list[str]:
    """The picture of a document's comparisons, where there is one."""
    name = picture_of(slug)
    if name not in drawn and not (docs / "images" / name).exists():
        return []
    return [
        f"![Every comparison of every tested claim](../images/{name})",
        "*Blue: the whole 95 % interval lies where the claim puts it; grey: not; orange: wholly on the other side.*",
    ]


def _section(found: Found, docs: Path) -> list[str]:
    """The parts of a claim."""
    claim = found.claim
    parts = [f"## {claim.key}", claim.text, f"*{claim.where}.*", f"Verdict: {_verdict(found)}."]
    if claim.why_not:
        parts.append(f"Why not: {claim.why_not}")
    if claim.remark:
        parts.append(claim.remark)
    if claim.theirs is not None:
        parts += ["The document's numbers:", _table(claim.theirs)]
    if found.evidence is not None:
        parts += ["Ours, with 95 % intervals:", _compared(found.evidence.compared)]
        if found.evidence.table is not None:
            parts.append(_table(found.evidence.table))
    if claim.setting:
        parts.append(f"How ours differs: {claim.setting}")
    if claim.command:
        parts.append(f"```bash\n{claim.command}\n```")
    if claim.picture and (docs / "images" / claim.picture).exists():
        parts.append(f"![{_plain(claim.text)}](../images/{claim.picture})")
    if claim.page and (docs / claim.page).exists():
        parts.append(f"More: [{_title(docs / claim.page)}](../{claim.page}).")
    return parts


def _compared(compared: Sequence[Compared]) -> str:
    rows = []
    for each in compared:
        value, low, high = (_number(number, each.digits) for number in (each.value, each.low, each.high))
        rows.append((_cell(each.what), f"{value} ({low} to {high})", _expected(each), each.state))
    return table(("what", "ours", "the claim expects", ""), rows)


def _number(value: float, digits: int) -> str:
    """With its sign, as most are differences; a zero has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text


def _expected(compared: Compared) -> str:
    bounds = [("above", compared.above), ("below", compared.below)]
    return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


def _verdict(found: Found) -> str:
    """In bold, with how much of it is shown."""
    return f"**{found.verdict}**" + (f", {found.counted}" if found.counted else "")


def _counts(found: Sequence[Found]) -> str:
    counted = Counter(each.verdict for each in found)
    noun = "claim" if len(found) == 1 else "claims"
    unrun = sum(each.claim.why_not.lower().startswith("not run") for each in found if not each.evidence)
    opposed = sum(any(one.opposed for one in each.evidence.compared) for each in found if each.evidence)
    return (
        f"{len(found)} {noun}: {counted[Verdict.HOLDS]} hold, {counted[Verdict.DOES_NOT]} do not (of {opposed} the "
        f"opposite is shown, at least in part), {counted[Verdict.UNTESTED]} cannot be tested here "
        f"({unrun} of them are only not run yet)."
    )


def _table(given: Table) -> str:
    return table([_cell(name) for name in given.head], [[_cell(text) for text in row] for row in given.rows])


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|")


def _plain(text: str) -> str:
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")


def _title(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ").strip()


def index_page(book: Book) -> str:
    """What the book is, the counts, and every claim."""
    everything = [each for _, found in book.values() for each in found]
    counts = [
        (f"[{_cell(document.title)}]({slug}.md)", document.authors, str(len(found)), *_numbers(found))
        for slug, (document, found) in book.items()
    ]
    claims = [
        (
            f"[{_cell(_plain(each.claim.text))}]({slug}.md#{each.claim.key})",
            f"[{slug}]({slug}.md)",
            each.claim.where,
            _verdict(each),
        )
        for slug, (_, found) in book.items()
        for each in found
    ]
    head = ("document", "", "claims", *map(str, Verdict))
    return _INDEX.format(
        counts=_counts(everything),
        documents=table(head, [*counts, ("all", "", str(len(everything)), *_numbers(everything))]),
        claims=table(("claim", "document", "where", "verdict"), claims),
        picture=PICTURE,
    )


def _numbers(found: Sequence[Found]) -> list[str]:
    counted = Counter(each.verdict for each in found)
    return [str(counted[verdict]) for verdict in Verdict]


_INDEX = """# The book of results

Every empirical claim of the documents that nearkin grew from, and what our own runs say of it. {counts}
The page of each document, with the numbers, is made when the site is built: `make docs`.

{documents}

![Every comparison of every claim: how far its interval lies from where the claim begins](../images/{picture})

A dot is a comparison, its line the 95 % interval, both counted in half widths of that interval from the bound that the
claim sets; what lies farther than 6 is drawn at 6. Wholly right of the black line it is shown, wholly left of it the
opposite is. Below each document: how many
are shown, not shown, and the opposite.

## How a verdict is made

A claim is about one or more comparisons, each a figure of our runs with a 95 % interval: a difference paired over
unseen classes, seeds or items, as its section says. The claim says where each figure lies: above a bound, below one,
or between two.

MAP@R and P@1 of a model are means over queries, as in papers. Where a difference is paired over classes, it is the mean
over classes of their differences, each of the same weight.

- **holds**: every interval lies wholly where the claim puts it.
- **does not hold**: at least one does not. That is not the same as shown to be wrong: each section says of every
  comparison whether it is shown, not shown, or whether the opposite is, and how many are shown.
- **cannot be tested here**: the data or the weights are not to be had, the cost is too high, or there is nothing to
  make an interval of, or it is not run yet; the section says which, and what it would cost.

Intervals are not corrected for the number of comparisons, as the pages of results correct theirs (by Holm), so that
what is "not shown" there can be shown here. As a claim holds only if all of its comparisons are shown,
more comparisons make it harder to hold, not easier. Each section says how our setting differs from the document's:
mostly a frozen or small network in place of a large one that is fine-tuned. A verdict is about that setting.

## Make it again

```bash
make book
```

runs every study behind the claims and writes this page; the page of each document is made when the site is built, by
`make docs`. The ledgers of finished cells are committed, so a plain run finds everything finished and only writes the
page; remove lines from a ledger to have their cells repeated.

| command | what it does |
| --- | --- |
| `python studies/book/run.py --list` | the studies, how much of each is finished, and how long it takes from nothing |
| `python studies/book/run.py --only NAME` | run some studies, finished or not; each goes on where it was |
| `python studies/book/run.py --fresh DIR` | run all from nothing into ledgers and pages below `DIR`; hours |
| `python studies/book/run.py --pages` | only write this page |
| `python studies/book/run.py --check` | exit code 0 only if this page is what the ledgers say |
| `make book-quick` | some cells of every document from nothing, beside what the ledgers have, in less than 20 minutes |

Studies need the data: `NEARKIN_DATA` or `--data-root`. A study that fails does not stop the others; Ctrl-C stops all,
and the next run goes on.

## Add a claim

Add a `Claim` to the list of its document in `studies/claims`: what the document says and where, its numbers, how our
setting differs, a function that reads the ledgers and returns `Evidence`, and the command that makes them; or, in place
of evidence, why the claim cannot be tested. `KeptBook` of `studies/claims/kept_book.py` compares two lines of a book of
`nearkin benchmark`. If the command is of a script that `python studies/book/run.py --list` does not have, add a `Study`
to `studies/book/catalogue.py`. Then run `python studies/book/run.py --pages`; the tests check that this page is up to
date, that commands, pages and pictures are there, and that every claim has a verdict.

## Every claim

{claims}
"""
