"""Options and arguments that commands share, exit codes, and how errors are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nearkin.errors import NearkinError

DATA_HELP = (
    "A folder with one folder per class, a CSV or Parquet manifest or its URL, a zip, a Hugging Face data set "
    "directory, or a catalogue name (see `nearkin data list`)."
)

RunOrModel = Annotated[Path, typer.Argument(help="A run directory, or a model file.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the numbers as JSON.", dir_okay=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting, e.g. training.max_steps=200; repeatable.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Directory of catalogue data; default: $NEARKIN_DATA, or the cache."),
]
Engine = Annotated[
    str, typer.Option("--engine", help="Inference engine: torch, or onnx (ONNX Runtime, faster on a CPU).")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bars.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip unreadable files and classes with one item instead of stopping.")
]
SkipUnreadable = Annotated[bool, typer.Option("--skip-bad", help="Skip unreadable files instead of stopping.")]
GalleryPath = Annotated[
    str,
    typer.Argument(
        metavar="GALLERY", help="A gallery's directory, a Milvus Lite file (.db), or milvus://host:port/collection."
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="The gallery's model, if the gallery does not store it: a run or a model file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where", help="Only items that match this condition, e.g. \"price < 20 and colour in ('red', :other)\"."
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Value of :NAME in --where; repeatable."),
]
Items = Annotated[
    str | None,
    typer.Argument(
        metavar="ITEMS",
        help="Data in any format that `nearkin train` accepts, or a folder of loose files; for vectors, a .parquet "
        "file or a folder from `nearkin embed --shards`.",
    ),
]
Vectors = Annotated[
    Path | None, typer.Option("--vectors", help="Your own vectors: a .npy file of shape (n, d).", dir_okay=False)
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        help="Labels of the --vectors: a text file, one per line, or a .csv with label and optionally id and metadata.",
        dir_okay=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="COLUMN=VALUE", help="Only rows of ITEMS with this value; repeatable."),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number to show.")]
IndexParameters = Annotated[
    list[str] | None,
    typer.Option("--index-param", metavar="NAME=VALUE", help="Parameter of a Milvus index, e.g. M=16; repeatable."),
]


def parse_value(text: str) -> Any:
    """A text parsed as JSON if possible, else the text itself; NaN and infinities are not JSON."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError:
        return text


def parse_assignments(assignments: Sequence[str] | None, option: str) -> dict[str, Any]:
    """Names and values from texts such as `price=20`; values are parsed as JSON if possible."""
    return {name: parse_value(value) for name, value in split_pairs(assignments, option)}


def split_pairs(assignments: Sequence[str] | None, option: str) -> Iterator[tuple[str, str]]:
    """Names and values from texts such as `price=20`."""
    for assignment in assignments or ():
        name, sign, value = assignment.partition("=")
        if not (sign and name.strip()):
            raise typer.BadParameter(f"Write name=value, not '{assignment}'.", param_hint=option)
        yield name.strip(), value


EXIT_ERROR = 1
"""The command failed; standard error says why in one sentence."""

EXIT_NO = 3
"""The command succeeded and the answer is no or undecided: a query is unknown, two samples differ."""

EXIT_INTERRUPTED = 130
"""Stopped by Ctrl-C; progress is saved."""

EXIT_CODES = "Exit codes: 0 done, 1 error (one sentence on standard error), 2 wrong usage"


class GalleryCommand(TyperCommand):
    """A command whose errors become one sentence and exit code 1; code 2 means wrong usage."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help, which says what exit codes mean."""
        self.epilog = self.epilog or f"{EXIT_CODES}."
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except NearkinError as error:
            print(f"nearkin: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_ERROR) from error
