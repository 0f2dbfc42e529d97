"""The rows of the table of features: what is asked of every toolkit, theme by theme.

A cell is a probe (`peers_probes.py`). None says that the row is no business of that toolkit: torchmetrics measures and
does not train. Judgements are for what code cannot decide, and carry the page they rest on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from peers_packages import TOOLKITS
from peers_probes import Probe, ask
from peers_rows_training import TRAINING
from peers_rows_using import USING


@dataclass(frozen=True)
class Row:
    """One feature.

    Args:
        theme: the group of rows it is in.
        what: the feature, in a few words.
        cells: a probe for each of `TOOLKITS`, or None.
    """

    theme: str
    what: str
    cells: tuple[Probe | None, ...]


def rows() -> list[Row]:
    """Every row, in the order of the table."""
    themes: Iterable[tuple[str, Any]] = [*TRAINING.items(), *USING.items()]
    return [Row(theme, what, tuple(cells)) for theme, group in themes for what, *cells in group]


def features() -> list[dict[str, Any]]:
    """The answers of what is installed, as plain values."""
    return [
        {
            "theme": row.theme,
            "what": row.what,
            "cells": {
                package.name: None if probe is None else ask(probe, package.module).as_dict()
                for package, probe in zip(TOOLKITS, row.cells, strict=True)
            },
        }
        for row in rows()
    ]
