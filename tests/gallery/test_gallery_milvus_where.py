"""Conditions in the Milvus store choose what `Condition.matches` chooses, in memory, from files, and after changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkin.gallery.condition import AllOf, AnyOf, Compare, Condition, IsNull, Like, Name, Not, OneOf, parse
from nearkin.gallery.milvus import MilvusStore
from nearkin.gallery.store import Record
from nearkin.gallery.values import Item, Settings

pytest.importorskip("pymilvus", exc_type=ImportError)
pytest.importorskip("milvus_lite", exc_type=ImportError)

VALUES = [
    None,
    True,
    False,
    0,
    1,
    -3,
    2.5,
    1.0,
    10**15,
    "",
    "1",
    "Red",
    "red%",
    'a"b',
    "x'y",
    "back\\slash",
    "é\n",
    "_",
]
KEYS = ["k", "two words", 'quo"te', "label"]


def _items() -> list[Item]:
    rng = np.random.default_rng(0)
    made = []
    for row in range(60):
        metadata = {key: VALUES[rng.integers(len(VALUES))] for key in KEYS if rng.random() < 0.8}
        text = [value for value in VALUES if isinstance(value, str)]
        label = None if row % 4 == 0 else text[row % len(text)]
        made.append(Item(f"i{row:02d}", label, metadata, None if row % 3 else f"dir/{row}.jpg", f"2024-{row:02d}"))
    return made


ITEMS = _items()
VECTORS = np.random.default_rng(1).normal(size=(len(ITEMS), 3)).astype(np.float32)


@pytest.fixture(scope="module", params=["memory", "files", "updated"])
def store(request, tmp_path_factory) -> Iterator[MilvusStore]:
    path = str(tmp_path_factory.mktemp("where") / "w.db")
    made = MilvusStore.create(path, Settings("mine", 3, {"name": "euclidean"}))
    records = [Record(item.id, item.label, item.metadata, item.source, item.added) for item in ITEMS]
    if request.param == "updated":
        made.write([Record(record.id, "old", {"k": "old"}, record.source, record.added) for record in records], VECTORS)
        for record in records:
            made.update([record.id], label=record.label, metadata=record.metadata)
    else:
        made.write(records, VECTORS)
    if request.param == "files":
        made.close()
        made = MilvusStore.open(path)
    yield made
    made.close()


_names = st.sampled_from(
    [Name(key) for key in [*KEYS, "missing"]] + [Name(key, own=True) for key in ("label", "source")]
)
_values = st.sampled_from([value for value in VALUES if value is not None])
_patterns = st.sampled_from(["%", "r%", "%D%", "_ed", "red\\%", "\\_", "", 'a"b', "dir/%", "x'_", "%\n"])
_leaves = st.one_of(
    st.builds(Compare, _names, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), _values),
    st.builds(OneOf, _names, st.lists(_values, min_size=1, max_size=4).map(tuple)),
    st.builds(Like, _names, _patterns),
    st.builds(IsNull, _names),
)
_conditions = st.recursive(
    _leaves,
    lambda parts: st.one_of(
        st.builds(Not, parts),
        st.builds(AllOf, st.lists(parts, min_size=2, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(parts, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)


@given(condition=_conditions)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_condition_chooses_what_matches(store, condition: Condition):
    right = [item.id for item in ITEMS if condition.matches(item)]
    assert store.ids_where(condition) == right
    found = store.search(VECTORS[:1], len(ITEMS), where=condition)
    assert sorted(name for name in found.keys[0] if name is not None) == right


def test_pages_of_a_condition_go_on(store):
    condition = parse('"two words" is not null and label is not null')
    right = [item for item in ITEMS if condition.matches(item)]
    assert len(right) > 12
    first = store.page(where=condition, limit=5)
    rest = store.page(where=condition, limit=1000, after=first[-1].id)
    assert first + rest == right


def test_ids_of_many_are_one_list(store):
    condition = parse("id in :ids", {"ids": [item.id for item in ITEMS[::2]] + [f"none{row}" for row in range(3000)]})
    assert store.ids_where(condition) == [item.id for item in ITEMS[::2]]
