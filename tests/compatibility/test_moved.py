"""Documented modules that moved are still found by their old paths."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from nearkin import _moved, errors, spaces
from nearkin.errors import NearkinError


@pytest.fixture(autouse=True)
def table(monkeypatch):
    """A module and a package that have moved; what was imported by their old paths is forgotten afterwards."""
    monkeypatch.setitem(_moved.MOVED, "nearkin.of_old", errors.__name__)
    monkeypatch.setitem(_moved.MOVED, "nearkin.old_room", spaces.__name__)
    yield
    package = sys.modules["nearkin"]
    for name in [name for name in sys.modules if name.startswith(("nearkin.of_old", "nearkin.old_room"))]:
        del sys.modules[name]
    for name in ("of_old", "old_room"):
        vars(package).pop(name, None)


def test_import_of_an_old_path_gives_the_new_module_and_warns_here():
    with pytest.warns(DeprecationWarning, match=errors.__name__) as warned:
        import nearkin.of_old
    assert nearkin.of_old is errors
    assert [warning.filename for warning in warned] == [__file__]
    assert errors.__name__ == errors.__spec__.name == NearkinError.__module__


def test_names_come_from_an_old_path():
    with pytest.warns(DeprecationWarning, match="nearkin.of_old"):
        from nearkin.of_old import NearkinError as Old
    assert Old is NearkinError


def test_an_old_path_comes_from_its_package():
    with pytest.warns(DeprecationWarning, match="nearkin.of_old"):
        from nearkin import of_old
    assert of_old is errors


def test_a_package_brings_its_modules_along_and_none_runs_twice():
    home = spaces.Sphere.__module__
    with pytest.warns(DeprecationWarning, match="nearkin.old_room"):
        old = importlib.import_module(home.replace(spaces.__name__, "nearkin.old_room", 1))
    assert old is sys.modules[home]
    assert old.Sphere is spaces.Sphere
    assert importlib.import_module("nearkin.old_room") is spaces


def test_what_never_was_is_missing():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for path in ("nearkin.never", "nearkin.old_room.never", "nearkin.of_old.never"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(path)


def test_nothing_else_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert importlib.import_module("nearkin.errors") is errors
        importlib.import_module("colorsys")


def test_each_line_of_the_table_leads_somewhere():
    for old, new in list(_moved.MOVED.items()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert importlib.import_module(old) is importlib.import_module(new)
        assert new not in _moved.MOVED, "chains hide where a module is"


def test_importing_nearkin_imports_nothing_heavy():
    program = "import sys, nearkin; print({'torch', 'numpy', 'nearkin.api'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


def test_the_finder_is_installed_once():
    before = list(sys.meta_path)
    _moved.install()
    assert sys.meta_path == before
