"""The measuring scripts in tools/, on tiny trees."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from textwrap import dedent

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def _load(name):
    spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


house, mutants = _load("house"), _load("mutants")


@pytest.fixture
def tree(tmp_path):
    """Writes files of a package below a folder and returns the folder."""

    def write(**files):
        for name, source in files.items():
            path = tmp_path / "nearkin" / f"{name.replace('__', '/', 1) if name[0] != '_' else name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(source).lstrip())
        return tmp_path

    return write


def _package(tree):
    return tree(
        __init__='"""Doc."""\n',
        room____init__="from nearkin.room.wall import Wall\nfrom nearkin.room import tile\n",
        room__wall="class Wall: ...\n",
        room__door="from nearkin.room.lock import turn\n",
        room__lock="def turn(): ...\n",
        room__tile="from nearkin.room.lock import turn\n\n@register('tile')\ndef tile(): ...\n",
        room__hinge="def swing():\n    from nearkin.room.door import open\n",
        cli="from nearkin.room import Wall, tile\n",
    )


def test_an_import_counts_for_the_module_that_defines_the_name(tree):
    modules = house.read_package(_package(tree))
    found = house.importers(modules)
    assert found["nearkin.room.wall"] == {"nearkin.cli"}
    assert found["nearkin.room.lock"] == {"nearkin.room.door", "nearkin.room.tile"}
    assert "nearkin.room" not in found


def test_one_importer_modules_and_their_kinds(tree):
    modules = house.read_package(_package(tree))
    assert house.one_importer(modules) == {
        "nearkin.room.wall": "nearkin.cli",
        "nearkin.room.tile": "nearkin.cli",
        "nearkin.room.door": "nearkin.room.hinge",
    }
    rows = house.static_rows(modules)
    assert (rows["one-importer modules"], rows["  from their own folder"], rows["  not registered"]) == ("3", "1", "2")


def test_a_relative_import_counts_like_an_absolute_one(tree):
    modules = house.read_package(
        tree(__init__="", a____init__="", a__b="from . import c\nfrom .d import e\n", a__c="", a__d="")
    )
    assert house.importers(modules) == {"nearkin.a.c": {"nearkin.a.b"}, "nearkin.a.d": {"nearkin.a.b"}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", 0),
        ("x = 1\nimport os\n", 0),
        ('"""Doc.\n\nMore."""\n\nimport os\n\nfrom a import (\n    b,\n)\n\nx = 1\n', 9),
        ("import os\nif TYPE_CHECKING:\n    import a\n\nx = 1\n", 3),
    ],
)
def test_header_ends_with_the_imports_at_the_top(source, expected):
    assert house.header_lines(ast.parse(source)) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@losses.register('a')\ndef f(): ...", True),
        ("register_loss('a')(f)", True),
        ("def f():\n    register('a')", False),
        ('"""register(x)"""', False),
    ],
)
def test_registers(source, expected):
    assert house.registers(ast.parse(source)) is expected


def test_names_that_are_counted(tree):
    source = "class Store: ...\n\n@dataclass(frozen=True)\nclass _Row: ...\n\ndef _f(): ...\n\n_LIMIT = 3\n"
    modules = house.read_package(tree(reading=source, disk="@dataclasses.dataclass\nclass Store: ...\n"))
    rows = house.static_rows(modules)
    assert house.duplicate_classes(modules) == {"Store": 2}
    assert house.gerunds(modules) == ["nearkin.reading"]
    assert (rows["private top-level names"], rows["dataclasses"], rows["lines"]) == ("2", "2", "10")


def test_only_functions_called_after_import_are_entered(tree, monkeypatch):
    root = tree(first="def f(): ...\nclass C: ...\nf()\n", second="import first\ndef g():\n    first.f\n")
    package, entered = f"{root / 'nearkin'}/", []
    monkeypatch.syspath_prepend(package)

    def look(frame, event, argument):
        if house.is_entered(frame, package):
            entered.append((Path(frame.f_code.co_filename).stem, frame.f_code.co_name))

    previous = sys.gettrace()
    sys.settrace(look)
    try:
        second = importlib.import_module("second")
        second.g()
    finally:
        sys.settrace(previous)
        sys.modules.pop("first"), sys.modules.pop("second")
    assert entered == [("second", "g")]


def test_mutant_rows_take_the_last_record_of_a_commit(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    assert house.mutant_rows(ledger, "a" * 40, nearest=True) == {}
    records = [("k", "survived"), ("k", "caught"), ("l", "survived")]
    lines = [json.dumps({"commit": "a" * 40, "key": key, "outcome": outcome}) for key, outcome in records]
    ledger.write_text("\n".join([*lines, json.dumps({"commit": "a" * 40, "fails_clean": "test_a"})]))
    expected = {"mutants caught": "1 of 2 (aaaaaaa)"}
    assert house.mutant_rows(ledger, "a" * 40, nearest=False) == expected
    assert house.mutant_rows(ledger, "b" * 40, nearest=True) == expected
    assert house.mutant_rows(ledger, "b" * 40, nearest=False) == {}


def test_table_has_a_dash_where_a_column_lacks_a_row():
    text = house.table({"new": {"lines": "7", "make test": "3 s"}, "old": {"lines": "9,000"}})
    assert [line.split() for line in text.splitlines()] == [
        ["new", "old"],
        ["lines", "7", "9,000"],
        ["make", "test", "3", "s", "-"],
    ]


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("x = a < b", "comparison", "x = (a <= b)"),
        ("x = é - b * 2.0", "arithmetic", "x = é - (b / 2.0)"),
        ("x = a and b", "and/or", "x = (a or b)"),
        ("x = not a", "not", "x = (a)"),
        ("x = True", "boolean", "x = False"),
        ("x: int = 3", "integer", "x: int = 4"),
        ("return a", "return", "return None"),
        ("a += b", "augmented", "pass"),
    ],
)
def test_each_kind_of_mutation(body, kind, expected):
    source = f"def f(a, b):\n    {body}\n".encode()
    changed = [mutant.apply(source).decode() for mutant in mutants.mutants_of(source, "f.py") if mutant.kind == kind]
    assert f"def f(a, b):\n    {expected}\n" in changed


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 3\n",
        "def f(a: Literal[1] = 2) -> Literal[3]:\n    'Doc 4.'\n",
        "def f():\n    raise ValueError(1 + 2)\n",
        "def f():\n    warnings.warn(f'{1 + 2}', stacklevel=2)\n",
        "def f():\n    x = f'{a + 1}'\n",
        "def f():\n    x: Literal[1] = y\n",
        "def f():\n    x = 'a' + b\n",
        "@g(1)\ndef f(): ...\n",
        "def f():\n    return None\n",
    ],
)
def test_hints_messages_and_what_is_outside_functions_stay(source):
    assert mutants.mutants_of(source.encode(), "f.py") == []


def test_every_mutant_compiles_and_differs():
    source = Path(mutants.__file__).read_bytes()
    found = mutants.mutants_of(source, "mutants.py")
    assert len(found) > 50
    clean = ast.dump(ast.parse(source))
    for mutant in found[::25]:
        assert ast.dump(ast.parse(mutant.apply(source))) != clean, mutant


def test_draw_is_by_seed_without_repeats_and_in_proportion_to_lines(tree):
    line = "    x = 1\n"
    root = tree(short="def f():\n" + line * 99, long="def f():\n" + line * 899, empty="X = 1\n")
    drawn = mutants.draw(root, seed=3, count=200)
    assert drawn == mutants.draw(root, seed=3, count=200) != mutants.draw(root, seed=4, count=200)
    assert len({mutant.key for mutant in drawn}) == 200
    assert 150 < sum(mutant.path == "nearkin/long.py" for mutant in drawn) < 199
    assert len(mutants.draw(root, seed=0, count=5000)) == 998


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nearkin/spaces/sphere.py", "tests/spaces"),
        ("nearkin/gallery/sqlite/store.py", "tests/gallery/sqlite"),
        ("nearkin/search/ann/graph.py", "tests/search"),
        ("nearkin/recipe/recipe.py", "tests/test_recipe.py"),
        ("nearkin/api.py", "tests/test_api.py"),
        ("nearkin/progress.py", ""),
    ],
)
def test_near_tests_mirror_the_package(tmp_path, path, expected):
    for folder in ("spaces", "search", "gallery/sqlite"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    for name in ("test_recipe.py", "test_api.py"):
        (tmp_path / "tests" / name).touch()
    assert mutants.near_tests(tmp_path, path) == expected


@pytest.fixture
def small_tree(tmp_path):
    """A package of one module, a test that sees its faults, one that does not, and one that always fails."""
    test = "from nearkin.spaces.sphere import area\n\n\ndef test_area():\n    assert area(3) == 36\n"
    files = {
        "nearkin/__init__.py": "",
        "nearkin/spaces/__init__.py": "",
        "nearkin/spaces/sphere.py": "def area(radius):\n    return 4 * radius * radius\n",
        "tests/spaces/test_all.py": "def test_broken():\n    assert False\n",
        "tests/spaces/test_area.py": test,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_files_that_mention_a_module_come_first(small_tree):
    found = mutants.likely_first(small_tree, "tests/spaces", "nearkin/spaces/sphere.py")
    assert found == ["tests/spaces/test_area.py", "tests/spaces"]


def test_what_fails_without_the_mutant_catches_nothing(small_tree, monkeypatch):
    # Every pytest that is started would import all plugins that are installed.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    source = (small_tree / "nearkin/spaces/sphere.py").read_bytes()
    drawn = {mutant.kind: mutant for mutant in mutants.mutants_of(source, "nearkin/spaces/sphere.py")}
    ledger = mutants.Ledger(small_tree / "ledger.jsonl", "a")
    caught = mutants.try_mutant(small_tree, drawn["return"], ledger, (60, 60), near=True)
    assert (caught["outcome"], caught["by"]) == ("caught", "tests/spaces/test_area.py::test_area")
    (small_tree / "tests/spaces/test_area.py").unlink()
    assert mutants.try_mutant(small_tree, drawn["return"], ledger, (60, 60), near=True)["outcome"] == "survived"
    assert ledger.fails_clean == ["tests/spaces/test_all.py::test_broken"]
    assert (small_tree / "nearkin/spaces/sphere.py").read_bytes() == source


def test_ledger_resumes_only_its_own_commit(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    mutants.Ledger(path, "a").write({"key": "k", "outcome": "caught"})
    mutants.Ledger(path, "a").write({"fails_clean": "tests/spaces/test_a.py::test_b"})
    again = mutants.Ledger(path, "a")
    assert again.mutants["k"]["outcome"] == "caught"
    assert again.fails_clean == ["tests/spaces/test_a.py::test_b"]
    assert mutants.Ledger(path, "b").mutants == {}
