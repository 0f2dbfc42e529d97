"""How commands end: their exit codes, and errors as one sentence."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand

from nearkin.errors import NearkinError

ERROR = 1
"""It could not be done; standard error says why in one sentence."""

NO = 3
"""It was done, and the answer is no, or cannot be given: a query is unknown, two samples are not the same."""

INTERRUPTED = 130
"""Ctrl-C ended it, as shells report that; what was done is saved."""

CODES = "Exit codes: 0 done, 1 error (one sentence on standard error), 2 wrong usage"


class GalleryCommand(TyperCommand):
    """A command whose errors become one sentence and exit code 1, so that 2 is left for wrong usage."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options["epilog"] = options.get("epilog") or f"{CODES}."
        super().__init__(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except NearkinError as error:
            print(f"nearkin: {error}", file=sys.stderr)
            raise typer.Exit(ERROR) from error
