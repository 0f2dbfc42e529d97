"""One model, four tasks: what it answers is what its parts give, looked at one by one."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.sources import open_data
from nearkin.errors import CheckpointError, DataError, ModelError
from nearkin.models import Card, Embedder, LearnedSpace, ModelSection, SimilarityModel, build_embedder

CLASSES = ("ape", "bee", "cat")


def make(seed=0, space="euclidean", radius=None, **similarity):
    section = ModelSection(
        backbone="lenet",
        channels=1,
        size=28,
        dimension=6,
        space=space,
        space_parameters={} if radius is None else {"radius": radius},
        similarity={"hidden": 32, **similarity},
    )
    model = build_embedder(section, seed, classes=CLASSES)
    assert isinstance(model, SimilarityModel)
    return model.eval()


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 255, (8, 28, 28), dtype=np.uint8)


@pytest.fixture
def vectors():
    return np.random.default_rng(1).normal(size=(12, 6)).astype(np.float32)


def similarity(model, enrolled, query):
    """S of one pair in double precision, as the paper writes it."""
    state = {name: value.double().numpy() for name, value in model.network.state_dict().items()}
    hidden = state["first.weight"] @ np.concatenate([enrolled, query]).astype(np.float64) + state["first.bias"]
    hidden = np.where(hidden > 0, hidden, 0.1 * hidden)
    return float(state["second.weight"][0] @ hidden + state["second.bias"][0])


def test_saved_and_loaded_it_answers_the_same(tmp_path, images):
    model = make()
    model.save(tmp_path / "model.safetensors")
    again = Embedder.load(tmp_path / "model.safetensors")
    assert isinstance(again, SimilarityModel)
    assert again.classes == CLASSES
    assert again.fingerprint() == model.fingerprint()
    torch.testing.assert_close(again.prototypes.points, model.prototypes.points, rtol=0, atol=0)
    for by in ("sim", "dol"):
        assert np.array_equal(again.classify(images, by).probabilities, model.classify(images, by).probabilities)


def test_prototypes_and_network_are_part_of_the_fingerprint():
    model = make()
    before = model.fingerprint()
    model.prototypes.points[0, 0] += 1
    moved = model.fingerprint()
    with torch.no_grad():
        model.network.second.bias += 1
    assert len({before, moved, model.fingerprint()}) == 3


def test_classify_by_prototypes_and_by_the_dense_layer(vectors):
    model = make()
    for by in ("sim", "dol"):
        found = model.classify(vectors, by)
        for row, vector in enumerate(vectors):
            if by == "sim":
                scores = [similarity(model, prototype, vector) for prototype in model.prototypes.points.numpy()]
            else:
                scores = (model.dense.weight.detach().numpy() @ vector + model.dense.bias.detach().numpy()).tolist()
            expected = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(found.probabilities[row], expected, rtol=1e-4)
            assert found.labels[row] == CLASSES[int(np.argmax(expected))]


def test_classify_takes_images_and_drops_nothing_out_while_training(images):
    model = make(dropout=0.5)
    at_rest = model.classify(images).probabilities
    np.testing.assert_allclose(at_rest, model.classify(model.encode(images, progress=False)).probabilities, rtol=1e-5)
    model.train()
    model.network.train()
    assert np.array_equal(model.classify(model.encode(images, progress=False)).probabilities, at_rest)
    assert model.network.training


def test_few_shot_replaces_the_prototypes_and_nothing_else(vectors):
    model = make()
    before = copy.deepcopy(model.state_dict())
    labels = ["owl", "elk", "owl", "elk"]
    new = model.few_shot(vectors[:4], labels)
    assert new.classes == ("elk", "owl")
    np.testing.assert_allclose(new.prototypes.points[1], vectors[[0, 2]].mean(axis=0), rtol=1e-6)
    for vector, label in zip(vectors[4:], new.classify(vectors[4:]).labels, strict=True):
        scores = [similarity(model, prototype, vector) for prototype in new.prototypes.points.numpy()]
        assert label == new.classes[int(np.argmax(scores))]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.classes == CLASSES
    with pytest.raises(ModelError, match="dense"):
        new.classify(vectors, "dol")


def test_few_shot_from_a_folder_of_classes(tmp_path, images):
    for name, image in zip(["elk", "owl"], images, strict=False):
        (tmp_path / name).mkdir()
        Image.fromarray(image).save(tmp_path / name / "0.png")
    model = make()
    new = model.few_shot(tmp_path)
    np.testing.assert_allclose(new.prototypes.points, model.encode(images[:2], progress=False), rtol=1e-4, atol=1e-5)
    assert new.classes == ("elk", "owl")


def test_few_shot_model_can_be_saved(tmp_path, vectors):
    new = make().few_shot(vectors[:4], list("abab"))
    new.save(tmp_path / "new.safetensors")
    again = Embedder.load(tmp_path / "new.safetensors")
    assert np.array_equal(again.classify(vectors).labels, new.classify(vectors).labels)


def test_verify_scores_pairs_one_to_one(vectors):
    model = make()
    a, b = vectors[:5], vectors[5:10]
    by_sim = model.verify(a, b, "sim")
    by_cosine = model.verify(a, b, "cosine")
    for row in range(5):
        assert by_sim[row] == pytest.approx(similarity(model, a[row], b[row]), rel=1e-4, abs=1e-5)
        cosine = a[row] @ b[row] / np.linalg.norm(a[row]) / np.linalg.norm(b[row])
        assert by_cosine[row] == pytest.approx(cosine, rel=1e-4, abs=1e-6)
        fused = (1 / (1 + np.exp(-by_sim[row])) + (1 + cosine) / 2) / 2
        assert model.verify(a, b)[row] == pytest.approx(fused, rel=1e-4)
    assert not np.allclose(by_sim, model.verify(b, a, "sim")), "enrolled and query are not the same"


@pytest.mark.parametrize("how", ["max", "mean"])
def test_a_symmetric_one_does_not_mind_the_order(how, vectors):
    model = make(symmetric=how)
    a, b = vectors[:5], vectors[5:10]
    np.testing.assert_allclose(model.verify(a, b, "sim"), model.verify(b, a, "sim"), rtol=1e-5)
    one, other = (np.array([similarity(model, x, y) for x, y in zip(*pair, strict=True)]) for pair in ((a, b), (b, a)))
    both = np.maximum(one, other) if how == "max" else (one + other) / 2
    np.testing.assert_allclose(model.verify(a, b, "sim"), both, rtol=1e-4, atol=1e-5)


def test_retrieve_finds_the_most_similar_and_never_the_query(vectors):
    model = make()
    found, indices = model.retrieve(vectors, k=4)
    table = np.array([[similarity(model, item, query) for item in vectors] for query in vectors])
    np.fill_diagonal(table, -np.inf)
    assert np.array_equal(indices, np.argsort(-table, axis=1)[:, :4])
    np.testing.assert_allclose(found, np.take_along_axis(table, indices, axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", ["cosine", "cosine+sim", "raw-sum"])
def test_retrieve_by_another_score_is_verify_of_every_pair(vectors, by):
    model = make()
    found, indices = model.retrieve(vectors, k=4, by=by)
    table = np.array([model.verify(vectors, np.repeat(query[None], 12, axis=0), by) for query in vectors])
    np.fill_diagonal(table, -np.inf)
    assert np.array_equal(indices, np.argsort(-table, axis=1)[:, :4])
    np.testing.assert_allclose(found, np.take_along_axis(table, indices, axis=1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="retrieve"):
        model.retrieve(vectors, by="cosinus")


def test_retrieve_knows_a_query_by_its_file(tmp_path, images):
    paths = []
    for place, image in enumerate(images):
        paths.append(tmp_path / f"{place}.png")
        Image.fromarray(image).save(paths[-1])
    model = make()
    _, indices = model.retrieve(paths, k=7, queries=[str(tmp_path / "." / "2.png"), paths[5]])
    assert 2 not in indices[0]
    assert 5 not in indices[1]
    assert {5, 2} <= {*indices[0], *indices[1]}
    _, among = model.retrieve(images[:4], k=4, queries=images[4:])
    assert np.sort(among, axis=1).tolist() == [[0, 1, 2, 3]] * 4


def test_a_query_is_known_however_its_file_is_named(tmp_path, images, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, image in enumerate(images):
        folder = tmp_path / "photos" / str(place % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{place}.png")
    model = make()
    dataset = open_data("photos", progress=False)
    paths = [tmp_path / "photos" / path for path in dataset.manifest.paths]
    own = np.arange(len(images))[:, None]
    for gallery, queries in [
        (dataset, paths),
        ("photos", paths),
        (paths, "photos/"),
        ("photos", str(tmp_path / "photos")),
        (open_data(tmp_path / "photos", progress=False), dataset),
    ]:
        _, indices = model.retrieve(gallery, k=7, queries=queries)
        assert (np.sort(np.hstack([indices, own]), axis=1) == np.arange(8)).all()
    twice = [*paths, *paths]
    _, indices = model.retrieve(twice, k=14, queries=paths)
    assert (indices % 8 != own).all()
    with pytest.raises(DataError, match="14"):
        model.retrieve(twice, k=15, queries=paths)


def test_no_graph_is_kept_unless_points_learn(vectors):
    model = make()
    x = torch.from_numpy(vectors)
    assert not model.space.distance(x, x).requires_grad
    assert model.space.distance(x.clone().requires_grad_(True), x).requires_grad


def test_few_shot_model_tells_what_it_is(vectors):
    model = make()
    model.card = Card(validation={"accuracy": 0.9}, finished=True)
    new = model.few_shot(vectors[:3], ["a", "b", "a"])
    assert new.card["few_shot"] == {"items": {"a": 2, "b": 1}}
    assert "validation" not in new.card
    assert model.card["validation"] == {"accuracy": 0.9}


def test_log_probabilities_have_gradients_down_to_the_input():
    model = make().double()
    x = torch.randn(2, 1, 28, 28, dtype=torch.double)
    for by in ("sim", "dol"):
        logs = model.log_probabilities(x, by)
        torch.testing.assert_close(logs.exp().sum(dim=1), torch.ones(2, dtype=torch.double))
    vectors = torch.randn(2, 6, dtype=torch.double, requires_grad=True)
    for by in ("sim", "dol"):
        assert torch.autograd.gradcheck(lambda v, by=by: model.class_scores(v, by).log_softmax(dim=1), vectors)
    x.requires_grad_(True)
    model.log_probabilities(x, "sim")[0, 0].backward()
    assert x.grad[0].abs().sum() > 0
    assert x.grad[1].abs().sum() == 0


def test_the_space_compares_by_the_similarity(vectors):
    model = make()
    assert isinstance(model.space, LearnedSpace)
    x = torch.from_numpy(vectors)
    with torch.no_grad():
        distances = model.space.distance(x[:3], x[3:])
    expected = [[-similarity(model, item, query) for item in vectors[3:]] for query in vectors[:3]]
    np.testing.assert_allclose(distances, expected, rtol=1e-4, atol=1e-5)
    twin = copy.deepcopy(model)
    assert twin.space.network is twin.network is not model.network


def test_refusals(tmp_path, vectors):
    model = make()
    with pytest.raises(ModelError, match=r"\bsim\b"):
        model.classify(vectors, "simm")
    with pytest.raises(ModelError, match="cos"):
        model.verify(vectors, vectors, "cos")
    with pytest.raises(DataError, match=r"12\b.*\b3\b"):
        model.verify(vectors, vectors[:3])
    for wrong in (vectors[:, :4], vectors[0]):
        with pytest.raises(DataError, match="shape"):
            model.pair_scores(wrong, wrong)
    with pytest.raises(DataError, match="12, 4"):
        model.classify(vectors[:, :4])
    spoilt = vectors.copy()
    spoilt[3, 0] = np.nan
    for call in (model.classify, lambda x: model.verify(x, x), lambda x: model.few_shot(x, ["a"] * 12)):
        with pytest.raises(DataError, match="NaN"):
            call(spoilt)
    with pytest.raises(DataError, match="11"):
        model.retrieve(vectors, k=12)
    with pytest.raises(DataError, match="support"):
        model.few_shot(vectors[:0], [])
    with pytest.raises(DataError, match="3"):
        model.few_shot(vectors[:3], "abc")
    for missing in (None, float("nan"), ""):
        with pytest.raises(DataError, match="1"):
            model.few_shot(vectors[:2], ["a", missing])
    assert model.classify(torch.from_numpy(vectors).bfloat16()).probabilities.shape == (12, 3)
    with pytest.raises(DataError, match="labels"):
        model.few_shot(vectors)
    with pytest.raises(DataError, match=r"12\b.*\b2\b"):
        model.few_shot(vectors, ["a", "b"])
    model.save(tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes().replace(b'\\"dense\\": true', b'\\"dense\\":false')
    (tmp_path / "broken.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors"):
        Embedder.load(tmp_path / "broken.safetensors")


@pytest.mark.parametrize("form", ["concatenation", "difference"])
def test_a_prototype_means_the_same_however_it_came_to_be(form, vectors):
    model = make(space="sphere", radius=8, form=form)
    points = model.base.project(torch.from_numpy(vectors)).numpy()
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 8, rtol=1e-4)
    names = np.array(["ape", "bee", "cat"] * 4)
    few = model.few_shot(points, names)
    with torch.no_grad():  # as training leaves them: plain means of points
        for row, name in enumerate(CLASSES):
            model.prototypes.points[row] = torch.from_numpy(points[names == name].mean(axis=0))
    np.testing.assert_allclose(model.prototypes.placed(), few.prototypes.placed(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.classify(points).probabilities, few.classify(points).probabilities, rtol=1e-3)


@pytest.mark.parametrize(("form", "depth"), [("difference", 1), ("difference", 2), ("concatenation", 2)])
def test_a_saved_form_is_loaded(tmp_path, form, depth, vectors):
    model = make(form=form, depth=depth)
    model.save(tmp_path / "model.safetensors")
    again = Embedder.load(tmp_path / "model.safetensors")
    assert (again.network.form, again.network.depth) == (form, depth)
    assert again.fingerprint() == model.fingerprint()
    assert np.array_equal(
        again.verify(vectors[:4], vectors[4:8], "sim"), model.verify(vectors[:4], vectors[4:8], "sim")
    )


def test_raw_sum_is_the_logit_plus_the_cosine(vectors):
    model = make()
    a, b = vectors[:5], vectors[5:10]
    expected = model.verify(a, b, "sim") + model.verify(a, b, "cosine")
    np.testing.assert_allclose(model.verify(a, b, "raw-sum"), expected, rtol=1e-5)
