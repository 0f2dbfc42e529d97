"""Calls of the scripts in `benchmarks/` and `studies/`: their own parsers read the arguments, and nothing is run."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from unittest import mock

from .pages import ROOT


class Parsed(Exception):
    """The arguments of a script were understood."""


def check_calls(script: str, calls: Sequence[Sequence[str]]) -> None:
    """Refuse calls of a script that does not exist, or does not take what it is given.

    Args:
        script: its path in the repository.
        calls: the words after it, for each call.
    """
    path = ROOT / script
    if not path.is_file():
        raise ValueError(f"there is no {script}")
    if "argparse" not in path.read_text(encoding="utf-8"):
        if any(calls):
            raise ValueError(f"{script} takes no arguments, and is given {calls}")
        return
    really = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, args: object = None, namespace: object = None) -> None:
        for words in calls:
            really(self, list(words))
        raise Parsed

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parsed),
        mock.patch.object(sys, "argv", [script]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Parsed:
            return
        except SystemExit as stop:
            raise ValueError(f"{script} does not take one of {[' '.join(words) for words in calls]}") from stop
    raise ValueError(f"{script} ends without reading its arguments")
