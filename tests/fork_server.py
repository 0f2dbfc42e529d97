"""Runs programs in processes that are forked from this one, which has imported what takes seconds to import.

Each line of the input is a JSON object: the code, its arguments, the files for what is printed, and the environment of
each of its processes. The answers are a line with their ids, and one with an id and an exit code for each that ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import suppress
from typing import Any

_SLOW = ("nearkin.cli.app", "nearkin.api", "nearkin.protocol", "kornia.augmentation", "lightning_fabric.strategies")
_SLOW += ("torch.utils.tensorboard", "pytorch_metric_learning.losses")


def _begin(job: dict[str, Any], environment: dict[str, str]) -> None:
    """Make this process the program's; return when that ends."""
    for number, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *job["arguments"]]
    exec(compile(job["code"], "<program>", "exec"), {"__name__": "__main__"})


def main() -> None:
    """Serve until the input ends."""
    for module in _SLOW:
        with suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        job, children = json.loads(line), []
        for environment in job["environments"]:
            children.append(os.fork())
            if not children[-1]:
                _begin(job, environment)
                return
        print(*children, flush=True)
        for _ in children:
            child, status = os.wait()
            print(child, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
