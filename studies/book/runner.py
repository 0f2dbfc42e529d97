"""Running studies one after the other: what is finished is left, what fails is told at the end, Ctrl-C stops."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from studies.book.catalogue import Study
from studies.places import REPOSITORY

_INTERRUPTED = (130, -signal.SIGINT)
_GRACE = 5.0
"""Seconds that a study has to stop by itself: the terminal tells it, too."""


@dataclass
class Outcome:
    """How a run of studies ended.

    Attributes:
        failed: study to why.
        finished: those that ran to their end.
        skipped: those that had nothing to do.
        interrupted: whether it was stopped.
    """

    failed: dict[str, str] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    interrupted: bool = False


def run_studies(studies: Sequence[Study], root: Path, environment: Mapping[str, str], again: bool = False) -> Outcome:
    """Run every study whose ledger lacks cells.

    Args:
        studies: in their order.
        root: of the tree where their ledgers are.
        environment: of the processes.
        again: run finished ones too; they find out themselves what is missing.
    """
    outcome = Outcome()
    for number, study in enumerate(studies, start=1):
        if study.finished(root) and not again:
            outcome.skipped.append(study.name)
            continue
        cells = f"{len(study.lines(root))} of {study.cells} cells finished"
        print(f"[{number}/{len(studies)}] {study.name}: {study.command} ({cells})", flush=True)
        code = _run(study.command, environment)
        if code in _INTERRUPTED:
            outcome.interrupted = True
            break
        if code:
            outcome.failed[study.name] = f"{study.command} ended with code {code}"
        elif not study.finished(root):
            outcome.failed[study.name] = f"only {len(study.lines(root))} of {study.cells} cells are there"
        else:
            outcome.finished.append(study.name)
    if outcome.skipped:
        print(f"{len(outcome.skipped)} of {len(studies)} studies were finished before.", flush=True)
    return outcome


def _run(command: str, environment: Mapping[str, str]) -> int:
    """The exit code of a command; 130 if we were interrupted."""
    words = shlex.split(command)
    program = [sys.executable, *words[1:]] if words[0] == "python" else words
    child = subprocess.Popen(program, cwd=REPOSITORY, env=dict(environment))
    try:
        return child.wait()
    except KeyboardInterrupt:
        for stop in (lambda: None, lambda: child.send_signal(signal.SIGINT), child.kill):
            stop()
            try:
                child.wait(_GRACE)
                break
            except subprocess.TimeoutExpired:
                continue
        return 130
