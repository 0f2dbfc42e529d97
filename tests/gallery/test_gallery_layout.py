"""Indexes and partitions: what may be chosen, what Milvus is told, and that partitions change no answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.gallery import Gallery
from nearkin.gallery.condition import parse
from nearkin.gallery.layout import BUILDING, PARTITIONS, Layout, layout_of
from nearkin.gallery.milvus import MilvusStore, items
from nearkin.gallery.milvus.change import GalleryHead
from nearkin.gallery.milvus.collection import Documents
from nearkin.gallery.milvus.filter import to_milvus as compile_where
from nearkin.gallery.milvus.layout import check_layout, index_parameters, search_parameters
from nearkin.gallery.store import Record
from nearkin.gallery.values import Item, Settings

pymilvus = pytest.importorskip("pymilvus", exc_type=ImportError)
pytest.importorskip("milvus_lite", exc_type=ImportError)

SPHERE = Settings("mine", 8, {"name": "sphere"})
EUCLIDEAN = Settings("mine", 8, {"name": "euclidean"})
SHOPS = ("north", "south", 'the "old" one')


def points(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)


def records(n: int) -> list[Record]:
    return [Record(f"i{row:03d}", "a", {"shop": SHOPS[row % 3], "row": row}) for row in range(n)]


@pytest.fixture
def partitioned(address) -> Iterator[MilvusStore]:
    store = MilvusStore.create(address, EUCLIDEAN, layout=layout_of(partition="shop"))
    store.write(records(60), points(60))
    yield store
    store.close()


# What may be chosen.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"index": "fast"}, "'fast'"),
        ({"index": None}, "'None'"),
        ({"index": "hnsv"}, "hnsw"),
        ({"index": "hnsw", "parameters": {"nlist": 8}}, "nlist"),
        ({"index": "exact", "parameters": {"M": 8}}, r"\bM\b"),
        ({"index": "hnsw", "parameters": {"M": 1}}, "2,048"),
        ({"index": "hnsw", "parameters": {"M": 16.0}}, "whole"),
        ({"index": "hnsw", "parameters": {"ef": True}}, "whole"),
        ({"index": "ivf-flat", "parameters": {"nlist": 8, "nprobe": 9}}, "nprobe"),
        ({"partitions": 4}, "key"),
        ({"partition": ""}, "key"),
        ({"partition": "shop", "partitions": 0}, "1,024"),
        ({"partition": "shop", "partitions": 5000}, "5000"),
    ],
)
def test_bad_choices_are_told_in_a_sentence(arguments, told):
    with pytest.raises(DataError, match=told) as caught:
        layout_of(**arguments)
    assert "\n" not in str(caught.value)


def test_a_layout_comes_back_from_plain_values():
    made = layout_of("ivf-sq8", {"nlist": 16}, "shop", 8)
    assert Layout.from_dict(made.to_dict()) == made
    assert Layout.from_dict({}) == Layout()
    for word in ("ivf-sq8", "nlist = 16", "nprobe = 16", "8 partitions", "shop"):
        assert word in made.in_words()
    assert layout_of(partition="shop").partitions == PARTITIONS


@pytest.mark.parametrize(
    ("index", "parameters", "kind", "lite", "server"),
    [
        ("auto", {}, "FLAT", {}, {}),
        ("exact", {}, "FLAT", {}, {}),
        ("hnsw", {"M": 8}, "HNSW", {"M": 8, "efConstruction": 128}, {"M": 8, "efConstruction": 128}),
        ("ivf-sq8", {"nlist": 9}, "IVF_SQ8", {"nlist": 9}, {"nlist": 9}),
    ],
)
def test_milvus_is_told_the_index_with_its_parameters(index, parameters, kind, lite, server):
    made = layout_of(index, parameters)
    told = index_parameters(made, SPHERE, lite=True)
    assert (told["index_type"], told["metric_type"]) == (kind, "COSINE")
    assert told.get("params", {"params": {}}) == {"params": lite}
    told = index_parameters(made, EUCLIDEAN, lite=False)
    assert (told["index_type"], told["metric_type"]) == ("AUTOINDEX" if index == "auto" else kind, "L2")
    assert told.get("params", {}) == server


def test_what_a_search_gives_is_never_below_k():
    assert search_parameters(layout_of("hnsw", {"ef": 20}), 10) == {"ef": 20}
    assert search_parameters(layout_of("hnsw", {"ef": 20}), 50) == {"ef": 50}
    assert search_parameters(layout_of("ivf-flat", {"nlist": 64, "nprobe": 4}), 50) == {"nprobe": 4}
    assert search_parameters(layout_of("diskann"), 200) == {"search_list": 200}
    assert search_parameters(layout_of("auto"), 200) == search_parameters(layout_of("exact"), 200) == {}


def test_product_quantisation_cuts_vectors_evenly():
    assert index_parameters(layout_of("ivf-pq"), SPHERE, lite=False)["params"]["m"] == 2
    with pytest.raises(DataError, match="dimension"):
        check_layout(layout_of("ivf-pq", {"m": 3}), SPHERE, lite=False)


@pytest.mark.parametrize("index", ["ivf-pq", "diskann"])
def test_milvus_lite_refuses_what_it_has_not(address, index):
    with pytest.raises(DataError, match=index):
        MilvusStore.create(address, EUCLIDEAN, layout=layout_of(index))


def test_int8_on_a_server_is_of_angles_and_by_a_graph():
    small = replace(SPHERE, dtype="int8")
    assert index_parameters(Layout(), small, lite=False)["index_type"] == "HNSW"
    with pytest.raises(DataError, match="angles"):
        check_layout(Layout(), replace(EUCLIDEAN, dtype="int8"), lite=False)
    with pytest.raises(DataError, match="ivf-flat"):
        check_layout(layout_of("ivf-flat"), small, lite=False)
    check_layout(Layout(), replace(EUCLIDEAN, dtype="int8"), lite=True)
    assert items.schema(small, lite=False).fields[-1].dtype == pymilvus.DataType.INT8_VECTOR
    vectors = points(5)
    whole = items.encode(vectors, small, lite=False)
    assert whole.dtype == np.int8
    back = items.decode([[row.tobytes()] for row in whole], small)
    np.testing.assert_allclose(np.linalg.norm(back, axis=1), 1, rtol=1e-6)
    cosines = (back * vectors).sum(axis=1) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() > 0.9999
    assert not items.decode([np.zeros(8, np.int8).tobytes()], small).any()


@pytest.mark.parametrize(
    ("dtype", "part"), [("float32", "float_vector"), ("float16", "float16_vector"), ("int8", "int8_vector")]
)
def test_a_server_is_sent_vectors_and_queries_of_one_type(dtype, part):
    from pymilvus.client.prepare import Prepare
    from pymilvus.grpc_gen import common_pb2

    settings = replace(SPHERE, dtype=dtype)
    encoded = items.encode(points(3), settings, lite=False)
    fields = items.schema(settings, lite=False).to_dict()["fields"]
    rows = [items.to_row(Record(f"i{row}", None), encoded[row]) for row in range(3)]
    sent = Prepare.row_upsert_param("c", rows, "", fields, enable_dynamic=False).fields_data
    assert [field.vectors.WhichOneof("data") for field in sent if field.field_name == "vector"] == [part]

    class Server:
        lite = False

        def call(self, method: str, *_: Any, **given: Any) -> list[Any]:
            assert method == "search"
            self.asked = given["data"]
            return [[] for _ in given["data"]]

    server = Server()
    head = GalleryHead(settings, "c")

    class Kept(Documents):
        def head(self) -> dict[str, Any]:
            return head.to_dict()

    MilvusStore(server, Kept(server, "d"), head).search(points(3), 2)
    np.testing.assert_array_equal(np.stack(server.asked), encoded)
    group = common_pb2.PlaceholderGroup.FromString(Prepare._prepare_placeholder_str(server.asked))
    kinds = {"float32": "FloatVector", "float16": "Float16Vector", "int8": "Int8Vector"}
    assert common_pb2.PlaceholderType.Name(group.placeholders[0].type) == kinds[dtype]


# Indexes at work.


@pytest.mark.parametrize("index", [name for name in BUILDING if name not in ("ivf-pq", "diskann")])
def test_every_index_of_milvus_lite_finds_neighbours_and_may_be_exchanged(address, index):
    given = {"nlist": 4, "nprobe": 4} if index.startswith("ivf") else {}
    store = MilvusStore.create(address, EUCLIDEAN, layout=layout_of(index, given))
    store.write(records(60), points(60))
    store._connection.call("flush", store._head.collection)
    found = store.search(points(60)[:10], 5)
    assert found.keys[:, 0].tolist() == [f"i{row:03d}" for row in range(10)]
    store.set_layout(Layout("hnsw", {"M": 4}))
    assert store.search(points(60)[:10], 1).keys[:, 0].tolist() == [f"i{row:03d}" for row in range(10)]
    reader = MilvusStore.open(address)
    assert reader.layout == store.layout == Layout("hnsw", {"M": 4})
    with pytest.raises(DataError, match="diskann"):
        store.set_layout(Layout("diskann"))
    assert reader.layout.index == "hnsw"
    reader.close()
    store.close()


def test_a_local_gallery_changes_its_index_for_good(tmp_path):
    pytest.importorskip("faiss", exc_type=ImportError)
    with Gallery.create(tmp_path / "g", dimension=8, name="x") as gallery:
        gallery.add(points(50))
        assert (gallery.stats().index, gallery.stats().layout) == ("exact", "auto")
        gallery.set_index("hnsw")
        assert gallery.stats().index == "hnsw"
    with Gallery.open(tmp_path / "g") as again:
        assert again.stats().index == "hnsw"
        again.set_index("exact")
        assert again.stats().index == "exact"
        for given, told in (
            ({"index": "diskann"}, "Milvus"),
            ({"index": "hnsw", "parameters": {"M": 8}}, "parameters"),
        ):
            with pytest.raises(DataError, match=told):
                again.set_index(**given)
    with pytest.raises(DataError, match="partition"):
        Gallery.create(tmp_path / "h", dimension=8, name="x", partition="shop")
    assert not (tmp_path / "h").exists()


# Partitions.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("shop = 'north'", ["north"]),
        ("shop in ('north', 'south')", ["north", "south"]),
        ("shop = 'north' and row < 9", ["north"]),
        ("row < 9 and (shop = 'north' or shop = 'south')", ["north", "south"]),
        ("shop in ('north', 'south') and shop = 'south'", ["south"]),
        ("shop = 'north' and shop = 'south'", []),
        ("shop = 4", []),
        ("shop = 'north' or row < 9", None),
        ("shop != 'north'", None),
        ("not shop = 'north'", None),
        ("shop like 'n%'", None),
        ("label = 'north'", None),
    ],
)
def test_a_filter_names_the_partitions_that_a_condition_leaves(text, values):
    plain, told = compile_where(parse(text)), compile_where(parse(text), "shop")
    if values is None:
        assert told == plain
    elif not values:
        assert told == 'id == ""'
    else:
        names = ", ".join(f'"{value}"' for value in values)
        assert told == f"shelf in [{names}] and {plain}"


@pytest.mark.parametrize(
    "text",
    [
        "shop = 'north'",
        "shop in ('south', 'the \"old\" one') and row < 30",
        "shop = 'north' or row < 9",
        "not shop = 'north'",
        "shop = 'nowhere'",
        "shop = 'north' and shop = 'south'",
    ],
)
def test_partitions_change_no_answer(partitioned, text):
    where = parse(text)
    items_ = [Item(one.id, one.label, dict(one.metadata)) for one in records(60)]
    expected = [item.id for item in items_ if where.matches(item)]
    assert partitioned.ids_where(where) == expected
    found = partitioned.search(points(60)[:1], 60, where=where).keys[0]
    assert sorted(id for id in found if id is not None) == expected


def test_the_schema_has_a_partition_key_and_others_have_none():
    keys = [field.is_partition_key for field in items.schema(EUCLIDEAN, lite=False, partition="shop").fields]
    assert sum(map(bool, keys)) == 1
    assert not any(field.is_partition_key for field in items.schema(EUCLIDEAN, lite=False).fields)


def test_the_number_of_partitions_is_told(address, monkeypatch):
    store = MilvusStore.create(address, EUCLIDEAN)
    told: list[Any] = []
    monkeypatch.setattr(store._connection, "call", lambda method, *_, **given: told.append((method, given)))
    from nearkin.gallery.milvus.change import make_items

    make_items(store._connection, EUCLIDEAN, layout_of(partition="shop", partitions=12))
    assert dict(told)["create_collection"]["num_partitions"] == 12
    monkeypatch.undo()
    store.close()


def test_an_item_that_changes_its_partition_is_there_once(partitioned, address):
    partitioned._connection.call("flush", partitioned._head.collection)
    assert partitioned.update(["i000"], metadata={"shop": "south", "row": 0}) == 1
    partitioned.write([Record("i001", "a", {"shop": "north", "row": 1})], points(1, 5))
    for store in (partitioned, MilvusStore.open(address)):
        assert len(store) == 60
        assert len(store.ids_where()) == 60
        assert "i000" in store.ids_where(parse("shop = 'south'"))
        assert "i000" not in store.ids_where(parse("shop = 'north'"))
        assert "i001" in store.ids_where(parse("shop = 'north'"))
        assert list(store.search(points(60)[:1], 60).keys[0]).count("i000") == 1
    store.close()


@pytest.mark.parametrize("metadata", [{}, {"shop": None}, {"shop": 3}, {"shop": ""}, {"shop": "x" * 2000}])
def test_an_item_without_its_partition_is_refused_whole(partitioned, metadata):
    with pytest.raises(DataError, match="shop"):
        partitioned.write([Record("new", None, {"shop": "north"}), Record("bad", None, metadata)], points(2))
    with pytest.raises(DataError, match="shop"):
        partitioned.update(["i000"], metadata=metadata)
    assert len(partitioned) == 60


def test_partitions_stay_when_all_vectors_are_replaced(partitioned, address):
    ids = [record.id for record in records(60)]
    partitioned.replace_vectors(EUCLIDEAN, iter([(ids, points(60, 4))]))
    with Gallery.open(address) as again:
        assert again.store.layout == layout_of(partition="shop")
        assert len(again.search(points(1)[0], k=60, where={"shop": "south"})) == 20
        again.set_index("hnsw")
        assert "64 partitions" in again.stats().layout


def test_a_gallery_that_says_nothing_of_its_layout_opens(address):
    store = MilvusStore.create(address, EUCLIDEAN)
    store.write([Record("a", None)], points(1))
    old = {key: value for key, value in store._documents.head().items() if key != "layout"}
    assert old["schema"] == 1
    store._documents.set_head(old)
    again = MilvusStore.open(address)
    assert again.layout == Layout()
    assert again.search(points(1), 1).keys[0, 0] == "a"
    again.close()
    store.close()
