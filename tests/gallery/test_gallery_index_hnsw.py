"""The graph index: what it proposes against exact search, and what it keeps on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nearkin.errors import DataError, StorageError
from nearkin.gallery import Gallery
from nearkin.gallery.index import HnswIndex, VectorIndex, hnsw
from nearkin.gallery.sqlite import mirror
from nearkin.gallery.store import ABSENT, UNLABELLED
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Space, Sphere

pytest.importorskip("faiss", reason="the faiss extra is not installed")

CLASSES, DIMENSION = 60, 32


def drawn(n: int, seed: int = 0, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors float32 (n, d) around class centres, and their classes (n,)."""
    centres = np.random.default_rng(7).normal(size=(CLASSES, DIMENSION))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    random = np.random.default_rng(seed)
    codes = random.integers(0, CLASSES, n)
    vectors = centres[codes] + noise * random.normal(size=(n, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), codes


def built(
    n: int = 3000, space: Space | None = None, directory: Path | None = None, version: int = 1
) -> tuple[HnswIndex, VectorIndex]:
    vectors, codes = drawn(n)
    exact = VectorIndex(space or Sphere(), DIMENSION)
    exact.append(vectors, codes)
    index = HnswIndex(exact, directory, version)
    index.extend()
    return index, exact


def recall(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([np.isin(b, a) for a, b in zip(found, true, strict=True)]))


@pytest.mark.parametrize("space", [Sphere(), Sphere("angle"), Euclidean(), LipschitzBall()], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_recall_and_distances(space: Space, scale: float) -> None:
    vectors, codes = drawn(3000)
    stored = vectors * np.float32(scale)
    if isinstance(space, Euclidean):
        stored += np.float32(5 * scale)
    exact = VectorIndex(space, DIMENSION)
    exact.append(stored, codes)
    index = HnswIndex(exact, None, 1)
    index.extend()
    distances, slots = index.search(stored[:100], 10)
    true_distances, true = exact.search(stored[:100], 10)
    assert recall(slots, true) >= 0.98
    same = slots == true
    np.testing.assert_array_equal(distances[same], true_distances[same])
    assert (np.diff(distances, axis=1) >= 0).all()


def test_nothing_is_walked_before_the_graph_is_built() -> None:
    vectors, codes = drawn(50)
    exact = VectorIndex(Sphere(), DIMENSION)
    index = HnswIndex(exact, None, 1)
    assert (index.search(vectors[:2], 3)[1] == -1).all()
    exact.append(vectors, codes)
    assert index.covered == 0
    assert index.due
    np.testing.assert_array_equal(index.search(vectors, 5)[1], exact.search(vectors, 5)[1])


def test_the_tail_is_compared_one_by_one() -> None:
    index, exact = built()
    new, codes = drawn(200, seed=1)
    exact.append(new, codes)
    assert index.covered == 3000
    assert not index.due
    assert index.search(new, 1)[1][:, 0].tolist() == list(range(3000, 3200))
    hidden = index.search(new, 5, exclude=np.arange(3000, 3200))[1]
    assert not (hidden == np.arange(3000, 3200)[:, None]).any()
    assert recall(hidden, exact.search(new, 5, exclude=np.arange(3000, 3200))[1]) >= 0.98
    exact.append(*drawn(101, seed=2))
    assert index.due
    index.extend()
    assert index.covered == 3301
    assert not index.due
    assert recall(index.search(new, 5)[1], exact.search(new, 5)[1]) >= 0.98


@pytest.mark.parametrize("share", [0.1, 0.9, 0.998])
def test_removed_and_unlabelled_slots_are_passed_over(share: float) -> None:
    index, exact = built()
    random = np.random.default_rng(3)
    gone = random.random(3000) < share
    codes = np.where(random.random(3000) < 0.5, ABSENT, UNLABELLED)
    exact.set_codes(np.flatnonzero(gone), codes[gone])
    queries = drawn(60, seed=4)[0]
    for labelled in (False, True):
        slots = index.search(queries, 10, labelled=labelled)[1]
        true = exact.search(queries, 10, labelled=labelled)[1]
        assert ((slots == -1) == (true == -1)).all()
        assert (exact.codes[slots[slots >= 0]] > (UNLABELLED if labelled else ABSENT)).all()
        assert recall(slots, true) >= 0.98


def test_a_class_that_fills_the_view_makes_it_wider() -> None:
    index, exact = built()
    query, codes = drawn(1, seed=5)
    exact.set_codes(np.flatnonzero(exact.codes == codes[0]), ABSENT)  # everything near
    assert recall(index.search(query, 10)[1], exact.search(query, 10)[1]) == 1


def test_with_a_mask_search_is_exact() -> None:
    index, exact = built()
    mask = np.random.default_rng(0).random(3000) < 0.3
    queries = drawn(20, seed=6)[0]
    np.testing.assert_array_equal(index.search(queries, 9, allowed=mask)[1], exact.search(queries, 9, allowed=mask)[1])


def test_more_neighbours_than_there_are_and_a_zero_query() -> None:
    index, exact = built(40)
    queries = np.concatenate([drawn(3, seed=8)[0], np.zeros((1, DIMENSION), np.float32)])
    np.testing.assert_array_equal(index.search(queries, 60)[1], exact.search(queries, 60)[1])


def test_while_the_graph_is_extended_search_is_exact() -> None:
    index, exact = built()
    queries = drawn(20, seed=9)[0]
    with index._walkers.kept_out():
        np.testing.assert_array_equal(index.search(queries, 10)[1], exact.search(queries, 10)[1])


def test_searches_on_threads_while_it_grows() -> None:
    index, exact = built()
    wrong: list[np.ndarray] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            slots = index.search(exact.vectors(np.arange(20)), 5)[1]
            wrong.extend([slots] if slots.min() < 0 or (slots[:, 0] != np.arange(20)).any() else [])

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for seed in range(11, 16):
        exact.append(*drawn(300, seed=seed))
        index.extend()
    done.set()
    for reader in readers:
        reader.join(timeout=30)
    assert not wrong
    assert index.covered == 4500


def test_saved_and_loaded_it_answers_the_same(tmp_path: Path) -> None:
    index, exact = built(directory=tmp_path)
    queries = drawn(30, seed=17)[0]
    before = index.search(queries, 10)
    index.save(generation=12)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hnsw-1.faiss", "hnsw-1.json"]
    facts = json.loads((tmp_path / "hnsw-1.json").read_text())
    assert facts["generation"] == 12
    assert facts["covered"] == 3000
    exact.append(*drawn(10, seed=18))
    again = HnswIndex.load(exact, tmp_path, 1)
    assert again is not None
    assert (again.covered, again.generation) == (3000, 12)
    now = again.search(queries, 10, allowed=None)
    old = now[1] < 3000
    assert np.isin(now[1][old], before[1]).all()
    again.extend()
    assert again.covered == 3010


def test_saving_another_version_deletes_the_old_one(tmp_path: Path) -> None:
    built(300, directory=tmp_path)[0].save(1)
    (tmp_path / "gallery.sqlite").touch()
    index, exact = built(200, directory=tmp_path, version=2)
    index.save(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gallery.sqlite", "hnsw-2.faiss", "hnsw-2.json"]
    assert HnswIndex.load(exact, tmp_path, 1) is None
    assert HnswIndex.load(exact, tmp_path, 2) is not None


@pytest.mark.parametrize("place", [0.0, 0.3, 0.99])
def test_a_damaged_graph_is_none(tmp_path: Path, place: float) -> None:
    index, exact = built(300, directory=tmp_path)
    index.save(1)
    path = tmp_path / "hnsw-1.faiss"
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0xFF
    path.write_bytes(content)
    assert HnswIndex.load(exact, tmp_path, 1) is None
    path.write_bytes(content[: len(content) // 2])
    assert HnswIndex.load(exact, tmp_path, 1) is None
    path.unlink()
    assert HnswIndex.load(exact, tmp_path, 1) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"covered": "many"}', '{"covered": null}', "\x00"])
def test_a_damaged_description_is_none(tmp_path: Path, text: str) -> None:
    index, exact = built(300, directory=tmp_path)
    index.save(1)
    (tmp_path / "hnsw-1.json").write_text(text)
    assert HnswIndex.load(exact, tmp_path, 1) is None


def test_a_graph_of_other_vectors_is_none(tmp_path: Path) -> None:
    index, exact = built(300, directory=tmp_path)
    index.save(1)
    vectors, codes = drawn(300)

    def of(space: Space, stored: np.ndarray) -> VectorIndex:
        other = VectorIndex(space, stored.shape[1])
        other.append(stored, codes[: len(stored)])
        return other

    assert HnswIndex.load(of(Sphere(), vectors), tmp_path, 1) is not None
    assert HnswIndex.load(of(Sphere(), vectors[:299]), tmp_path, 1) is None
    assert HnswIndex.load(of(Sphere(), vectors[::-1]), tmp_path, 1) is None
    assert HnswIndex.load(of(Euclidean(), vectors), tmp_path, 1) is None
    assert HnswIndex.load(of(Sphere(), vectors[:, :16]), tmp_path, 1) is None
    assert HnswIndex.load(exact, tmp_path / "nowhere", 1) is None


def test_a_long_tail_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    index, exact = built()
    monkeypatch.setattr(hnsw, "_LONG_TAIL", 20)
    exact.append(*drawn(21, seed=1))
    assert index.due


def test_what_cannot_be_done_says_so() -> None:
    with pytest.raises(DataError, match="poincare-ball"):
        HnswIndex(VectorIndex(PoincareBall(), 4), None, 1)
    with pytest.raises(StorageError, match="directory"):
        built(30)[0].save(1)
    with pytest.raises(DataError, match="whole"):
        built(30)[0].search(drawn(1)[0], 0)


def test_it_answers_where_another_package_has_changed_faiss():
    """pytorch-metric-learning imports faiss.contrib.torch_utils, which replaces `search` for the whole process."""
    code = (
        "import numpy as np, faiss.contrib.torch_utils\n"
        "from nearkin.gallery.index.hnsw import HnswGraph\n"
        "from nearkin.spaces import Sphere\n"
        "points = np.eye(8, dtype=np.float32).repeat(8, 0)\n"
        "graph = HnswGraph.of(Sphere(), points)\n"
        "graph.add(points)\n"
        "print(sorted(graph.walk(points[:1], 8)[0].tolist()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(list(range(8)))


def test_a_graph_that_cannot_be_saved_fails_no_call(tmp_path, monkeypatch, caplog, full_disk) -> None:
    monkeypatch.setattr(mirror, "_BYTES", 2**14)
    vectors, _ = drawn(3000)
    names = [f"i{row:04d}" for row in range(len(vectors))]
    place = tmp_path / "x.gallery"
    Gallery.create(place, items=vectors, ids=names, dimension=DIMENSION, name="x", labels="a").close()
    full_disk((place / "gallery.sqlite").stat().st_size + 100_000)
    with Gallery.open(place) as gallery:
        gallery.set_index("hnsw")
        assert gallery.remove(names[0]) == 1
        assert gallery.relabel(names[1], "b") == 1
        gallery.replace_vectors(names[1:], vectors[1:])
    assert len([record for record in caplog.records if record.name == "nearkin.gallery"]) == 1
    assert not [file.name for file in place.iterdir() if "hnsw" in file.name]
    with Gallery.open(place) as gallery:
        assert len(gallery) == 2999
        assert gallery.search(vectors[1])[0].item.label == "b"


def test_saving_removes_what_killed_writers_left(tmp_path: Path) -> None:
    for version in (1, 2):
        (tmp_path / f".hnsw-{version}.faiss.0123abcd.tmp").write_bytes(b"half a graph")
    built(directory=tmp_path, version=2)[0].save(1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hnsw-2.faiss", "hnsw-2.json"]
