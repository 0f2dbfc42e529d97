"""Messages that the page on troubles quotes are ones that nearkin has, so that a search for one finds it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
LEAST = 20  # characters of a message that are fixed; fewer would fit anything
COMPOSED = {
    "The loss became nan at step 2: lower training.lr or set training.clip; no checkpoint was written yet.": (
        "The loss became ",
        " at step ",
        "lower training.lr",
        " or set training.clip",
        "no checkpoint was written yet",
    )
}
"""Messages that are put together from several texts."""


def quoted():
    """Blocks of text, and the first column of tables where that is a sentence."""
    blocks = re.findall(r"^```text\n(.*?)\n```", PAGE, flags=re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    return [*blocks, *(cell for cell in cells if cell.endswith("."))]


@cache
def templates():
    """Every text of the package as its parts; None stands for what is put in."""
    found = []
    for file in (ROOT / "nearkin").rglob("*.py"):
        inside = set()  # parts of texts with gaps, which come after these
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                inside.update(map(id, node.values))
                found.append([part.value if isinstance(part, ast.Constant) else None for part in node.values])
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                found.append([node.value])
    return found


def fits(message, parts):
    """Whether a message is one of a template: its fixed parts are there in their order, and long enough."""
    if sum(len(part or "") for part in parts) < LEAST:
        return False
    if parts[-1] is not None and not message.endswith(parts[-1]):
        return False
    place = 0
    for number, part in enumerate(parts):
        if part is not None:
            last = number == len(parts) - 1
            found = len(message) - len(part) if last else message.find(part, place)
            if found < place or (number == 0 and found):
                return False
            place = found + len(part)
    return True


@cache
def texts():
    return {part for parts in templates() for part in parts if part}


def is_of_nearkin(message):
    if message in COMPOSED:
        return texts().issuperset(COMPOSED[message])
    return any(fits(message, parts) for parts in templates())


@pytest.mark.parametrize("message", quoted(), ids=lambda message: message[:40])
def test_a_quoted_message_is_in_the_source(message):
    assert is_of_nearkin(message)


def test_other_sentences_are_not():
    assert not is_of_nearkin("runs/a is there already: take another name.")
    assert not is_of_nearkin("There is no file or folder photos/: look again.")
    assert not is_of_nearkin("The loss became nan at step 2: lower the rate.")


def test_enough_is_quoted():
    assert len(quoted()) > 25
