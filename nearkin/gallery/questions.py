"""What a question names: ids of items, and how many; checked before any store sees them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nearkin.confidence.checks import check_whole
from nearkin.errors import DataError

MOST = 2**31 - 1
"""More than any gallery holds."""

_HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")


def how_many(number: Any, name: str) -> int:
    """A whole number from 1 on; beyond what any gallery holds it is as good as that."""
    check_whole(number, name, 1)
    return min(int(number), MOST)


def is_id(id: object) -> bool:
    """Whether an item may have this id: any text of whole characters."""
    return isinstance(id, str) and not _HALF_CHARACTER.search(id)


def check_id(id: Any) -> str:
    """The id of an item that may be there or not."""
    if not is_id(id):
        shown = repr(id[:40]) if isinstance(id, str) else f"a {type(id).__name__}"
        raise DataError(f"The id of an item is a text, not {shown}.")
    return str(id)


def ids_of(ids: Any) -> list[str]:
    """Ids from one or several."""
    if isinstance(ids, str):
        return [check_id(ids)]
    if isinstance(ids, bytes | Mapping) or not isinstance(ids, Iterable):
        raise DataError(f"Give the id of an item or a list of ids, not a {type(ids).__name__}.")
    return [check_id(id) for id in ids]
