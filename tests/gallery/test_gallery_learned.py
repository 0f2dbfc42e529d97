"""Galleries by a learned similarity: every answer against a plain loop over the network's own pairs."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from nearkin.errors import DataError, ModelError, StorageError
from nearkin.gallery import Gallery
from nearkin.gallery.calibration.pairs import PairDistances, fit_pair_rule
from nearkin.gallery.index import VectorIndex
from nearkin.gallery.store import ABSENT, UNLABELLED
from nearkin.models import Embedder, ModelSection, build_embedder
from nearkin.models.similarity import LearnedSpace, PairSimilarity
from nearkin.models.similarity_model import SimilarityModel
from nearkin.spaces import Euclidean

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 60, 210), "grey": (128, 128, 128)}
DIMENSION = 16


def made(seed: int, symmetric: str | None = None) -> SimilarityModel:
    embedder = build_embedder(ModelSection(backbone="conv4", size=32, dimension=DIMENSION, space="euclidean"), seed=1)
    torch.manual_seed(seed)
    network = PairSimilarity(DIMENSION, hidden=24, symmetric=symmetric)
    model = SimilarityModel(embedder, network, list(COLOURS)).eval()
    points = torch.from_numpy(model.encode([picture(colour, 500) for colour in COLOURS], progress=False))
    with torch.no_grad():  # similarities of both signs, and some size
        network.first.weight.mul_(6)
        network.second.weight.mul_(6)
        network.second.bias.sub_(network.table(points, points).median())
    return model


def picture(colour: str, seed: int) -> Image.Image:
    rng = np.random.default_rng([seed, list(COLOURS).index(colour)])
    image = Image.new("RGB", (32, 32), (235, 235, 230))
    x, y = (int(value) for value in rng.integers(2, 10, size=2))
    tint = tuple(int(np.clip(part + rng.integers(-25, 25), 0, 255)) for part in COLOURS[colour])
    ImageDraw.Draw(image).ellipse((x, y, x + 18, y + 18), fill=tint)
    return image


@pytest.fixture(scope="module")
def model():
    return made(3)


@pytest.fixture(scope="module")
def pictures():
    return [picture(colour, number) for colour in COLOURS for number in range(14)]


@pytest.fixture(scope="module")
def labels():
    return [colour for colour in COLOURS for _ in range(14)]


@pytest.fixture
def gallery(tmp_path, model, pictures, labels):
    ids = [f"{number:03d}" for number in range(len(pictures))]
    facts = [{"number": number} for number in range(len(pictures))]
    with Gallery.create(tmp_path / "a.gallery", model, pictures, labels, facts, ids=ids, progress=False) as found:
        yield found


@torch.no_grad()
def similarity(model: SimilarityModel, enrolled, query) -> float:
    """One pair, through the layers as they stand."""
    network = model.network.double()
    pair = torch.from_numpy(np.concatenate([enrolled, query]).astype(np.float64))
    found = network.second(torch.nn.functional.leaky_relu(network.first(pair), network.slope))
    model.network.float()
    return float(found)


def loop(model, vectors, ids, query, *, without=()):
    """All items, most similar first, equal ones in order."""
    scores = [(-similarity(model, vector, query), id) for vector, id in zip(vectors, ids, strict=True)]
    return sorted((score, id) for score, id in scores if id not in without)


def stored(gallery: Gallery):
    ids = [item.id for item in gallery.items(limit=1000)]
    return ids, gallery.store.vectors(ids)


def test_search_is_a_loop_over_the_similarity(gallery, model):
    ids, vectors = stored(gallery)
    for query in gallery.embed([picture("red", 100), picture("blue", 101)]):
        found = gallery.search_vectors(query, 7)[0]
        expected = loop(model, vectors, ids, query)[:7]
        assert [near.item.id for near in found] == [id for _, id in expected]
        assert [near.distance for near in found] == pytest.approx([score for score, _ in expected], rel=1e-5, abs=1e-5)
        by_place = np.argsort(np.linalg.norm(vectors - query, axis=1))[:7]
        assert [ids[row] for row in by_place] != [near.item.id for near in found]  # the network decides, not the place


def test_distances_of_both_signs_survive(gallery):
    found = gallery.search(picture("red", 100), 1000)
    distances = [near.distance for near in found]
    assert len(found) == len(gallery) == 56
    assert distances == sorted(distances)
    assert distances[0] < 0 < distances[-1]


def test_a_search_heeds_conditions_labels_and_removal(gallery, model):
    gallery.relabel("003", None)
    gallery.remove("005")
    (late,) = gallery.add([picture("grey", 50)], ["grey"], ids=["900"], progress=False)
    ids, vectors = stored(gallery)
    assert late in ids
    assert "005" not in ids
    query = gallery.embed([picture("green", 7)])[0]
    found = gallery.search_vectors(query, 1000)[0]
    assert [near.item.id for near in found] == [id for _, id in loop(model, vectors, ids, query)]
    few = gallery.search_vectors(query, 3, where="number < 6")[0]
    allowed = {"000", "001", "002", "003", "004"}
    assert [near.item.id for near in few] == [
        id for _, id in loop(model, vectors, ids, query, without=set(ids) - allowed)[:3]
    ]
    named = gallery.identify_vectors(query[None], neighbours=1000)[0]
    assert [near.item.id for near in named.neighbours] == [
        id for _, id in loop(model, vectors, ids, query, without={"003"})
    ]


def test_an_enrolled_query_that_is_excluded_never_finds_itself(gallery, model):
    sample = gallery.store.sample(1000, 0)
    found = gallery.store.search(sample.vectors, 5, exclude=sample.keys)
    assert not (found.keys == sample.keys[:, None]).any()
    ids = [item.id for item in gallery.store.items(sample.keys)]
    for row in range(0, len(ids), 9):
        expected = loop(model, sample.vectors, ids, sample.vectors[row], without={ids[row]})[:5]
        assert [item.id for item in gallery.store.items(found.keys[row])] == [id for _, id in expected]


def test_the_first_of_a_pair_is_the_enrolled_one(gallery, model):
    a, b = gallery.embed([picture("red", 100), picture("blue", 100)])
    assert gallery.verify_vectors(a, b).distance == pytest.approx(-similarity(model, a, b), rel=1e-5)
    assert gallery.verify_vectors(b, a).distance == pytest.approx(-similarity(model, b, a), rel=1e-5)
    assert similarity(model, a, b) != pytest.approx(similarity(model, b, a), abs=1e-3)
    ruling = gallery.verify(picture("red", 100), picture("red", 101), false_accept_rate=0.05)
    assert ruling.same is (ruling.distance <= ruling.threshold)
    assert 0 < ruling.probability < 1


def test_identify_is_ned_over_the_similarity(gallery, model):
    """S in the place of minus the squared distance, each class by its size, raised to the fitted power."""
    fitted = gallery.recalibrate()
    found = fitted.identification
    assert found.similarity
    assert np.isfinite(found.temperature)
    assert found.temperature > 0
    query = gallery.embed([picture("green", 100)])[0]
    ids, vectors = stored(gallery)
    sums = dict.fromkeys(COLOURS, 0.0)
    near = loop(model, vectors, ids, query)[: fitted.k]
    for distance, id in near:
        sums[gallery.get(id).label] += np.exp((near[0][0] - distance) / found.temperature) / 14
    powers = {name: total**found.sharpness for name, total in sums.items()}
    match = gallery.identify_vectors(query[None])[0]
    best = max(powers, key=lambda name: powers[name])
    expected = min(powers[best] / sum(powers.values()), found.ceiling)
    assert match.label == best
    assert match.probability == pytest.approx(expected, rel=1e-4)
    assert (match.known is False) is (near[0][0] > fitted.horizon.threshold)


def test_a_gallery_that_is_opened_again_answers_the_same(gallery, model, tmp_path):
    asked = picture("grey", 100)

    def answers(one: Gallery) -> list:
        found = [one.identify(asked), one.search(asked, 9), one.verify(asked, picture("red", 3))]
        return [*found, one.stats().calibration]

    before = answers(gallery)
    gallery.close()
    with Gallery.open(tmp_path / "a.gallery") as again:
        after = answers(again)
        assert isinstance(again.space, LearnedSpace)
        assert isinstance(again.encoder.embedder, SimilarityModel)
    assert before == after
    assert after[3]["identification"]["similarity"] is True


def test_another_model_is_refused(gallery, tmp_path):
    gallery.close()
    with pytest.raises(ModelError, match="rebuild"):
        Gallery.open(tmp_path / "a.gallery", made(4))


def test_a_gallery_without_its_model_says_so(gallery, model, tmp_path):
    gallery.close()
    for file in (tmp_path / "a.gallery").glob("model-*"):
        file.unlink()
    with pytest.raises(StorageError, match="model"):
        Gallery.open(tmp_path / "a.gallery")
    from nearkin.gallery.sqlite import SqliteStore

    store = SqliteStore.open(tmp_path / "a.gallery")
    with pytest.raises(StorageError, match="model"):
        store.search(np.zeros((1, DIMENSION), np.float32), 1)
    store.close()
    with Gallery.open(tmp_path / "a.gallery", model) as again:
        assert len(again.search(picture("red", 0), 3)) == 3


def test_training_on_does_not_reach_a_gallery(tmp_path, pictures, labels):
    trained = made(5)
    with Gallery.create(tmp_path / "b.gallery", trained, pictures, labels, progress=False) as gallery:
        before = gallery.search(pictures[0], 5)
        with torch.no_grad():
            trained.network.second.weight.neg_()
        trained.network.train()
        gallery.add([picture("red", 77)], ["red"], ids=["late"], progress=False)
        after = [near for near in gallery.search(pictures[0], 6) if near.item.id != "late"][:5]
        assert [near.distance for near in after] == [near.distance for near in before]


def test_rebuilding_changes_the_similarity(gallery, tmp_path):
    other = made(8)
    gallery.rebuild(other, progress=False)
    ids, vectors = stored(gallery)
    query = gallery.embed([picture("red", 100)])[0]
    found = [near.item.id for near in gallery.search_vectors(query, 6)[0]]
    assert found == [id for _, id in loop(other, vectors, ids, query)[:6]]
    plain = build_embedder(ModelSection(backbone="conv4", size=32, dimension=8), seed=2).eval()
    gallery.rebuild(plain, progress=False)
    assert gallery.space.name == "sphere"
    assert all(near.distance >= 0 for near in gallery.search(picture("red", 100), 6))
    gallery.rebuild(other, progress=False)
    assert [near.item.id for near in gallery.search_vectors(query, 6)[0]] == found


def test_another_process_sees_a_rebuild(gallery, tmp_path, model):
    with Gallery.open(tmp_path / "a.gallery") as reader:
        reader.search(picture("red", 100), 3)
        other = made(9)
        gallery.rebuild(other, progress=False)
        ids, vectors = stored(gallery)
        query = reader.embed([picture("red", 100)])[0]
        assert [near.item.id for near in reader.search_vectors(query, 6)[0]] == [
            id for _, id in loop(other, vectors, ids, query)[:6]
        ]


def test_export_and_import_keep_the_answers(gallery, model, tmp_path):
    assert gallery.export(tmp_path / "a.parquet") == 56
    with Gallery.create(tmp_path / "b.gallery", model) as twin:
        assert twin.import_(tmp_path / "a.parquet") == 56
        one, other = gallery.search(picture("red", 100), 9), twin.search(picture("red", 100), 9)
        assert [near.item.id for near in one] == [near.item.id for near in other]
        assert [near.distance for near in one] == [near.distance for near in other]
    with Gallery.create(tmp_path / "c.gallery", made(4)) as stranger, pytest.raises(ModelError, match="conv4"):
        stranger.import_(tmp_path / "a.parquet")


def test_a_class_is_enrolled_from_a_handful(gallery):
    before = len(gallery)
    gallery.enrol("pale", [picture("grey", number) for number in range(300, 304)])
    assert len(gallery) == before + 4
    assert gallery.stats().classes["pale"] == 4


def test_a_graph_is_refused(gallery, model, tmp_path, pictures):
    pytest.importorskip("faiss")
    with pytest.raises(DataError, match="similarity"):
        Gallery.create(tmp_path / "b.gallery", model, pictures[:2], index="hnsw", progress=False)
    assert not (tmp_path / "b.gallery").exists()
    gallery.close()
    with pytest.raises(DataError, match="similarity"):
        Gallery.open(tmp_path / "a.gallery", index="hnsw")


def test_auto_is_exact_however_large(gallery, monkeypatch, tmp_path):
    monkeypatch.setattr("nearkin.gallery.sqlite.mirror._MANY", 10)
    gallery.close()
    with Gallery.open(tmp_path / "a.gallery") as again:
        again.add([picture("red", 70)], ["red"], progress=False)
        assert again.store.kind == "exact"


def test_milvus_is_refused(model):
    from nearkin.gallery.milvus.change import check_settings
    from nearkin.gallery.model import settings_of

    with pytest.raises(DataError, match="similarity"):
        check_settings(settings_of(model, None, None, None, "float32"))


def test_a_learned_space_is_no_space_for_vectors_you_bring(tmp_path, model):
    with pytest.raises(DataError, match="model"):
        Gallery.create(tmp_path / "b.gallery", dimension=DIMENSION, name="mine", space=model.space)


def test_copies_are_told_by_the_base_space(gallery):
    gallery.add([picture("red", 0)], ["green"], ids=["copy"], progress=False)
    groups = gallery.find_duplicates(0.0)
    assert {item.id for item in groups[0].items} == {"000", "copy"}
    assert groups[0].distance == pytest.approx(0, abs=1e-5)
    _, vectors = stored(gallery)
    gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert all(0 < group.distance <= gaps.max() for group in gallery.find_duplicates(1e6))


def test_what_the_gallery_says_of_itself_works(gallery):
    assert len(gallery.map()) == 56
    assert all(0 <= value <= 1 for value in gallery.place(gallery.embed([picture("red", 1)])[0]))
    gallery.relabel("000", "blue")
    assert all(0 <= suspect.probability <= 1 for suspect in gallery.suspicious_labels())
    assert gallery.reliability()["items"] == 56


def test_thresholds_go_below_equal_impostors_of_any_sign():
    rng = np.random.default_rng(0)
    genuine = rng.normal(-6, 1, 400).astype(np.float32)
    impostors = np.concatenate([np.full(100, -4.0), rng.normal(5, 1, 900)]).astype(np.float32)
    rule = fit_pair_rule(PairDistances(genuine, np.ones(400), impostors, -np.inf))
    ruling = rule.judge(-4.5, 0.01)
    assert ruling.threshold < -4
    assert ruling.same
    assert not rule.judge(-4.0, 0.01).same
    assert rule.slope < 0


# The index alone.


def network_of(dimension: int, hidden: int, symmetric: str | None, seed: int = 0) -> LearnedSpace:
    torch.manual_seed(seed)
    return LearnedSpace(
        Euclidean(), PairSimilarity(dimension, hidden, symmetric=symmetric).eval().requires_grad_(False)
    )


@torch.no_grad()
def table(space: LearnedSpace, queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """-S of every query with every vector, pair by pair in float64."""
    network = space.network.double()
    x, y = torch.from_numpy(queries).double(), torch.from_numpy(vectors).double()
    found = [[-float(network(enrolled, query)) for enrolled in y] for query in x]
    space.network.float()
    return np.array(found)


@pytest.mark.parametrize("symmetric", [None, "max", "mean"])
@pytest.mark.parametrize("queries", [1, 90])
def test_the_index_is_a_loop_over_pairs(symmetric, queries):
    rng = np.random.default_rng(queries)
    space = network_of(6, 10, symmetric)
    vectors = rng.standard_normal((150, 6)).astype(np.float32)
    asked = rng.standard_normal((queries, 6)).astype(np.float32)
    codes = rng.integers(0, 3, 150).astype(np.int32)
    codes[::7], codes[::11] = UNLABELLED, ABSENT
    index = VectorIndex(space, 6)
    index.append(vectors[:100], codes[:100])
    index.search(asked[:1], 1)  # sides of the first slots are there when the others come
    index.append(vectors[100:], codes[100:])
    allowed = rng.random(150) < 0.7
    exclude = rng.integers(-1, 150, queries)
    distances, slots = index.search(asked, 12, allowed=allowed, labelled=True, exclude=exclude)
    true = table(space, asked, vectors)
    for row in range(queries):
        seen = [s for s in np.argsort(true[row], kind="stable") if allowed[s] and codes[s] >= 0 and s != exclude[row]]
        assert slots[row].tolist() == seen[:12]
        assert distances[row] == pytest.approx(true[row][seen[:12]], rel=1e-6, abs=1e-6)


def test_few_allowed_slots_are_padded():
    space = network_of(4, 8, None)
    vectors = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    index = VectorIndex(space, 4)
    index.append(vectors, np.zeros(500, np.int32))
    allowed = np.zeros(500, bool)
    allowed[[3, 400]] = True
    distances, slots = index.search(vectors[:2], 4, allowed=allowed)
    assert sorted(slots[0].tolist()) == [-1, -1, 3, 400]
    assert np.isinf(distances[:, 2:]).all()
    empty = VectorIndex(space, 4).search(vectors[:2], 2)
    assert (empty[1] == -1).all()


def test_equal_vectors_come_in_order_of_their_slots():
    space = network_of(5, 16, None)
    rng = np.random.default_rng(0)
    few = rng.standard_normal((4, 5)).astype(np.float32)
    vectors = np.tile(few, (3000, 1))  # so many equals that a scan gives up
    index = VectorIndex(space, 5)
    index.append(vectors, np.zeros(len(vectors), np.int32))
    _, slots = index.search(rng.standard_normal((3, 5)).astype(np.float32), 50)
    for row in slots:
        assert (np.diff(row) == 4).all()
        assert row[0] < 4


def test_what_float32_cannot_tell_apart_is_told_apart():
    space = network_of(3, 64, None, seed=2)
    rng = np.random.default_rng(1)
    vectors = (1 + 1e-5 * rng.standard_normal((300, 3))).astype(np.float32)
    index = VectorIndex(space, 3)
    index.append(vectors, np.zeros(300, np.int32))
    asked = np.ones((1, 3), np.float32)
    _, slots = index.search(asked, 20)
    true = table(space, asked, vectors)[0]
    assert true[slots[0]] == pytest.approx(np.sort(true)[:20], rel=0, abs=1e-11)
    narrow = -(space.network.table(torch.from_numpy(asked), torch.from_numpy(vectors))[0]).numpy()
    assert np.argsort(narrow, kind="stable")[:20].tolist() != slots[0].tolist()  # float32 alone would be wrong


def test_one_query_among_many_items_takes_little():
    space = network_of(64, 512, None)
    vectors = np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32)
    index = VectorIndex(space, 64)
    index.append(vectors, np.zeros(len(vectors), np.int32))
    index.search(vectors[:1], 10)
    calls = []
    original = index._sides.space.sides

    def counted(dtype=torch.float32):
        apart = original(dtype)
        inner = apart.of_enrolled
        apart.of_enrolled = lambda points: (calls.append(len(points)), inner(points))[1]
        return apart

    index._sides.space.sides = counted
    start = time.perf_counter()
    index.search(vectors[5:6], 10)
    assert time.perf_counter() - start < 1.0
    assert sum(calls) < 500  # candidates alone: the enrolled side is not computed again


def test_the_kept_model_is_a_similarity_model(gallery, tmp_path):
    (file,) = (tmp_path / "a.gallery").glob("model-*.safetensors")
    assert isinstance(Embedder.load(file), SimilarityModel)


COMPARED = {"MAP@R": {"cosine": 0.4, "sim": 0.3, "cosine+sim": 0.35}, "best": "cosine", "items": 20}


@pytest.mark.parametrize("by", ["cosine", "cosine+sim", "raw-sum"])
def test_a_gallery_compares_as_it_is_told_and_says_so_when_opened(tmp_path, model, pictures, labels, by):
    with Gallery.create(tmp_path / "a.gallery", model, pictures, labels, compare=by, progress=False) as made_now:
        assert made_now.comparison is None, "the model was not validated on unseen classes"
    with Gallery.open(tmp_path / "a.gallery") as gallery:
        query = gallery.embed([picture("red", 77)])
        found = gallery.search_vectors(query, 10)[0]
        ids = [item.id for item in gallery.items(limit=100)]
        vectors = gallery.store.vectors(ids)
        scores = model.pair_scores(vectors, np.repeat(query, len(vectors), axis=0), by)
        order = np.argsort(-scores, kind="stable")[:10]
        assert [near.item.id for near in found] == [ids[place] for place in order]
        far = -scores[order] if by != "cosine" else np.sqrt(2 - 2 * scores[order].clip(max=1))
        np.testing.assert_allclose([near.distance for near in found], far, rtol=1e-3, atol=1e-3)
        assert gallery.identify(picture("red", 77)).label == found[0].item.label
        assert gallery.verify(picture("red", 77), picture("red", 78)).distance is not None


def test_vectors_of_one_model_move_between_galleries_that_compare_in_two_ways(gallery, tmp_path, model):
    gallery.export(tmp_path / "all.parquet")
    with Gallery.create(tmp_path / "b.gallery", model, compare="cosine", progress=False) as other:
        assert other.import_(tmp_path / "all.parquet") == len(gallery)
        ids = [item.id for item in gallery.items(limit=5)]
        np.testing.assert_array_equal(other.store.vectors(ids), gallery.store.vectors(ids))


def test_a_gallery_goes_by_what_validation_found_best(tmp_path, pictures, labels):
    judged = made(3)
    judged.card = replace(judged.card, compared=COMPARED)
    with Gallery.create(tmp_path / "a.gallery", judged, pictures, labels, progress=False) as gallery:
        assert gallery.settings.space["name"] == "sphere"
        assert "40.0 by cosine" in gallery.comparison
    with Gallery.create(tmp_path / "b.gallery", judged, compare="sim", progress=False) as gallery:
        assert gallery.settings.space == judged.space.to_dict()
        assert "where cosine was best" in gallery.comparison
    with pytest.raises(DataError, match="cosine"):
        Gallery.create(tmp_path / "c.gallery", judged, compare="cosinus")
    with pytest.raises(DataError, match="compare"):
        Gallery.create(tmp_path / "c.gallery", dimension=3, name="rgb", compare="sim")


def test_prototypes_name_the_class_whose_mean_is_most_similar(gallery, model, pictures, labels):
    asked = [picture(colour, 300) for colour in COLOURS]
    found = gallery.identify_many(asked, by="prototypes")
    usual = gallery.identify_many(asked)
    few = model.few_shot(gallery.store.vectors([f"{number:03d}" for number in range(len(pictures))]), labels)
    for match, other, label in zip(found, usual, few.classify(gallery.embed(asked)).labels, strict=True):
        assert match.label == label
        assert sum(one.probability for one in match.candidates) == pytest.approx(1, abs=1e-4)
        assert (match.known, match.neighbours) == (other.known, other.neighbours)
    gallery.enrol("pink", [picture("red", 301)])
    assert {"pink"} <= {one.label for one in gallery.identify(asked[0], by="prototypes").candidates}
    with pytest.raises(DataError, match="prototypes"):
        gallery.identify(asked[0], by="prototype")
