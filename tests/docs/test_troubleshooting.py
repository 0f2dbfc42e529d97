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


def quoted():
    """Blocks of text, and the first column of tables where that is a sentence."""
    blocks = re.findall(r"^```text\n(.*?)\n```", PAGE, flags=re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| `([^`]+)` \|", PAGE, flags=re.MULTILINE)
    return [*blocks, *(cell for cell in cells if cell.endswith("."))]


@cache
def templates():
    """Every text of the package that could be a message, as its parts; None stands for what is put in."""
    found = []
    for file in (ROOT / "nearkin").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            if sum(len(part or "") for part in parts) >= LEAST:
                found.append(parts)
    return found


def fits(message, parts):
    """Whether a message begins with a template: its fixed parts are there in their order."""
    place = 0
    for number, part in enumerate(parts):
        if part is not None:
            found = message.find(part, place)
            if found < 0 or (number == 0 and found):
                return False
            place = found + len(part)
    return True


def is_of_nearkin(message):
    return any(fits(message, parts) for parts in templates())


@pytest.mark.parametrize("message", quoted(), ids=lambda message: message[:40])
def test_a_quoted_message_is_in_the_source(message):
    assert is_of_nearkin(message)


def test_other_sentences_are_not():
    assert not is_of_nearkin("runs/a is there already: take another name.")
    assert not is_of_nearkin("The loss became nan at step 2: lower the rate.")


def test_enough_is_quoted():
    assert len(quoted()) > 25
