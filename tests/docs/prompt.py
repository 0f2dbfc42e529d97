"""A shell in which `nearkin` costs no new process that imports PyTorch.

bash runs a block as it stands: quotes, loops, pipes, patterns and exit codes are its own. Its `nearkin` is a small
client that hands its words to the test's own process, which runs the real command there. Beside it lie stand-ins for
programs that would reach out of the scratch directory: `torchrun` (its own parser, then one process), `curl` (the real
one, sent to the service of the page), `pip`, `make` and `python` (they only look whether what is asked for exists).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from .pages import ROOT
from .scripts import check_calls

_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    line.sendall(json.dumps([{program!r}, sys.argv[1:], dict(os.environ)]).encode() + b"\\n")
    answer = json.loads(line.makefile("rb").read())
sys.stdout.write(answer[1]), sys.stdout.flush(), sys.stderr.write(answer[2]), sys.exit(answer[0])
"""
_CURL = """#!/bin/sh
exec {curl} --silent --show-error --fail-with-body --connect-to "::127.0.0.1:$(cat {port})" "$@"
"""
_STRICT = ("-uEo", "pipefail", "-c", """trap 'code=$?; [ $code -eq 3 ] || exit $code' ERR; eval "$0" """)
"""The first failure ends a script, but for 3, which says that it was done and the answer is no."""
PORT = 8765
"""Where `nearkin serve` listens unless it is told otherwise."""
_PASSED_ON = ("NEARKIN_", "SLURM_", "JOB_COMPLETION_INDEX")


class Prompt:
    """Runs shell blocks in the current directory.

    Args:
        unreachable: beginnings of words, such as "milvus://", whose commands are parsed and not run.
        trained: a folder that keeps what `run(…, once=True)` trains.
    """

    def __init__(self, unreachable: tuple[str, ...] = (), trained: Path = Path("trained")) -> None:
        self.unreachable = unreachable
        self.trained = trained
        self.parsed_only: list[list[str]] = []
        self.port: int | None = None
        self._once = False
        self._service: tuple[Any, threading.Thread] | None = None
        self._bin = Path(tempfile.mkdtemp(prefix="nk-"))
        self._line = socket.socket(socket.AF_UNIX)
        self._line.bind(str(self._bin / "line"))
        self._line.listen(64)
        for program in ("nearkin", "torchrun", "pip", "make", "python"):
            self._write(
                program, _CLIENT.format(python=sys.executable, address=str(self._bin / "line"), program=program)
            )
        self._write("curl", _CURL.format(curl=shutil.which("curl") or "curl", port=self._bin / "port"))

    def close(self) -> None:
        """Stop what was started."""
        self.stop_service()
        self._line.close()
        shutil.rmtree(self._bin)

    def _write(self, program: str, text: str) -> None:
        (self._bin / program).write_text(text, encoding="utf-8")
        (self._bin / program).chmod(0o755)

    def run(self, script: str, *, once: bool = False) -> tuple[int, str, str]:
        """Exit code, output and errors of a script for bash, which ends at the first command that fails.

        With `once`, a run that the same words trained on the same files before is copied instead.
        """
        self._once = once
        environment = os.environ | {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                ["bash", *_STRICT, script],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
            try:
                while process.poll() is None:
                    if select.select([self._line], [], [], 0.01)[0]:
                        with self._line.accept()[0] as caller:
                            program, words, given = json.loads(caller.makefile("rb").readline())
                            caller.sendall(json.dumps(self._answer(program, words, given)).encode())
            finally:
                process.kill()
                process.wait()
            out.seek(0), err.seek(0)
            return process.returncode, out.read().decode(), err.read().decode()

    def _answer(self, program: str, words: list[str], given: dict[str, str]) -> tuple[int, str, str]:
        before = dict(os.environ)
        os.environ.update({name: value for name, value in given.items() if name.startswith(_PASSED_ON)})
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = getattr(self, f"_{program}")(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else _said(stop.code, err)
        except Exception:
            code = _said(traceback.format_exc(), err)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return code, out.getvalue(), err.getvalue()

    def _nearkin(self, words: list[str]) -> int:
        from nearkin.cli import main

        if any(word.startswith(self.unreachable) for word in words if self.unreachable):
            parse(words)
            self.parsed_only.append(words)
            return 0
        if words[:1] == ["serve"]:
            return self._serve(words)
        if self._once and words[0] == "train":
            return self._train_once(words)
        with _arguments(["nearkin", *words]):
            main()
        return 0

    def _train_once(self, words: list[str]) -> int:
        """Train, or copy the run that the same words trained on the same files before."""
        from nearkin.cli import main

        out = words[words.index("--out") + 1]
        files = sorted((str(file), file.stat().st_size) for file in Path(words[1]).rglob("*"))
        asked = json.dumps([[word for word in words if word != out], files])
        kept = self.trained / hashlib.sha256(asked.encode()).hexdigest()
        if kept.is_dir():
            shutil.copytree(kept, out)
            return 0
        with _arguments(["nearkin", *words]):
            try:
                main()
            except SystemExit as stop:
                if stop.code:
                    raise
        shutil.copytree(out, kept)
        return 0

    def _torchrun(self, words: list[str]) -> int:
        from torch.distributed.run import get_args_parser

        found = get_args_parser().parse_args(words)
        if not (found.module and found.training_script == "nearkin"):
            raise SystemExit("torchrun is to be given  -m nearkin")
        return self._nearkin(found.training_script_args)

    def _pip(self, words: list[str]) -> int:
        """Look whether the extras that are asked for exist."""
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for word in words[1:]:
            if word.startswith("-") or (ROOT / word).is_file():
                continue
            name, _, extras = word.rstrip("]").partition("[")
            missing = set(extras.split(",")) - {""} - set(project["optional-dependencies"])
            if words[0] != "install" or name not in (project["name"], ".") or missing:
                raise SystemExit(f"pip {' '.join(words)}: no such extras ({missing}), or another package than ours")
        return 0

    def _python(self, words: list[str]) -> int:
        """Let a benchmark read its arguments; `-m nearkin` is the command itself."""
        if words[:2] == ["-m", "nearkin"]:
            return self._nearkin(words[2:])
        check_calls(words[0], [words[1:]])
        return 0

    def _make(self, words: list[str]) -> int:
        """Let make say what it would do."""
        return subprocess.run(["make", "-n", "-C", ROOT, *words], capture_output=True).returncode

    def _serve(self, words: list[str]) -> int:
        """Start the service in a thread, on a free port of this machine, and come back when it answers."""
        from nearkin.serve import app as serving
        from nearkin.serve import run

        self.stop_service()
        begun: list[Any] = []
        really = serving.Server.run

        def listen(settings: Any) -> socket.socket:
            listener = _Listener()
            listener.bind(("127.0.0.1", 0))
            self.port = socket.socket.getsockname(listener)[1]
            listener.shown = settings.port
            return listener

        def running(self: Any, sockets: Any) -> None:
            begun.append(self)
            really(self, sockets)

        failed: list[str] = []

        def work() -> None:
            from nearkin.cli.app import app

            try:
                app(words, standalone_mode=False)
            except BaseException:
                failed.append(traceback.format_exc())

        with mock.patch.object(run, "_listen", listen), mock.patch.object(serving.Server, "run", running):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            while thread.is_alive() and not (begun and begun[0].started):
                time.sleep(0.01)
        if not begun:
            raise SystemExit(f"nearkin serve: {failed}")
        self._service = begun[0], thread
        (self._bin / "port").write_text(str(self.port))
        return 0

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Send whoever connects to the port that pages name to the service that was started."""
        really = socket.create_connection

        def connect(address: tuple[str, int], *rest: Any, **options: Any) -> socket.socket:
            there = ("127.0.0.1", self.port or 0) if address[1] == PORT else address
            return really(there, *rest, **options)

        with mock.patch.object(socket, "create_connection", connect):
            yield

    def stop_service(self) -> None:
        """Stop the service, if one was started."""
        if self._service is not None:
            self._service[0].should_exit = True
            self._service[1].join()
            self._service = None


class _Listener(socket.socket):
    """A socket that says it listens where the page has it, though it is on a free port."""

    shown = 0

    def getsockname(self) -> tuple[str, int]:
        """The address that clients are told."""
        return "127.0.0.1", self.shown


@cache
def _program() -> Any:
    from typer.main import get_command

    from nearkin.cli.app import app

    return get_command(app)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and the words after its name."""
    target, rest = _program(), list(words)
    while rest and hasattr(target, "commands") and rest[0] in target.commands:
        target = target.commands[rest.pop(0)]
    return target, rest


def parse(words: list[str]) -> None:
    """Have a command's names, options and arguments checked by the real command line, and run nothing."""
    target, rest = command_of(words)
    target.make_context("nearkin", rest)


@contextlib.contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def _said(text: Any, err: io.StringIO) -> int:
    err.write(f"{text}\n")
    return 1
