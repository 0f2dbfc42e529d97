"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Where catalogue data is found; default: the NEARKIN_DATA setting."),
]
Engine = Annotated[
    str, typer.Option("--engine", help="What runs the model: torch, or onnx (ONNX Runtime, faster on a CPU).")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Draw no progress bars.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out unreadable files and one-item classes instead of stopping.")
]
