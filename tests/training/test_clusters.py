"""Cluster radii, centroid drift and centroid accuracy during training: by naive loops, resumed, and read back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.errors import RecipeError, RunError
from nearkin.recipe import load_recipe
from nearkin.spaces import Sphere, make_space
from nearkin.training import Run, train
from nearkin.training.batches import TrainingPool
from nearkin.training.clusters import ClusterWatch, read_clusters

DIMENSION = 5
SIZES = [7, 3, 1, 7, 4]
NAMES = ["ant", "bee", "cat", "dog", "élan"]
KEYS = {"cluster_radius", "centroid_drift", "centroid_accuracy"}


class Vectors:
    """Batches whose items are vectors, one for each training item."""

    start = None

    def __init__(self, vectors):
        self.vectors = vectors

    def plain(self, positions):
        return self.vectors[positions]


class Turning(nn.Module):
    """An embedder that is a linear map; embeddings in training mode would be wrong."""

    dimension = DIMENSION

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(DIMENSION))
        self.normalise = nn.Module()
        self.normalise.register_buffer("mean", torch.zeros(1))

    def forward(self, inputs, start=None):
        assert not self.training
        return inputs @ self.weight

    def turn(self, seed):
        noise = torch.randn(DIMENSION, DIMENSION, generator=torch.Generator().manual_seed(seed))
        self.weight.data += 0.2 * noise


class Scene:
    """Items of five classes of unlike sizes, an embedder, and the watch on them."""

    def __init__(self, folder, space="sphere", items=4, seed=0):
        rng = np.random.default_rng(seed)
        self.ids = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
        centres = rng.normal(size=(len(SIZES), DIMENSION))
        vectors = centres[self.ids] + 0.7 * rng.normal(size=(len(self.ids), DIMENSION))
        self.vectors = torch.from_numpy(vectors).float()
        self.embedder = Turning()
        self.space = make_space(space)
        self.pool = TrainingPool(Vectors(self.vectors), self.embedder, self.ids, seed)
        self.watch = ClusterWatch(folder, self.pool, self.space, NAMES, items)
        self.chosen = self.pool.draw(0, items)

    def naive(self):
        """Centroids, radii and the share nearest to their own centroid, item by item."""
        raw = self.vectors @ self.embedder.weight.detach()
        members = [sorted(set(row)) for row in self.chosen.tolist()]
        points = [[self.space.project(raw[item]) for item in row] for row in members]
        centroids = [self.space.mean(torch.stack(own)) for own in points]
        radii = [np.mean([self._far(point, c) for point in own]) for own, c in zip(points, centroids, strict=True)]
        hits = []
        for label, own in enumerate(points):
            hits += [int(np.argmin([self._far(point, c) for c in centroids]) == label) for point in own]
        return torch.stack(centroids).numpy(), np.array(radii), np.mean(hits)

    def _far(self, x, y):
        return self.space.distance(x[None], y[None]).item()


@pytest.mark.parametrize("space", ["sphere", "euclidean", "lipschitz-ball", "poincare-ball"])
@pytest.mark.parametrize("items", [2, 4, 100])
def test_what_it_sees_is_what_loops_find(space, items, tmp_path):
    scene = Scene(tmp_path, space, items)
    said, expected = [], []
    for step in (10, 20, 35):
        scene.embedder.turn(step)
        said.append(scene.watch.look(step))
        expected.append(scene.naive())
    found = read_clusters(tmp_path)
    assert found.steps.tolist() == [10, 20, 35]
    assert found.class_names == tuple(NAMES)
    assert found.space == scene.space
    drift = []
    for place, (centroids, radii, accuracy) in enumerate(expected):
        if place:
            np.testing.assert_allclose(found.centroids[place - 1], centroids, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.radii[place], radii, rtol=1e-4, atol=1e-5)
        assert found.accuracy[place] == said[place]["centroid_accuracy"] == pytest.approx(accuracy)
        assert said[place]["cluster_radius"] == pytest.approx(radii.mean(), rel=1e-4)
        if place:
            before = expected[place - 1][0]
            drift.append([scene._far(*map(torch.from_numpy, pair)) for pair in zip(centroids, before, strict=True)])
            assert said[place]["centroid_drift"] == pytest.approx(np.mean(drift[-1]), rel=1e-4)
    np.testing.assert_allclose(found.drift, drift, rtol=1e-4, atol=1e-5)
    assert 0.3 < found.accuracy.min() < 1
    assert set(said[0]) == KEYS - {"centroid_drift"}
    assert set(said[1]) == KEYS


def test_the_same_items_are_looked_at_each_time_and_no_more_than_asked_for(tmp_path):
    scene = Scene(tmp_path, items=3)
    asked = []
    plain = scene.pool.batches.plain
    scene.pool.batches.plain = lambda positions: asked.append(sorted(positions.tolist())) or plain(positions)
    scene.watch.look(1)
    scene.watch.look(2)
    assert asked[0] == asked[1]
    assert np.bincount(scene.ids[asked[0]]).tolist() == [3, 3, 1, 3, 3]
    found = read_clusters(tmp_path)
    assert not found.drift.any()
    assert found.radii[0, 2] == pytest.approx(0, abs=1e-6)  # a class of one item


def test_the_network_is_left_as_it_was(tmp_path):
    scene = Scene(tmp_path)
    scene.embedder.train()
    state = torch.get_rng_state()
    scene.watch.look(1)
    assert scene.embedder.training
    assert scene.embedder.weight.grad is None
    assert torch.equal(state, torch.get_rng_state())


def test_a_look_drops_what_was_written_of_its_own_step_and_later_ones(tmp_path):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    scene, other = Scene(straight), Scene(resumed)
    for step in (10, 20, 30, 40):
        scene.embedder.turn(step)
        kept = scene.watch.look(step)
    for step in (10, 20, 30):
        if step < 30:
            other.embedder.turn(step)
        other.watch.look(step)  # at 30 with weights that the checkpoint never had
    again = Scene(resumed)
    for step in (10, 20):
        again.embedder.turn(step)
    for step in (30, 40):
        again.embedder.turn(step)
        said = again.watch.look(step)
    assert said == kept
    first, second = read_clusters(straight), read_clusters(resumed)
    for name in ("steps", "centroids", "radii", "drift", "accuracy"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_embeddings_that_are_not_finite_leave_nothing(tmp_path):
    scene = Scene(tmp_path)
    scene.embedder.weight.data[0, 0] = float("nan")
    assert scene.watch.look(1) == {}
    assert read_clusters(tmp_path) is None


def test_the_distance_is_that_of_the_models_space(tmp_path):
    scene = Scene(tmp_path)
    scene.watch._space = Sphere(metric="angle")
    scene.watch.look(1)
    found = read_clusters(tmp_path)
    assert found.space == Sphere(metric="angle")
    assert (found.radii[0, [0, 1, 3, 4]] > scene.naive()[1][[0, 1, 3, 4]]).all()  # an arc is longer than its chord


# Files.


def test_a_run_that_did_not_look_has_none(tmp_path):
    assert read_clusters(tmp_path) is None
    assert read_clusters(tmp_path / "nowhere") is None


def damaged(parts):
    """Parts of a file of three looks, each spoilt in its own way."""
    radii, steps = parts["radii"], parts["steps"]
    return {
        "missing": {name: part for name, part in parts.items() if name != "radii"},
        "shapes": parts | {"radii": radii[:, :2]},
        "flat": parts | {"centroids": parts["centroids"][:, :, 0]},
        "one centroid": parts | {"centroids": parts["centroids"][:1]},
        "drift": parts | {"drift": parts["drift"][:1]},
        "space": parts | {"space": np.array(json.dumps({"name": "flatland"}))},
        "numbered": parts | {"class_names": np.arange(len(NAMES))},
        "one name": parts | {"class_names": np.array("ant")},
        "words": parts | {"radii": radii.astype(str)},
        "fractions": parts | {"steps": steps / 2},
        "descending": parts | {"steps": steps[::-1]},
        "repeated": parts | {"steps": np.ones_like(steps)},
        "scalar": parts | {"steps": np.array(1)},
        "nan": parts | {"radii": np.where(radii == radii.max(), np.nan, radii)},
        "infinite": parts | {"accuracy": parts["accuracy"] * np.inf},
    }


DAMAGES = ["missing", "shapes", "flat", "one centroid", "drift", "space", "numbered", "one name", "words"]


@pytest.mark.parametrize(
    "damage", ["cut", "text", *DAMAGES, "fractions", "descending", "repeated", "scalar", "nan", "infinite"]
)
def test_a_damaged_file_is_told(damage, tmp_path):
    scene = Scene(tmp_path)
    for step in (1, 2, 3):
        scene.watch.look(step)
    path = tmp_path / "clusters.npz"
    with np.load(path) as stored:
        parts = dict(stored)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "text":
        path.write_text("steps")
    else:
        np.savez(path, **damaged(parts)[damage])
    with pytest.raises(RunError, match=r"clusters\.npz"):
        read_clusters(tmp_path)
    with pytest.raises(RunError, match=r"clusters\.npz"):
        Scene(tmp_path)


def test_a_file_of_other_classes_is_refused_before_anything_is_looked_at(tmp_path):
    scene = Scene(tmp_path)
    scene.watch.look(1)
    with pytest.raises(RunError, match="classes"):
        ClusterWatch(tmp_path, scene.pool, scene.space, ["a", "b", "c", "d", "e"], 4)
    scene.embedder.dimension = DIMENSION + 1
    with pytest.raises(RunError, match="classes"):
        ClusterWatch(tmp_path, scene.pool, scene.space, NAMES, 4)


def test_a_run_that_is_set_back_by_several_looks_begins_anew(tmp_path):
    scene = Scene(tmp_path)
    for step in (10, 20, 30):
        scene.watch.look(step)
    assert "centroid_drift" not in Scene(tmp_path).watch.look(15)  # the centroids of 10 are no longer known
    assert read_clusters(tmp_path).steps.tolist() == [15]


def test_a_long_watch_keeps_few_centroids(tmp_path):
    scene = Scene(tmp_path)
    for step in range(1, 8):
        scene.watch.look(step)
    found = read_clusters(tmp_path)
    assert found.centroids.shape == (2, len(SIZES), DIMENSION)
    assert found.drift.shape == (6, len(SIZES))


def test_a_single_look_has_no_drift(tmp_path):
    Scene(tmp_path).watch.look(1)
    found = read_clusters(tmp_path)
    assert found.drift.shape == (0, len(SIZES))
    assert found.centroids.shape == (1, len(SIZES), DIMENSION)


# In a training.

OVERRIDES = ["training.cluster_items=4", "objective.parameters.margins=[[0,0.5],[6,1.0],[9,1.5]]"]


def fit(patterns, path, tiny, *overrides, resume=False, name="run"):
    run = Run(path / name)
    recipe = load_recipe("growing-triplet", [*tiny, *OVERRIDES, *overrides])
    train(patterns, recipe, run, source="patterns", cache_directory=path / "cache", progress=False, resume=resume)
    return run


@pytest.mark.parametrize("more", [[], ["training.ema=0.9"], ["data.val_classes=0"]], ids=["plain", "averaged", "blind"])
def test_the_log_and_the_directory_of_a_run(more, patterns, tiny, tmp_path):
    run = fit(patterns, tmp_path, tiny, *more)
    rows = [row for row in run.history() if "cluster_radius" in row]
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert ["centroid_drift" in row for row in rows] == [False, True, True]
    found = run.clusters()
    assert found.steps.tolist() == [4, 8, 12]
    assert list(found.class_names) == run.model().card["classes"]["train"]
    assert found.centroids.shape == (2, len(found.class_names), 16)
    np.testing.assert_allclose([row["cluster_radius"] for row in rows], found.radii.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose([row["centroid_drift"] for row in rows[1:]], found.drift.mean(axis=1), rtol=1e-5)
    assert [row["centroid_accuracy"] for row in rows] == found.accuracy.tolist()
    assert (found.drift > 0).all()


def test_the_log_has_the_margin_of_each_step(patterns, tiny, tmp_path):
    rows = [row for row in fit(patterns, tmp_path, tiny).history() if "loss" in row]
    assert {row["step"]: row["margin"] for row in rows} == {3: 0.5, 6: 0.5, 9: 1.0, 12: 1.5}


def test_a_run_that_is_not_asked_does_not_look(patterns, tiny, tmp_path):
    run = fit(patterns, tmp_path, tiny, "training.cluster_items=null")
    assert run.clusters() is None
    assert not any(KEYS & set(row) for row in run.history())


def test_looking_changes_nothing_of_the_training(patterns, tiny, tmp_path):
    watched = fit(patterns, tmp_path, tiny, name="watched")
    blind = fit(patterns, tmp_path, tiny, "training.cluster_items=null", name="blind")
    own = [row for row in watched.history() if not KEYS & set(row)]
    assert own == blind.history()


def test_a_resumed_run_is_the_same_to_the_bit(patterns, tiny, tmp_path, monkeypatch):
    straight = fit(patterns, tmp_path, tiny, name="straight")
    from nearkin.training import loop as module

    saved = module.save_state

    def crash_at_8(path, tensors, facts):
        if facts["state"]["step"] == 8:
            raise KeyboardInterrupt  # after the look at step 8, before its checkpoint
        saved(path, tensors, facts)

    monkeypatch.setattr(module, "save_state", crash_at_8)
    with pytest.raises(KeyboardInterrupt):
        fit(patterns, tmp_path, tiny, name="broken")
    assert Run(tmp_path / "broken").clusters().steps.tolist() == [4, 8]
    monkeypatch.setattr(module, "save_state", saved)
    resumed = fit(patterns, tmp_path, tiny, name="broken", resume=True)
    assert resumed.history() == straight.history()
    first, second = straight.clusters(), resumed.clusters()
    for name in ("steps", "centroids", "radii", "drift", "accuracy"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    weights = [run.model().state_dict() for run in (straight, resumed)]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def test_a_damaged_file_is_refused_before_processes_meet(patterns, tiny, tmp_path, monkeypatch):
    run = fit(patterns, tmp_path, tiny)
    (run.path / "clusters.npz").write_text("steps")
    met = []
    monkeypatch.setattr("nearkin.training.ranks.Ranks.meet", lambda *given: met.append(given))
    with pytest.raises(RunError, match=r"clusters\.npz"):
        fit(patterns, tmp_path, tiny, resume=True)
    assert not met


def test_one_item_of_a_class_has_no_radius(tiny):
    with pytest.raises(RecipeError, match=r"training\.cluster_items"):
        load_recipe("growing-triplet", [*tiny, "training.cluster_items=1"])
