"""The tables of the page on coverage: every item of the documents and how to run it, from its YAML file."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any

import yaml

from generators.kept import DOCS
from generators.markdown import table

_FILE = DOCS / "methods" / "coverage.yaml"
_CODE = re.compile(r"`[^`]*`")
_CALLS = re.compile(r"\bnearkin(?:\.\w+)+")


@cache
def items() -> dict[str, list[dict[str, str]]]:
    """Document to its rows, as the file has them."""
    found: dict[str, list[dict[str, str]]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return found


def _document(name: str) -> str:
    """The rows of a document."""
    rows = [(row["item"], row["at"], _how(row), f"[{_title(row['page'])}]({row['page']})") for row in items()[name]]
    text = table(("item", "printed in", "how to run it", "page"), rows)
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), text)  # the site shows code as it is written


def _how(row: dict[str, Any]) -> str:
    """The commands, functions and recipes of a row, or why there are none."""
    parts = [f"recipe `{recipe}`" for recipe in row.get("recipe", "").split()]
    parts += [f"`{call}`" for call in dict.fromkeys(_CALLS.findall(row.get("python", "")))]
    parts += [f"`{row['command']}`"] if "command" in row else []
    parts += [f"`python {row['study']}`"] if "study" in row else []
    return "; ".join(parts) if parts else f"none: {row['none']}"


@cache
def _title(page: str) -> str:
    """What a page calls itself."""
    text = (_FILE.parent / page.partition("#")[0]).read_text(encoding="utf-8")
    return re.sub(r":\s*`.*|`", "", text.partition("\n")[0].removeprefix("# ")).strip()


def _counts() -> str:
    """How many items each document has, and how many of them have no way to be run."""
    rows = [
        (f"[{_NAMES[name]}](#{name})", len(rows), sum("none" in row for row in rows)) for name, rows in items().items()
    ]
    total = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))
    return table(("document", "items", "none"), [*rows, total])


_NAMES = {
    "distance": "On the significance of distance in machine learning",
    "prototypes": "Learning semantic similarities for prototypical classifiers",
    "generalize": "Novel optimization models to generalize deep metric learning",
    "adversary": "General discriminative features and class adversaries",
    "confidence": "Calibrated neighbourhood aware confidence",
}

TABLES = {"coverage": _counts, **{f"coverage_{name}": partial(_document, name) for name in _NAMES}}
