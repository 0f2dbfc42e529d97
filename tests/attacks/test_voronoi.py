"""SAA and VAA: the toy of the article, exact oracles, and what must hold whatever the classifier."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.attacks import L2, Combined, LInf
from nearkin.attacks.classifier import NearestPoint
from nearkin.attacks.region import Unit
from nearkin.attacks.voronoi import adversarial_accuracy
from nearkin.data.inputs import InputSpec
from nearkin.errors import DataError

A = [(-1, -1), (-2, 1), (2, -2), (1, 1), (2, -1)]
B = [(0, 0), (2, 1), (1, -1)]
NORMS = [L2(), LInf(), Combined(0.3)]
norms = pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)


def toy(dtype=torch.float32):
    return torch.tensor(A + B, dtype=dtype), ["A"] * len(A) + ["B"] * len(B)


class Linear(torch.nn.Module):
    """The second class where `<w, x> > b`."""

    classes = ("no", "yes")

    def __init__(self, w, b=0.0):
        super().__init__()
        self.w, self.b = torch.tensor(w, dtype=torch.float64), b

    def margin(self, x):
        return x.double() @ self.w - self.b

    def forward(self, x):
        margin = self.margin(x)
        return torch.log_softmax(torch.stack([-margin, margin], dim=1), dim=1)


def network(seed, dimension, classes=("a", "b", "c")):
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(dimension, 12), torch.nn.Tanh(), torch.nn.Linear(12, len(classes)))
    for layer in layers[::2]:
        torch.nn.init.normal_(layer.weight, std=2.0)
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.LogSoftmax(dim=1)).double().requires_grad_(False)
    model.classes = classes
    return model


def naive_length(norm, gap):
    sizes = np.abs(gap)
    if isinstance(norm, L2):
        return np.sqrt((sizes**2).sum(axis=-1))
    if isinstance(norm, LInf):
        return sizes.max(axis=-1)
    return norm.beta * sizes.sum(axis=-1) + (1 - norm.beta) * sizes.max(axis=-1)


def check_points(curves, model, inputs, labels, norm, bounds):
    """Every point that counts is wrong, where it says it is, in the box, and for VAA nearest to its own input."""
    data = inputs.flatten(1).double().numpy()
    for cells, radii, points in (
        (False, curves.standard_radii, curves.standard_points),
        (True, curves.voronoi_radii, curves.voronoi_points),
    ):
        named = model(points.view(-1, *inputs.shape[1:])).argmax(dim=1)
        for place, row in enumerate(curves.rows):
            x = points[place].double().numpy()
            if not np.isfinite(radii[place]):
                assert np.array_equal(x, data[row])
                continue
            lengths = naive_length(norm, x - data)
            assert model.classes[named[place]] != labels[row]
            assert lengths[row] == pytest.approx(radii[place], rel=1e-12, abs=1e-15)
            assert bounds is None or (x.min() >= bounds[0] and x.max() <= bounds[1])
            if cells:
                others = lengths[(data != data[row]).any(axis=1)]
                assert (others > lengths[row]).all()
    for curve, radii in ((curves.standard, curves.standard_radii), (curves.voronoi, curves.voronoi_radii)):
        np.testing.assert_allclose(curve, [(radii > eps).mean() for eps in curves.epsilons])
        assert (np.diff(curve) <= 0).all()
    assert (curves.voronoi >= curves.standard).all()
    assert (curves.voronoi_radii >= curves.standard_radii).all()
    small = curves.epsilons < curves.smallest_distance / 2
    assert np.array_equal(curves.voronoi[small], curves.standard[small])


@norms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_nearest_neighbour_holds_in_every_cell_of_the_toy(norm, dtype):
    x, labels = toy(dtype)
    model = NearestPoint(x, labels, norm)
    found = adversarial_accuracy(model, x, labels, [0.4, 1.0, 3.5], norm=norm, bounds=None, steps=10, whole_cells=True)
    assert found.voronoi.tolist() == [1.0, 1.0, 1.0]
    assert found.global_robustness == found.accuracy == 1.0
    assert found.smallest_distance == 1.0
    assert (found.voronoi_radii == np.inf).all()
    assert found.standard[0] == 1.0
    assert found.standard[2] == 0.0
    check_points(found, model, x, labels, norm, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_balls_the_nearest_neighbour_breaks_beyond_half_the_way_to_another_class(dtype):
    x, labels = toy(dtype)
    same = np.array(labels)[:, None] == np.array(labels)
    distances = np.linalg.norm(np.array(A + B)[:, None] - np.array(A + B), axis=2)
    half = np.where(same, np.inf, distances).min(axis=1) / 2
    epsilons = sorted({float(value) for near in half for value in (near - 0.02, near + 0.02)})
    found = adversarial_accuracy(NearestPoint(x, labels), x, labels, epsilons, bounds=None, steps=15)
    np.testing.assert_allclose(found.standard, [(half >= eps).mean() for eps in epsilons])
    assert (found.voronoi == 1.0).all()
    assert (found.standard_radii >= half).all()


@norms
@given(seed=st.integers(0, 10**5), kind=st.sampled_from(["spread", "grid", "crowd"]), single=st.booleans())
@settings(max_examples=5)
def test_the_nearest_neighbour_holds_in_every_cell(norm, seed, kind, single):
    """Theorem 1 of the article, on random data."""
    rng = np.random.default_rng(seed)
    points = rng.random((6, 2))
    if kind == "grid":
        points = np.round(points * 3) / 3
    if kind == "crowd":
        points = np.clip(points[:1] + 10.0 ** -rng.integers(2, 5) * (points - 0.5), 0, 1)
    x = torch.unique(torch.from_numpy(points).to(torch.float32 if single else torch.float64), dim=0)
    labels = rng.integers(0, 2, len(x))
    model = NearestPoint(x, labels, norm)
    found = adversarial_accuracy(model, x, labels, [0.05, 0.5], norm=norm, steps=4, whole_cells=True)
    assert found.voronoi.tolist() == [1.0, 1.0]
    assert found.global_robustness == 1.0
    check_points(found, model, x, labels, norm, (0.0, 1.0))


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("scale", [1e-8, 1e4])
def test_neither_in_cells_of_tiny_or_huge_numbers(norm, scale):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, labels = torch.from_numpy(scale * rng.random((6, 2))), rng.integers(0, 2, 6)
        model = NearestPoint(x, labels, norm)
        found = adversarial_accuracy(model, x, labels, [0.4 * scale], norm=norm, bounds=None, steps=4, whole_cells=True)
        assert found.voronoi.tolist() == [found.global_robustness] == [1.0]


@norms
@given(seed=st.integers(0, 10**5), bounds=st.sampled_from([None, (0.0, 1.0)]), single=st.booleans())
@settings(max_examples=5)
def test_what_holds_whatever_the_classifier(norm, seed, bounds, single):
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(1, 4))
    x = torch.from_numpy(rng.random((6, dimension))).to(torch.float32 if single else torch.float64)
    plain = network(seed, dimension)

    class Model(torch.nn.Module):
        classes = plain.classes

        def forward(self, inputs):
            return plain(inputs.double())

    model = Model()
    labels = np.array(plain.classes)[model(x).argmax(dim=1).numpy()]
    labels[0] = "a"  # perhaps wrong
    least = min(naive_length(norm, (x[i] - x[j]).double().numpy()) for i in range(6) for j in range(i))
    epsilons = [0.0, 0.3 * least, 0.49 * least, 0.1, 0.4]
    found = adversarial_accuracy(
        model, x, labels, epsilons, norm=norm, bounds=bounds, steps=5, seed=seed, whole_cells=True
    )
    assert found.smallest_distance == pytest.approx(least)
    assert np.array_equal(found.epsilons, sorted(epsilons))
    right = np.array(plain.classes)[model(x).argmax(dim=1).numpy()] == labels
    assert found.accuracy == found.standard[0] == found.voronoi[0] == pytest.approx(right.mean())
    assert found.global_robustness <= found.voronoi[-1]
    check_points(found, model, x, labels, norm, bounds)


@norms
@pytest.mark.parametrize("raised", ["margin", "cross-entropy"])
def test_a_linear_classifier_falls_at_its_distance_to_the_border(norm, raised):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(25, 2)))
    model = Linear([1.0, -2.0], 0.3)
    labels = np.where(model.margin(x).numpy() > 0, "yes", "no")
    w = model.w.numpy()
    steepest = {"l2": np.linalg.norm(w), "linf": np.abs(w).sum(), "combined": max(2.0, 3.0 / 1.3)}[norm.name]
    far = np.abs(model.margin(x).numpy()) / steepest
    epsilons = [float(eps) for eps in (0.05, 0.2, 0.6, 1.2) if np.abs(far - eps).min() > 1e-5]
    assert len(epsilons) == 4
    found = adversarial_accuracy(model, x, labels, epsilons, norm=norm, raised=raised, bounds=None, steps=5)
    np.testing.assert_allclose(found.standard, [(far > eps).mean() for eps in epsilons])
    assert (found.standard_radii >= far * (1 - 1e-9)).all()
    check_points(found, model, x, labels, norm, None)


def test_cells_bind_a_linear_classifier():
    """Two points of one class between the border and a third: it can only fall in its own cell, which is cut off."""
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    model = Linear([1.0, 0.0], 2.0)
    found = adversarial_accuracy(
        model, x, ["no", "no", "yes"], [0.9, 1.2, 2.5], bounds=None, steps=10, whole_cells=True
    )
    # The border is at 2, exactly between the second and the third: no point of an open cell crosses it.
    assert found.voronoi.tolist() == [1.0, 1.0, 1.0]
    assert found.global_robustness == 1.0
    np.testing.assert_allclose(found.standard, [1.0, 1 / 3, 0.0])
    moved = adversarial_accuracy(Linear([1.0, 0.0], 1.8), x, ["no", "no", "yes"], [0.7, 0.9], bounds=None, steps=10)
    np.testing.assert_allclose(moved.voronoi, [1.0, 2 / 3])
    assert 0.8 <= moved.voronoi_radii[1] < 1.0


def test_real_inputs_of_other_classes_count_in_balls():
    """A needle that no gradient leads to, the other input itself, is not in the own cell: only SAA falls by it."""
    x = torch.tensor([[0.2, 0.2], [0.8, 0.8]])

    class Needle(torch.nn.Module):
        classes = ("a", "b")

        def forward(self, inputs):
            hit = ((inputs - 0.8).abs().amax(dim=1) < 1e-3).float() + 0 * inputs.sum(dim=1)
            return torch.log_softmax(torch.stack([1 - hit, hit], dim=1), dim=1)

    found = adversarial_accuracy(Needle(), x, ["a", "b"], [0.8, 0.9], steps=2, restarts=0)
    assert found.standard.tolist() == [0.5, 0.0]
    assert found.voronoi.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_attacked_rows_are_those_of_the_whole_run(norm):
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.random((14, 3)))
    model = network(2, 3)
    labels = np.array(model.classes)[model(x).argmax(dim=1).numpy()]
    options = {"norm": norm, "steps": 6, "restarts": 0, "whole_cells": True}
    whole = adversarial_accuracy(model, x, labels, [0.05, 0.3], **options)
    rows = np.array([11, 2, 5])
    some = adversarial_accuracy(model, x, labels, [0.05, 0.3], attacked=rows, **options)
    assert some.rows.tolist() == [2, 5, 11]
    np.testing.assert_allclose(some.standard_radii, whole.standard_radii[some.rows])
    np.testing.assert_allclose(some.voronoi_radii, whole.voronoi_radii[some.rows])
    torch.testing.assert_close(some.voronoi_points, whole.voronoi_points[some.rows])
    assert some.smallest_distance == whole.smallest_distance
    np.testing.assert_allclose(some.voronoi, [(whole.voronoi_radii[some.rows] > eps).mean() for eps in (0.05, 0.3)])


def test_equal_inputs_are_merged_and_said():
    x, labels = toy()
    twice, names = torch.cat([x, x[[1, 6]]]), [*labels, labels[1], labels[6]]
    model = NearestPoint(x, labels)
    once = adversarial_accuracy(model, x, labels, [0.7], bounds=None, steps=5)
    found = adversarial_accuracy(model, twice, names, [0.7], bounds=None, steps=5)
    (note,) = found.notes
    assert "2" in note
    assert once.notes == []
    assert found.rows.tolist() == list(range(8))
    assert found.standard.tolist() == once.standard.tolist()
    # Any copy stands for the one that was kept.
    some = adversarial_accuracy(model, twice, names, [0.7], bounds=None, steps=5, attacked=np.array([9, 6, 0]))
    assert some.rows.tolist() == [0, 6]


def test_batches_do_not_matter_without_random_starts():
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.random((10, 1, 2, 2)))
    model = network(3, 4)
    labels = np.array(model.classes)[model(x).argmax(dim=1).numpy()]
    runs = [
        adversarial_accuracy(model, x, labels, [0.1, 0.5], steps=5, restarts=0, batch_size=size) for size in (3, 512)
    ]
    np.testing.assert_allclose(runs[0].standard_radii, runs[1].standard_radii)
    np.testing.assert_allclose(runs[0].voronoi_radii, runs[1].voronoi_radii)


def test_a_seed_says_it_all():
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.random((10, 2)))
    model = network(4, 2)
    labels = np.array(model.classes)[model(x).argmax(dim=1).numpy()]
    one, again = (adversarial_accuracy(model, x, labels, [0.1, 0.3], steps=3, restarts=2, seed=7) for _ in range(2))
    assert np.array_equal(one.standard_radii, again.standard_radii)
    assert torch.equal(one.voronoi_points, again.voronoi_points)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_epsilons_below_what_single_precision_can_tell(norm):
    """A ball smaller than the gap to the next number holds its centre alone, and finding that out takes no time."""
    x = torch.tensor([[0.7, 0.7], [0.1, 0.2]])
    step = float(torch.nextafter(x[0, 0], torch.tensor(1.0))) - float(x[0, 0])
    model = Linear([1.0, 0.0], float(x[0, 0]) + 0.5 * step)
    found = adversarial_accuracy(model, x, ["no", "no"], [0.8 * step, 1.7 * step, 1e-5], norm=norm, steps=3)
    assert found.standard.tolist() == [1.0, 0.5, 0.5]
    assert found.voronoi.tolist() == [1.0, 0.5, 0.5]
    assert found.standard_radii[0] == pytest.approx(step)


def test_one_input_and_one_class():
    x = torch.tensor([[0.5, 0.5]])
    found = adversarial_accuracy(Linear([1.0, 0.0], 0.8), x, ["no"], [0.2, 0.4], steps=5, whole_cells=True)
    assert found.standard.tolist() == found.voronoi.tolist() == [1.0, 0.0]
    assert found.smallest_distance == np.inf
    assert found.global_robustness == 0.0


def test_the_numbers_go_into_json():
    x, labels = toy()
    found = adversarial_accuracy(NearestPoint(x, labels), x, labels, [0.7, 0.2, 0.7], bounds=None, steps=2)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["epsilons"] == [0.2, 0.7]
    assert told["VAA"] == [1.0, 1.0]
    assert told["SAA"] == found.standard.tolist()
    assert told["global Voronoi robustness"] is None
    assert (told["norm"], told["inputs"], told["smallest distance"], told["accuracy"]) == ("l2", 8, 1.0, 1.0)
    alone = adversarial_accuracy(Linear([1.0, 0.0]), torch.zeros(1, 2), ["no"], [0.0])
    assert alone.to_dict()["smallest distance"] is None


def test_bounds_that_single_precision_rounds():
    x = torch.tensor([[0.1, 0.6], [0.6, 0.1]])
    found = adversarial_accuracy(Linear([1.0, 0.0], 0.3), x, ["no", "yes"], [0.1], bounds=(0.1, 0.6), steps=2)
    assert found.accuracy == 1.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"bounds": (0.0, 1.0)}, "bounds"),
        ({"epsilons": []}, "epsilons"),
        ({"epsilons": [-0.1]}, "epsilons"),
        ({"epsilons": [float("nan")]}, "epsilons"),
        ({"epsilons": [float("inf")]}, "epsilons"),
        ({"classes": ["A", "C"]}, "B"),
        ({"labels": ["A"] * 3}, "labels"),
        ({"inputs": torch.zeros(0, 2), "labels": [], "bounds": (0.0, 1.0)}, "inputs"),
        ({"norm": "l3"}, "l3"),
        ({"raised": "loss"}, "loss"),
        ({"attacked": np.array([], dtype=int)}, "row"),
        ({"attacked": np.array([8])}, "row"),
        ({"attacked": np.array([-1])}, "row"),
        ({"attacked": np.ones(8, dtype=bool)}, "row"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, word):
    x, labels = toy()
    options = {"inputs": x, "labels": labels, "epsilons": [0.5], "bounds": None} | changes
    with pytest.raises(DataError, match=word):
        adversarial_accuracy(NearestPoint(x, labels), **options)


def test_a_classifier_must_say_what_its_classes_are():
    x, labels = toy()
    with pytest.raises(DataError, match="classes"):
        adversarial_accuracy(lambda inputs: inputs, x, labels, [0.5], bounds=None)
    model = NearestPoint(x, labels)
    found = adversarial_accuracy(lambda inputs: model(inputs), x, labels, [0.4], classes=["A", "B"], bounds=None)
    assert found.standard.tolist() == [1.0]


def test_conflicting_labels_are_refused_by_their_rows():
    x, labels = toy()
    with pytest.raises(DataError, match=r"1\D+8"):
        adversarial_accuracy(NearestPoint(x, labels), torch.cat([x, x[1:2]]), [*labels, "B"], [0.5], bounds=None)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_nearest_point_holds_in_normalised_units_too(norm):
    """Channels end at different places there: a point must be judged as the pixels that the classifier sees."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.random((12, 3, 2, 2)).astype(np.float32))
    labels = np.arange(12) % 3
    spec = InputSpec(kind="image", channels=3, size=2, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    measured = Unit.of("normalised", spec).measured(norm, (3, 2, 2))
    found = adversarial_accuracy(
        NearestPoint(pixels, labels, measured),
        pixels,
        labels,
        [0.5, 2.0, 4.0],
        norm=measured,
        steps=10,
        whole_cells=True,
    )
    assert found.voronoi.tolist() == [1.0, 1.0, 1.0]
    assert found.global_robustness == 1.0
    assert found.standard[-1] < 1
    assert found.items == 12
