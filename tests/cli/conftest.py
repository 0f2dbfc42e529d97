"""The command as its tests run it."""

from __future__ import annotations

import sys

import pytest

from nearkin.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch, drawn_once):
    """Caches go to a directory of the test, and reports are drawn once."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def nearkin(monkeypatch, capsys):
    """Run the command; return (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nearkin", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run
