"""The book of results: every study behind the claims of the seed documents, and what they say of each claim.

    python studies/book/run.py                finish every study, write docs/book/index.md
    python studies/book/run.py --list         the studies, how much of each is finished, and how long it takes
    python studies/book/run.py --only NAME    run some studies, finished or not; each goes on where it was
    python studies/book/run.py --fresh DIR    run all from nothing; ledgers, pictures and pages go below DIR
    python studies/book/run.py --quick        some cells from nothing (runs/book-quick), beside those of the ledgers
    python studies/book/run.py --pages        only write docs/book/index.md
    python studies/book/run.py --check        exit code 0 only if that page is what the ledgers say

Ledgers are committed, so a plain run finds every study finished and only writes the page. Those of the documents are
made when the site is built (docs/generators/book.py); a tree of its own gets all of them. A study that fails does not
stop the others, and the exit code tells; Ctrl-C stops, and the next run goes on. Studies need the data: NEARKIN_DATA or
--data-root.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the repository, to import studies

from studies.book.catalogue import SAMPLES, STUDIES, Study
from studies.book.runner import Outcome, run_studies
from studies.places import DOCS, REPOSITORY, VARIABLE

QUICK = REPOSITORY / "runs" / "book-quick"


def list_studies(studies: Sequence[Study]) -> None:
    """A line for each study."""
    width = max(len(study.name) for study in studies)
    for study in studies:
        cells = f"{min(len(study.lines()), study.cells)} of {study.cells}"
        documents = ", ".join(study.documents)
        print(f"{study.name:{width}}  {cells:>10} cells  {study.minutes:4.0f} min  {documents:22}  {study.command}")
    hours = sum(study.minutes for study in studies) / 60
    print(f"{len(studies)} studies, about {hours:.0f} hours from nothing on two cores.")


def write_pages() -> None:
    """Write docs/book and its pictures from the ledgers; in the repository only what it keeps."""
    from nearkin.storage import replacing, write_text
    from studies.book.pages import INDEX, PICTURE, look_up, pages
    from studies.book.picture import pictures
    from studies.claims import documents

    book = look_up(documents())
    drawn = pictures(book)
    texts = pages(book, drawn=drawn)
    if DOCS.parent == REPOSITORY:
        drawn, texts = {PICTURE: drawn[PICTURE]}, {INDEX: texts[INDEX]}
    (DOCS / "book").mkdir(exist_ok=True)
    for name, picture in drawn.items():
        with replacing(DOCS / "images" / name) as temporary:
            temporary.write_bytes(picture)
    for name, text in texts.items():
        write_text(DOCS / "book" / name, text)
    print(f"{sum(len(found) for _, found in book.values())} claims of {len(book)} documents: {DOCS / 'book'}")


def stale_pages() -> list[str]:
    """The pages of docs/book that are not what the ledgers say, or should not be there."""
    from studies.book.pages import INDEX, look_up, pages
    from studies.claims import documents

    folder = DOCS / "book"
    wanted = pages(look_up(documents()))
    if DOCS.parent == REPOSITORY:
        wanted = {INDEX: wanted[INDEX]}
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))


def run_quick(environment: dict[str, str]) -> int:
    """Run the samples in their own tree and write how they compare."""
    from nearkin.storage import write_text
    from studies.book.quick import quick_page

    studies = [sample.study for sample in SAMPLES]
    outcome = run_studies(studies, QUICK, {**environment, VARIABLE: str(QUICK)})
    page = quick_page(SAMPLES, QUICK, REPOSITORY)
    write_text(QUICK / "index.md", page)
    print(f"{page}\n{QUICK / 'index.md'}")
    return _told(outcome)


def _told(outcome: Outcome) -> int:
    """Say what failed; the exit code."""
    for name, why in outcome.failed.items():
        print(f"FAILED {name}: {why}", file=sys.stderr)
    if outcome.interrupted:
        print("Stopped: run the same command again to go on.", file=sys.stderr)
        return 130
    return 1 if outcome.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="the studies and what is finished")
    what.add_argument("--quick", action="store_true", help="some cells from nothing, into runs/book-quick")
    what.add_argument("--pages", action="store_true", help="only write docs/book/index.md")
    what.add_argument("--check", action="store_true", help="fail unless docs/book/index.md is what the ledgers say")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these studies")
    parser.add_argument("--fresh", type=Path, metavar="DIR", help="run from nothing; everything goes below DIR")
    parser.add_argument("--data-root", type=Path, help="where the data is; default: NEARKIN_DATA")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(given)
    if unknown := set(arguments.only) - {study.name for study in STUDIES}:
        parser.error(f"there is no study {min(unknown)!r}: see --list")
    if arguments.fresh and arguments.fresh.resolve() == REPOSITORY:
        parser.error("--fresh needs a directory other than the repository")
    if arguments.fresh and (arguments.list or arguments.quick or arguments.pages or arguments.check):
        parser.error(f"--fresh runs studies; for its list or pages set {VARIABLE}={arguments.fresh}")
    if arguments.only and (arguments.quick or arguments.pages or arguments.check):
        parser.error("--only chooses studies to run or to list: leave it out")
    if arguments.fresh and os.environ.get(VARIABLE, str(arguments.fresh.resolve())) != str(arguments.fresh.resolve()):
        parser.error(f"{VARIABLE} names another directory than --fresh: unset it")
    if arguments.data_root and not arguments.data_root.is_dir():
        parser.error(f"{arguments.data_root} is not a directory: say where the data is, or leave --data-root out")
    chosen = [study for study in STUDIES if not arguments.only or study.name in arguments.only]
    environment = dict(os.environ)
    if arguments.data_root:
        environment["NEARKIN_DATA"] = str(arguments.data_root.resolve())
    if arguments.list:
        list_studies(chosen)
        return 0
    if arguments.check:
        stale = stale_pages()
        for name in stale:
            print(f"docs/book/{name} is not what the ledgers say: run python studies/book/run.py --pages")
        return 1 if stale else 0
    if arguments.quick:
        return run_quick(environment)
    if arguments.pages:
        write_pages()
        return 0
    if arguments.fresh and VARIABLE not in os.environ:
        # Where things are kept is settled when modules are imported, so another process does it.
        os.environ[VARIABLE] = str(arguments.fresh.resolve())
        os.environ.update({key: value for key, value in environment.items() if key == "NEARKIN_DATA"})
        os.execv(sys.executable, [sys.executable, __file__, *(["--only", *arguments.only] if arguments.only else [])])
    outcome = run_studies(chosen, DOCS.parent, environment, again=bool(arguments.only))
    if not outcome.interrupted and not (outcome.failed and DOCS.parent != REPOSITORY):
        write_pages()
    return _told(outcome)


if __name__ == "__main__":
    sys.exit(main())
