"""From the gallery's values to JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import Response

from nearkin.gallery.values import Item, Match, Neighbour, Stats, Verification

# A path from the root, the home, the folder above or a drive, a share, or a file address; not the slash of a fraction
# or of a web address.
_PATH = re.compile(
    r"""
    (?: file:/*
      | (?<![\w.~/\\:]) (?: ~\w* | \.{1,2} )? /+
      | (?<=:) / (?!/)
      | (?<![\w.~/\\]) (?: [A-Za-z]: [\\/] | \\\\ | (?: ~\w* | \.{1,2} ) \\ )
    )
    [^\s'",;<>()\[\]{}|]+
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MOST_CLASSES = 1000


def json_response(document: Any, status: int = 200) -> Response:
    """A document as a response."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, media_type="application/json")


def item_answer(item: Item) -> dict[str, Any]:
    """An item; its source stays here, it may be a path."""
    return {
        "id": item.id,
        "label": item.label,
        "metadata": item.metadata,
        "added": item.added,
        "thumbnail": thumbnail_address(item),
    }


def thumbnail_address(item: Item) -> str | None:
    """Where its small picture is."""
    return f"/v1/items/{quote(item.id, safe='')}/thumbnail" if item.thumbnail else None


def neighbour_answers(neighbours: Sequence[Neighbour]) -> list[dict[str, Any]]:
    """Neighbours of a query."""
    return [
        {
            "id": near.item.id,
            "label": near.item.label,
            "distance": near.distance,
            "metadata": near.item.metadata,
            "thumbnail": thumbnail_address(near.item),
        }
        for near in neighbours
    ]


def match_answer(match: Match, place: tuple[float, float] | None) -> dict[str, Any]:
    """What a query is."""
    return {
        "label": match.label,
        "probability": match.probability,
        "known": match.known,
        "reason": match.reason,
        "candidates": [{"label": one.label, "probability": one.probability} for one in match.candidates],
        "neighbours": neighbour_answers(match.neighbours),
        "place": None if place is None else {"x": place[0], "y": place[1]},
    }


def verification_answer(verification: Verification) -> dict[str, Any]:
    """Whether two samples are of one class."""
    return {part: getattr(verification, part) for part in verification.__dataclass_fields__}


def stats_answer(stats: Stats) -> dict[str, Any]:
    """What is in the gallery; of very many classes the largest."""
    return {
        "items": stats.items,
        "unlabelled": stats.unlabelled,
        "classes": dict(list(stats.classes.items())[:_MOST_CLASSES]),
        "class_count": len(stats.classes),
        "generation": stats.generation,
        "index": stats.index,
        "size": stats.size,
        "notes": plain(stats.notes),
    }


def plain(value: Any) -> Any:
    """Any document in JSON's own types: what is not finite becomes null, and of a path only its last name is told."""
    if isinstance(value, Mapping):
        return {_pathless(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return _pathless(value)
    if value is None or isinstance(value, bool | int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return plain(str(value))
    return number if math.isfinite(number) else None


def _pathless(text: str) -> str:
    """A text without the folders of the paths in it; one that begins with a path is taken for a path as a whole."""
    if _PATH.match(text):
        return _last_name(text)
    return _PATH.sub(lambda found: _last_name(found[0]), text)


def _last_name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
