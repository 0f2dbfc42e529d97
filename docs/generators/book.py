"""The pages of the book of results: one for each document, from its claims and the ledgers, with a picture."""

from __future__ import annotations

from functools import cache


@cache
def made() -> dict[str, str | bytes]:
    """Path in the docs to the text of a page or the bytes of a picture; what the repository keeps is left out.

    Made once: `mkdocs serve` builds again and again.
    """
    from studies.book.pages import INDEX, PICTURE, look_up, pages
    from studies.book.picture import pictures
    from studies.claims import documents
    from studies.places import REPOSITORY

    found = look_up(documents())
    drawn = pictures(found)
    texts = pages(found, REPOSITORY / "docs", drawn)
    return {
        **{f"book/{name}": text for name, text in texts.items() if name != INDEX},
        **{f"images/{name}": picture for name, picture in drawn.items() if name != PICTURE},
    }
