"""Do the tests notice small faults? Mutants of the package, drawn by seed in proportion to lines, one at a time.

    python tools/mutants.py --list                    the drawn mutants; nothing is run
    python tools/mutants.py --commit 38e006d          run them in a worktree of this commit (hours); resumable
    python tools/mutants.py --near                    only the tests in the mutant's mirrored folder
    nohup python tools/mutants.py > /dev/null &       it lowers its own priority

A file is drawn in proportion to its lines, then one of its places that can be mutated. Places are in bodies of
functions; raised errors, warnings, f-strings, printed text and type hints are left alone. A mutant swaps a comparison,
an arithmetic operator, a boolean, or `and` and `or`; adds one to an integer; drops a `not`; returns None; or deletes an
augmented assignment. Some mutants change nothing that can be observed, so compare shares; do not aim at 100 %.

For `nearkin/a/b.py` the near tests are those in `tests/a`, the files that mention most of what `b.py` defines first. A
mutant is caught when a test fails that passes without it: a test that fails runs once more on the clean tree, and if it
fails there too, it is deselected from then on. A mutant whose tests exceed the time limit is recorded as `timeout` and
not counted as caught. Mutants that survive `--near` run again without it. The ledger (`--out`) has one JSON line per
mutant and per test that fails on the clean tree.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
MESSAGES = ("print", "warn", "debug", "info", "warning", "error", "exception", "echo", "cast")
"""Calls whose arguments are words for people, or types."""


@dataclass(frozen=True)
class Mutant:
    """One small fault: bytes `start` to `end` of a file become `after`."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int

    @property
    def key(self) -> str:
        return f"{self.path}:{self.start}:{self.kind}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def _mutable(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes below a function that may be mutated: no type hints, no messages, no decorators, no defaults."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children: list[ast.AST] = list(node.body)
    elif isinstance(node, ast.ClassDef):
        children = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    elif isinstance(node, ast.AnnAssign):
        children = [node.value] if node.value else []
    elif isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_message(node):
        children = []
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        if isinstance(child, ast.expr | ast.stmt):
            yield child
        yield from _mutable(child)


def _is_message(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in MESSAGES


def _changed(node: ast.expr, **fields: Any) -> str:
    """The source of an expression with other fields, in brackets so that it binds as before."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return f"({ast.unparse(other)})"


def _mutations(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, new source) of each mutation of one node."""
    match node:
        case ast.Compare(ops=[operator, *others]):
            yield "comparison", _changed(node, ops=[COMPARISONS[type(operator)](), *others])
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC:
            texts = (isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right))
            if not any(texts):
                yield "arithmetic", _changed(node, op=ARITHMETIC[type(operator)]())
        case ast.BoolOp(op=operator):
            yield "and/or", _changed(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield "boolean", str(not value)
        case ast.Constant(value=int(value)):
            yield "integer", str(value + 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return", "return None"
        case ast.AugAssign():
            yield "augmented", "pass"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def mutants_of(source: bytes, path: str) -> list[Mutant]:
    """All mutants of one file, by place."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    tree = ast.parse(source)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    found = set()
    for node in (inner for function in functions for inner in _mutable(function)):
        for kind, after in _mutations(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            found.add(Mutant(path, node.lineno, kind, source[start:end].decode(), after, start, end))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.kind))


def draw(root: Path, seed: int, count: int, under: str = "nearkin") -> list[Mutant]:
    """Different mutants of the files below `under`: a file in proportion to its lines, then a place in it."""
    files = [path.relative_to(root).as_posix() for path in sorted((root / under).rglob("*.py"))]
    lines = {path: (root / path).read_bytes().count(b"\n") for path in files}
    mutants: dict[str, list[Mutant]] = {}
    chance = random.Random(seed)
    drawn: list[Mutant] = []
    while len(drawn) < count and sum(lines.values()):
        path = chance.choices(list(lines), list(lines.values()))[0]
        if path not in mutants:
            mutants[path] = mutants_of((root / path).read_bytes(), path)
        if mutants[path]:
            drawn.append(mutants[path].pop(chance.randrange(len(mutants[path]))))
        else:
            del lines[path]
    return drawn


def near_tests(root: Path, path: str) -> str:
    """The test folder, or file, that mirrors a file of the package; "" if there is none."""
    parts = Path(path).with_suffix("").parts[1:]
    for depth in range(max(len(parts) - 1, 1), 0, -1):
        folder = Path("tests", *parts[:depth])
        for place in (folder, folder.with_name(f"test_{folder.name}.py")):
            if (root / place).exists():
                return place.as_posix()
    return ""


def run_tests(root: Path, targets: list[str], limit: float) -> tuple[int | None, list[str]]:
    """Exit code of pytest, None after `limit` seconds, and the tests that failed."""
    shutil.rmtree(root / ".hypothesis", ignore_errors=True)  # what one mutant failed on must not help with the next
    line = [sys.executable, "-m", "pytest", "-q", "-n0", "-rfE", "--no-header", "-p", "no:cacheprovider", *targets]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "1000"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            line, cwd=root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        lines = [text.split(" - ")[0].split(maxsplit=1) for text in output if text.startswith(("FAILED ", "ERROR "))]
    return code, [words[1].strip() for words in lines if len(words) == 2]


class Ledger:
    """One JSON line per finished mutant, appended at once."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path, self.commit = path, commit
        lines = path.read_text().splitlines() if path.exists() else []
        records = [record for record in map(json.loads, lines) if record["commit"] == commit]
        self.mutants = {record["key"]: record for record in records if "key" in record}
        self.fails_clean = [record["fails_clean"] for record in records if "fails_clean" in record]

    def write(self, record: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"commit": self.commit, **record}) + "\n")


def likely_first(root: Path, folder: str, path: str) -> list[str]:
    """The test files of a folder, those that mention most of what a module defines first; then the folder itself."""
    tree = ast.parse((root / path).read_bytes())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {Path(path).stem}
    counted = []
    for file in sorted((root / folder).rglob("test_*.py")):
        words = Counter(re.findall(r"\w+", file.read_text(encoding="utf-8")))
        counted.append((-sum(words[name] for name in names), file.relative_to(root).as_posix()))
    return [*(file for mentions, file in sorted(counted) if mentions), folder]


def first_failure(
    root: Path, mutant: Mutant, targets: list[str], limit: float, ledger: Ledger
) -> tuple[int | None, str]:
    """Exit code of the tests with a mutant, and the test that fails with it and passes without."""
    path = root / mutant.path
    source = path.read_bytes()
    while True:
        deselected = [f"--deselect={test}" for test in ledger.fails_clean]
        try:
            _write(path, mutant.apply(source))
            code, failed = run_tests(root, ["-x", *targets, *deselected], limit)
        finally:
            _write(path, source)
        if code in (None, 0, 5) or not failed:  # 5: no tests were found
            return code, ""
        if run_tests(root, failed[:1], limit)[0] == 0:
            return code, failed[0]
        if failed[0] in ledger.fails_clean:
            raise SystemExit(f"{failed[0]} fails on the clean tree and cannot be deselected.")
        ledger.fails_clean.append(failed[0])
        ledger.write({"fails_clean": failed[0]})


def try_mutant(
    root: Path, mutant: Mutant, ledger: Ledger, limits: tuple[float, float], *, near: bool
) -> dict[str, Any]:
    """Run the tests that could catch a mutant, the near ones first."""
    folder = near_tests(root, mutant.path)
    stages = [(likely_first(root, folder, mutant.path), folder, limits[0])] if folder else []
    if not near:
        stages.append((["tests", *([f"--ignore={folder}"] if folder else [])], "tests", limits[1]))
    outcome, by, start = "survived", "", time.perf_counter()
    for targets, name, limit in stages:
        code, failed = first_failure(root, mutant, targets, limit, ledger)
        if code not in (0, 5):
            outcome, by = ("timeout", name) if code is None else ("caught", failed or name)
            break
    seconds = round(time.perf_counter() - start, 1)
    return {"key": mutant.key, **asdict(mutant), "outcome": outcome, "by": by, "near": near, "seconds": seconds}


def _write(path: Path, source: bytes) -> None:
    """Write a module without leaving a compiled file that Python could take for it."""
    path.write_bytes(source)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def show(mutant: Mutant) -> str:
    before, after = (" ".join(text.split())[:60] for text in (mutant.before, mutant.after))
    return f"{mutant.path}:{mutant.line}  {mutant.kind}: {before}  ->  {after}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="HEAD", help="the tree to mutate and test; default: HEAD")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60, help="how many mutants; default: 60")
    parser.add_argument("--under", default="nearkin", help="draw from this folder only, for example nearkin/spaces")
    parser.add_argument("--near", action="store_true", help="run only the mirrored test folder")
    parser.add_argument("--near-limit", type=float, default=1200, help="seconds for the near tests; default: 1200")
    parser.add_argument("--limit", type=float, default=7200, help="seconds for the rest of the suite; default: 7200")
    parser.add_argument("--out", type=Path, default=ROOT / "tools" / "mutants.jsonl", help="ledger")
    parser.add_argument("--list", action="store_true", help="show the drawn mutants and run nothing")
    options = parser.parse_args()
    os.nice(19)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worktree is removed
    commit = _git("rev-parse", "--verify", f"{options.commit}^{{commit}}")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve() / "tree"
        _git("worktree", "add", "-q", "--detach", str(root), commit)
        try:
            drawn = draw(root, options.seed, options.count, options.under)
            if options.list:
                print(*map(show, drawn), sep="\n")
                return
            ledger = Ledger(options.out, commit)
            outcomes = []
            for number, mutant in enumerate(drawn, 1):
                record = ledger.mutants.get(mutant.key)
                if record is None or (record["outcome"] == "survived" and record["near"] and not options.near):
                    limits = (options.near_limit, options.limit)
                    record = try_mutant(root, mutant, ledger, limits, near=options.near)
                    ledger.write(record)
                outcomes.append(record["outcome"])
                print(f"{number}/{len(drawn)}  {record['outcome']}  {show(mutant)}", flush=True)
        finally:
            _git("worktree", "remove", "--force", str(root))
    late = f", {outcomes.count('timeout')} took too long" if "timeout" in outcomes else ""
    print(f"{outcomes.count('caught')} of {len(outcomes)} mutants caught{late}.")


if __name__ == "__main__":
    main()
