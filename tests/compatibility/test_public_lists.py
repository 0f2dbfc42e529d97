"""Nothing that users can rely on vanishes: the lists of 38e006d, in lists.json, against the package as it is."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from pathlib import Path

import pytest

import nearkin

HERE = Path(__file__).resolve().parent

_spec = importlib.util.spec_from_file_location("compatibility_make_lists", HERE / "make_lists.py")
make_lists = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = make_lists
_spec.loader.exec_module(make_lists)

OLD = json.loads((HERE / "lists.json").read_text(encoding="utf-8"))

DECIDED: dict[str, str] = {
    "nearkin.audits.Subject.": "what an audit is about is set on the instance; the tests of audits read it there",
    "nearkin.audits.Subject(": "26 optional fields became model, data and properties; the rest is passed by name",
    "nearkin.audits.AuditResult(": "made by run_suites; its fields are read by name",
}
"""What was let go, as the beginning of `module.name` or `module.name(parameter)`, to the reason."""


def _vanished(old: dict[str, list[str]], new: dict[str, list[str]]) -> list[str]:
    gone = [name for name in old if name not in new]
    return gone + [f"{name}: {part}" for name in old if name in new for part in old[name] if part not in new[name]]


def _refused(old: list[str], new: list[str]) -> list[str]:
    """Which arguments, as they could be passed before, are not taken any more: by name, or at their place."""
    if not old:
        return []
    split = next((place for place, name in enumerate(old) if name.startswith("*")), len(old))
    begin = next((place for place, name in enumerate(new) if name.startswith("*")), len(new))
    anything = any(name.startswith("**") for name in new)
    gone = [name for name in old if not name.startswith("*") and name not in new and not anything]
    moved = [
        name
        for place, name in enumerate(old[:split])
        if name not in gone and (new[:begin][place : place + 1] != [name]) and new[begin : begin + 1] != ["*args"]
    ]
    return [*gone, *moved, *(name for name in old if name.startswith("**") and not anything)]


def test_names_of_the_package():
    assert [name for name in OLD["nearkin"] if name not in nearkin.__all__ or not hasattr(nearkin, name)] == []


def test_commands_and_their_options():
    assert _vanished(OLD["commands"], make_lists.commands()) == []


def test_commands_take_their_arguments_in_the_same_order():
    new = make_lists.commands()
    for command, taken in OLD["commands"].items():
        arguments = [[name for name in names if not name.startswith("-")] for names in (taken, new[command])]
        assert arguments[1][: len(arguments[0])] == arguments[0], command


def test_recipes():
    assert [name for name in OLD["recipes"] if name not in make_lists.recipes()] == []


def test_keys_of_recipes():
    new = set(make_lists.recipe_keys())
    assert [key for key in OLD["recipe keys"] if key not in new] == []


def test_routes_of_the_service():
    pytest.importorskip("fastapi")
    assert _vanished(OLD["routes"], make_lists.routes()) == []


@pytest.mark.parametrize("module", OLD["modules"])
def test_documented_names(module):
    """Old paths may warn (`nearkin._moved`); every name must be there, with its members and what they take."""
    old = OLD["modules"][module]
    new = make_lists.names(module, [name for name in old if "." not in name])
    gone = [f"{module}.{name}" for name in old if name not in new]
    for name in old:
        gone += [f"{module}.{name}({parameter})" for parameter in _refused(old[name], new.get(name, old[name]))]
    assert [name for name in gone if not name.startswith(tuple(DECIDED))] == []


def test_registered_names():
    for module in OLD["modules"]:
        make_lists.names(module, [])
    gc.unfreeze()  # what conftest.py froze, gc.get_objects() does not list
    found = make_lists.registered()
    gc.freeze()
    assert _vanished(OLD["registered"], found) == []


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        (["a", "b", "*", "c"], ["a", "b", "d", "*", "e", "c"], []),
        (["a", "b"], ["b", "a"], ["a", "b"]),
        (["a", "b"], ["a", "*", "b"], ["b"]),
        (["a", "*", "b"], ["a", "*", "c"], ["b"]),
        (["a", "*", "b"], ["a", "**rest"], []),
        (["a"], [], ["a"]),
    ],
)
def test_what_counts_as_refused(old, new, refused):
    assert _refused(old, new) == refused


def test_the_script_sees_what_vanishes(tmp_path):
    room = tmp_path / "nearkin"
    room.mkdir()
    (room / "thing.py").write_text("A = 1\n_B = 2\nclass C:\n    def run(self, x, *, y): ...\ndef go(): ...\n")
    assert make_lists._file(tmp_path, "nearkin.thing") == room / "thing.py"
    assert make_lists._file(tmp_path, "nearkin.thing.C") is None
    assert _vanished({"a": ["x", "y"], "b": []}, {"a": ["y", "z"]}) == ["b", "a: x"]
