"""The state of the tree in one table: how large it is, how many doors it has, and how many files a command enters.

    python tools/house.py                       this tree
    python tools/house.py --against 38e006d     this tree beside another commit, by the same definitions
    python tools/house.py --names               also list the modules and class names behind the counts
    python tools/house.py --static              without running commands
    python tools/house.py --tests               also time `make test`, of this tree only

Read from the source, all `*.py` below `nearkin/`:

- lines: as `wc -l` counts them. Statements: every `ast.stmt`, at any depth.
- one-importer modules: modules, other than `__init__`, that exactly one other module imports. Imports count wherever
  they stand. A name imported from a package counts for the module that the package's `__init__` has it from, and what
  an `__init__` itself imports does not count. From its own folder: the importer is in the same folder.
- not registered: one-importer modules without those that file something in a registry when imported, by a top-level
  call or decorator `register...`. The losses are among them, although `objectives/section.py`, not an `__init__`,
  imports them.
- headers: lines up to the last of a module's docstring and the imports right after it, blank lines included, as a share
  of all lines. The headers of `__init__` files are left out, because re-exporting is their content.
- private top-level names: functions and classes that start with `_` (module-level `__getattr__` too), not constants.
- duplicate class names: names of classes, at any depth, that are defined more than once.

Traced: a file is entered when one of its functions is called. Module and class bodies do not count, nor do functions
called while a module of the package is being imported. All threads are traced, worker processes are not. The commands
run on coloured PNGs with a small network trained for a few steps: `train`, `audit --suite retrieval`, `identify` of one
file in a calibrated gallery, and one `POST /v1/identify` to a server that has already answered several.

At 38e006d the issue "A smaller house" has the same numbers but for three: 88 files for `train` (93 here), 101 for
`audit` (99) and 58 for the POST (59). It does not say on which data and network they were traced. It also calls
`Given` a duplicate class; only one class has that name. "12 %" of headers is 12.3 % here.
"""

from __future__ import annotations

import argparse
import ast
import colorsys
import http.client
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tools" / "mutants.jsonl"
PACKAGE = "nearkin"
TRAINING = ("backbone=conv4", "pretrained=false", "freeze=null", "cache=false", "size=16")
WARM_UP = 8
"""Requests before the one that is traced."""


@dataclass(frozen=True)
class Module:
    """A file of the package and what is in it."""

    path: Path
    tree: ast.Module
    lines: int

    @property
    def is_init(self) -> bool:
        return self.path.name == "__init__.py"


def read_package(root: Path) -> dict[str, Module]:
    """The modules below `root/nearkin` by dotted name."""
    modules = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source = path.read_bytes()
        modules[name] = Module(path, ast.parse(source), source.count(b"\n"))
    return modules


def _imported(modules: dict[str, Module], name: str) -> Iterator[tuple[str, str, str]]:
    """(module, name in it or "", name here) of all that module `name` imports from the package."""
    module = modules[name]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", "") for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if module.is_init else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                if f"{base}.{alias.name}" in modules:
                    yield f"{base}.{alias.name}", "", alias.asname or alias.name
                elif base in modules:
                    yield base, alias.name, alias.asname or alias.name


def importers(modules: dict[str, Module]) -> dict[str, set[str]]:
    """For each module, those other than `__init__` files that import it; re-exported names count for their home."""
    homes = {
        (name, here): (target, there)
        for name, module in modules.items()
        if module.is_init
        for target, there, here in _imported(modules, name)
        if there
    }
    found: dict[str, set[str]] = defaultdict(set)
    for name, module in modules.items():
        if module.is_init:
            continue
        for imported in _imported(modules, name):
            place = imported[:2]
            passed = {place}
            while place in homes and homes[place] not in passed:
                place = homes[place]
                passed.add(place)
            if place[0] != name:
                found[place[0]].add(name)
    return found


def one_importer(modules: dict[str, Module]) -> dict[str, str]:
    """Modules that exactly one other imports, with that one."""
    found = importers(modules)
    return {name: min(found[name]) for name in modules if len(found[name]) == 1 and not modules[name].is_init}


def registers(tree: ast.Module) -> bool:
    """Does importing this module file something in a registry?"""
    calls = [item for statement in tree.body for item in getattr(statement, "decorator_list", [])]
    calls += [statement.value for statement in tree.body if isinstance(statement, ast.Expr)]
    called = [ast.unparse(call).split("(")[0] for call in calls if not isinstance(call, ast.Constant)]
    return any(name.split(".")[-1].startswith("register") for name in called)


def header_lines(tree: ast.Module) -> int:
    """Lines up to the last of the docstring and the imports right after it."""
    last = 0
    for place, statement in enumerate(tree.body):
        docstring = place == 0 and ast.get_docstring(tree) is not None
        typing_only = isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING")
        if not (docstring or typing_only or isinstance(statement, ast.Import | ast.ImportFrom)):
            break
        last = statement.end_lineno or last
    return last


def duplicate_classes(modules: dict[str, Module]) -> dict[str, int]:
    """Class names that are defined more than once, and how often."""
    nodes = (node for module in modules.values() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    return {name: count for name, count in sorted(Counter(node.name for node in nodes).items()) if count > 1}


def gerunds(modules: dict[str, Module]) -> list[str]:
    """Modules that are files named `*ing.py`."""
    return [name for name, module in modules.items() if module.path.stem.endswith("ing")]


def static_rows(modules: dict[str, Module]) -> dict[str, str]:
    """The rows of the table that are read from the source."""
    trees = [module.tree for module in modules.values()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    lines = sum(module.lines for module in modules.values())
    headers = sum(header_lines(module.tree) for module in modules.values() if not module.is_init)
    alone = one_importer(modules)
    decorators = [ast.unparse(item) for node in nodes if isinstance(node, ast.ClassDef) for item in node.decorator_list]
    private = [item for tree in trees for item in tree.body if isinstance(item, definitions) and item.name[0] == "_"]
    near = [name for name, importer in alone.items() if modules[name].path.parent == modules[importer].path.parent]
    return {
        "modules": f"{len(modules):,}",
        "lines": f"{lines:,}",
        "statements": f"{sum(isinstance(node, ast.stmt) for node in nodes):,}",
        "one-importer modules": f"{len(alone):,}",
        "  from their own folder": f"{len(near):,}",
        "  not registered": f"{sum(not registers(modules[name].tree) for name in alone):,}",
        "headers": f"{headers / max(lines, 1):.1%}",
        "duplicate class names": f"{len(duplicate_classes(modules)):,}",
        "gerund files": f"{len(gerunds(modules)):,}",
        "private top-level names": f"{len(private):,}",
        "dataclasses": f"{sum(item.split('(')[0].split('.')[-1] == 'dataclass' for item in decorators):,}",
    }


def is_entered(frame: FrameType, package: str) -> bool:
    """Is this a call of a function of the package, and not part of an import?"""
    code = frame.f_code
    if not code.co_filename.startswith(package) or not code.co_filename.endswith(".py"):
        return False
    if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class
        return False
    above = frame.f_back
    while above is not None:
        if above.f_code.co_name == "<module>" and above.f_code.co_filename.startswith(package):
            return False
        above = above.f_back
    return True


def trace(out: Path, root: Path, command: list[str], picture: str) -> None:
    """Run a `nearkin` command in this process and write the files it entered; with a picture, those of a warm POST."""
    package = f"{root / PACKAGE}{os.sep}"
    entered: set[str] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename not in entered and is_entered(frame, package):
            entered.add(frame.f_code.co_filename)

    def ask() -> None:
        edge, kind = b"--edge", "multipart/form-data; boundary=edge"
        head = b'\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
        body = edge + head + Path(picture).read_bytes() + b"\r\n" + edge + b"--\r\n"
        answered = 0
        while answered <= WARM_UP:
            entered.clear()
            connection = http.client.HTTPConnection("127.0.0.1", int(command[-1]), timeout=60)
            try:
                connection.request("POST", "/v1/identify", body, {"Content-Type": kind})
                answered += connection.getresponse().status == 200
            except OSError:
                pass  # the server is still starting
            time.sleep(0.5)  # what the server does after it has answered counts too
        out.write_text(json.dumps(sorted(entered)))
        os._exit(0)

    threading.settrace(look)
    sys.settrace(look)
    if picture:
        threading.Thread(target=ask, daemon=True).start()
    from nearkin.cli import main as run

    if not inspect.getfile(run).startswith(package):
        sys.exit(f"Traced {inspect.getfile(run)}, not the package below {root}.")
    sys.argv = [PACKAGE, *command]
    try:
        run()
    finally:
        sys.settrace(None)
        out.write_text(json.dumps(sorted(entered)))


def make_pictures(folder: Path, *, classes: int = 10, items: int = 12) -> Path:
    """A folder of coloured PNGs, one folder per class; returns one of them."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(classes):
        colour = 200 * np.array(colorsys.hsv_to_rgb(number / classes, 0.9, 1.0)) + 25
        home = folder / f"class{number}"
        home.mkdir(parents=True)
        for item in range(items):
            pixels = np.clip(colour + generator.normal(0, 12, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(home / f"{item}.png")
    return folder / "class1" / "1.png"


def traced_rows(root: Path) -> dict[str, str]:
    """How many files of the package below `root` each command enters."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        picture = make_pictures(place / "data")
        environment = {**os.environ, "PYTHONPATH": str(root), "HOME": name}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        settings = [part for item in TRAINING for part in ("--set", f"model.{item}")]

        def run(*command: str, post: str = "") -> str:
            out = place / "entered.json"
            line = [sys.executable, __file__, "--trace", str(out), str(root), post, *command]
            done = subprocess.run(line, cwd=place, env=environment, capture_output=True, text=True, timeout=1800)
            if done.returncode not in (0, 3):  # 3: identify found an unknown item
                raise SystemExit(f"nearkin {' '.join(command)} failed in {root}:\n{done.stdout}{done.stderr}")
            return f"{len(json.loads(out.read_text())):,}"

        rows = {"files: train": run("train", "data", "--out", "run", *settings, "--set", "training.max_steps=6", "-q")}
        rows["files: audit, retrieval"] = run("audit", "run", "--suite", "retrieval", "-q")
        run("gallery", "create", "gallery", "data", "--model", "run", "-q")
        run("gallery", "recalibrate", "gallery", "-q")
        rows["files: identify"] = run("identify", "gallery", str(picture))
        rows["files: POST /v1/identify"] = run("serve", "gallery", "--port", port, post=str(picture))
        return rows


def mutant_rows(ledger: Path, commit: str, *, nearest: bool) -> dict[str, str]:
    """How many mutants of this commit the tests caught; with `nearest`, else of the commit measured last."""
    if not ledger.exists():
        return {}
    records = [json.loads(line) for line in ledger.read_text().splitlines()]
    records = [record for record in records if "outcome" in record]
    if nearest and records and not any(record["commit"] == commit for record in records):
        commit = records[-1]["commit"]
    outcomes = {record["key"]: record["outcome"] for record in records if record["commit"] == commit}
    caught = sum(outcome == "caught" for outcome in outcomes.values())
    return {"mutants caught": f"{caught} of {len(outcomes)} ({commit[:7]})"} if outcomes else {}


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A temporary worktree of a commit."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(place), commit], cwd=ROOT, check=True)
        try:
            yield place.resolve()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def table(columns: dict[str, dict[str, str]]) -> str:
    """Columns of rows as text; a row that a column lacks is a dash."""
    names = list(dict.fromkeys(row for rows in columns.values() for row in rows))
    lines = [["", *columns], *([name, *(rows.get(name, "-") for rows in columns.values())] for name in names)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def main() -> None:
    if sys.argv[1:2] == ["--trace"]:
        trace(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[5:], picture=sys.argv[4])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="also measure this commit")
    parser.add_argument("--names", action="store_true", help="list what is behind the counts, of this tree")
    parser.add_argument("--static", action="store_true", help="do not run commands")
    parser.add_argument("--tests", action="store_true", help="time `make test` of this tree")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="results of tools/mutants.py")
    options = parser.parse_args()

    def commit_of(name: str) -> str:
        line = ["git", "rev-parse", "--verify", f"{name}^{{commit}}"]
        return subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    def measure(root: Path, commit: str) -> dict[str, str]:
        traced = {} if options.static else traced_rows(root)
        mutants = mutant_rows(options.ledger, commit, nearest=root == ROOT)
        return {**static_rows(read_package(root)), **traced, **mutants}

    columns = {"this tree": measure(ROOT, commit_of("HEAD"))}
    if options.tests:
        start = time.perf_counter()
        code = subprocess.run(["make", "test"], cwd=ROOT).returncode
        columns["this tree"]["make test"] = f"{time.perf_counter() - start:.0f} s{' (failed)' if code else ''}"
    if options.against:
        with checkout(options.against) as root:
            columns[options.against] = measure(root, commit_of(options.against))
    print(table(columns))
    if options.names:
        modules = read_package(ROOT)
        print("\nOne importer:", *(f"{name} <- {by}" for name, by in one_importer(modules).items()), sep="\n  ")
        print("\nDuplicate class names:", *duplicate_classes(modules), "\nGerund files:", *gerunds(modules), sep="\n  ")


if __name__ == "__main__":
    main()
