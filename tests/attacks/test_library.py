"""Attacks by name: what each must hold, analytic distances on linear models, and refusals."""

import sys

import pytest
import torch

from nearkin.attacks import Combined, as_norm
from nearkin.attacks.library import ATTACKS, check_attack, published_attack
from nearkin.attacks.region import Unit
from nearkin.errors import DataError, MissingExtraError, RecipeError

ALL = [
    (name, norm)
    for name in ATTACKS
    for norm in ("linf", "l2")
    if not (name == "cw" and norm == "linf") and not (name == "square" and norm == "l2")
]
every = pytest.mark.parametrize(("name", "norm"), ALL)
SHAPE = (3, 5, 5)
NORMALISED = Unit("normalised", torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225]))


def network(seed=0, classes=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(54, classes),
        torch.nn.LogSoftmax(dim=1),
    ).requires_grad_(False)


def linear(seed=0):
    """Two classes; the first is ahead by `<w, x - 1/2>`."""
    w = torch.randn(75, generator=torch.Generator().manual_seed(seed))

    def classify(x):
        margin = (x.flatten(1) - 0.5) @ w.to(x.dtype)
        return torch.log_softmax(torch.stack([margin, torch.zeros_like(margin)], dim=1), dim=1)

    return classify, w


def pixels(count=12, low=0.0, high=1.0, seed=1):
    return low + (high - low) * torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


@every
@pytest.mark.parametrize(
    ("unit", "eps"),
    [(None, 0.1), (None, 2.0), (NORMALISED, 0.002)],
    ids=["pixels-0.1", "pixels-2.0", "normalised-0.002"],
)
def test_what_every_attack_holds(name, norm, unit, eps):
    model, x = network(), pixels()
    codes = model(x).argmax(dim=1)
    codes[:2] = (codes[:2] + 1) % 3  # wrong before
    told = []
    found = published_attack(
        name, model, x, codes, eps, norm=norm, unit=unit, steps=20, batch_size=5, advance=told.append
    )
    assert told == [5, 5, 2]
    assert ((found.pixels >= 0) & (found.pixels <= 1)).all()
    gap = found.pixels - x if unit is None else unit.of_pixels(found.pixels) - unit.of_pixels(x)
    far = as_norm(norm).length(gap.flatten(1))
    assert (far <= eps * (1 + 1e-5) + 1e-5).all()
    torch.testing.assert_close(found.distances, far, rtol=1e-5, atol=1e-6)
    assert torch.equal(model(found.pixels).argmax(dim=1) != codes, found.wrong)
    assert found.wrong[:2].all()
    again = published_attack(name, model, x, codes, eps, norm=norm, unit=unit, steps=20, batch_size=5)
    assert torch.equal(again.pixels, found.pixels)


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd", "square"])
@pytest.mark.parametrize("unit", [None, NORMALISED], ids=["pixels", "normalised"])
@pytest.mark.parametrize("eps", [1e-4, 1e-3, 0.01])
def test_small_epsilons_are_used_in_full(name, unit, eps):
    """Rounding of large numbers is not small beside a small epsilon: it must not count as leaving the ball."""
    (model, _), x = linear(), pixels(8, 0.2, 0.9)
    codes = model(x).argmax(dim=1)
    found = published_attack(name, model, x, codes, eps, unit=unit, steps=10)
    torch.testing.assert_close(found.distances, torch.full((8,), eps), rtol=0.02, atol=0)


@pytest.mark.parametrize("unit", [None, NORMALISED], ids=["pixels", "normalised"])
@pytest.mark.parametrize("name", ["pgd", "square"])
def test_double_precision(name, unit):
    model, x = network().double(), pixels().double().round(decimals=1)
    codes = model(x).argmax(dim=1)
    found = published_attack(name, model, x, codes, 0.5, unit=unit, steps=20)
    assert found.pixels.dtype == found.distances.dtype == torch.float64
    assert found.wrong.any()


def test_the_state_of_torch_s_generator_is_left_alone():
    model, x = network(), pixels()
    before = torch.random.get_rng_state()
    published_attack("pgd", model, x, model(x).argmax(dim=1), 0.1, steps=2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "norm", "excess"), [("deepfool", "l2", 0.03), ("deepfool", "linf", 0.03), ("cw", "l2", 0.05)]
)
def test_smallest_perturbations_are_about_the_distance_to_the_border(name, norm, excess):
    (model, w), x = linear(3), pixels(10, 0.3, 0.7)
    scores = model(x)
    codes = scores.argmax(dim=1)
    expected = (scores[:, 0] - scores[:, 1]).abs() / (w.norm() if norm == "l2" else w.abs().sum())
    found = published_attack(name, model, x, codes, 3.0, norm=norm)
    assert found.wrong.all()
    assert (found.distances >= expected * (1 - 1e-3)).all()
    assert (found.distances <= expected * (1 + excess) + 4e-3).all()
    assert (found.distances < 3.0).all()
    # The same found perturbation does not count where epsilon is smaller.
    middle = float(expected.median()) * (1 + excess)
    fewer = published_attack(name, model, x, codes, middle, norm=norm)
    assert torch.equal(fewer.wrong, found.distances <= middle)
    assert torch.equal(fewer.pixels[~fewer.wrong], x[~fewer.wrong])


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_border_of_a_linear_model_decides(name, norm):
    (model, w), x = linear(4), pixels(40, 0.3, 0.7)
    scores = model(x)
    far = (scores[:, 0] - scores[:, 1]).abs() / (w.norm() if norm == "l2" else w.abs().sum())
    eps = float(far.median()) + 1e-4
    found = published_attack(name, model, x, scores.argmax(dim=1), eps, norm=norm, steps=60, step=eps)
    clear = (far - eps).abs() > 1e-3 * eps
    assert torch.equal(found.wrong[clear], (far < eps)[clear])


@pytest.mark.parametrize(
    ("name", "norm", "word"),
    [
        ("pdg", "linf", "pgd"),
        ("cw", "linf", "l2"),
        ("square", "l2", "linf"),
        ("fgsm", "l3", "l3"),
        ("deepfool", "l1", "l1"),
    ],
)
def test_what_there_is_not_is_refused(name, norm, word):
    with pytest.raises(RecipeError, match=word):
        check_attack(name, norm)
    with pytest.raises(RecipeError, match=word):
        published_attack(name, network(), pixels(), torch.zeros(12, dtype=torch.int64), 0.1, norm=norm)


def test_pixels_lie_between_0_and_1():
    with pytest.raises(DataError, match="bounds"):
        published_attack("fgsm", network(), 255 * pixels(), torch.zeros(12, dtype=torch.int64), 8.0)


def test_the_extra_is_named_when_foolbox_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    model, x = network(), pixels()
    codes = model(x).argmax(dim=1)
    with pytest.raises(MissingExtraError, match=r"nearkin\[audit\]"):
        published_attack("fgsm", model, x, codes, 0.1)
    assert published_attack("square", model, x, codes, 0.5, steps=5).pixels.shape == x.shape  # ours needs none


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd"])
@pytest.mark.parametrize("norm", ["l1", Combined.of_balls(12.0, 1.0, 75)], ids=["l1", "combined"])
@pytest.mark.parametrize("unit", [Unit.pixels(), NORMALISED], ids=["pixels", "normalised"])
def test_norms_that_foolbox_lacks(name, norm, unit):
    model, given = network(), pixels()
    codes, eps = model(given).argmax(dim=1), 3.0
    found = published_attack(name, model, given, codes, eps, norm=norm, unit=unit, steps=5)
    lengths = as_norm(norm).length((unit.of_pixels(found.pixels) - unit.of_pixels(given)).flatten(1))
    assert (lengths <= eps * (1 + 1e-5)).all()
    assert float(lengths.max()) > (0.25 if name == "fgsm" else 0.5) * eps
    assert ((found.pixels >= 0) & (found.pixels <= 1)).all()
    own = torch.arange(len(codes)), codes
    assert (model(found.pixels)[own] <= model(given)[own] + 1e-6).all()


@pytest.mark.parametrize(
    ("name", "norm"), [("fgsm", "linf"), ("bim", "l2"), ("pgd", "linf"), ("pgd", "l1"), ("cw", "l2")]
)
def test_targets_are_what_is_named(name, norm):
    model, given = network(), pixels()
    codes = model(given).argmax(dim=1)
    targets = (codes + 1) % 3
    eps = {"linf": 0.5, "l2": 4.0, "l1": 30.0}[norm]
    found = published_attack(
        name, model, given, codes, eps, norm=norm, targets=targets, steps=None if name == "fgsm" else 30
    )
    assert torch.equal(found.wrong, model(found.pixels).argmax(dim=1) == targets)
    other = published_attack(
        name, model, given, codes, eps, norm=norm, targets=(codes + 2) % 3, steps=None if name == "fgsm" else 30
    )
    assert found.wrong.any()
    assert (other.pixels != found.pixels).any()
    raised = (model(found.pixels) - model(given)).gather(1, targets.unsqueeze(1))
    assert raised.mean() > 0


def test_targets_that_make_no_sense_are_refused():
    model, given = network(), pixels()
    codes = model(given).argmax(dim=1)
    with pytest.raises(DataError, match="own class"):
        published_attack("pgd", model, given, codes, 0.1, targets=codes)
    with pytest.raises(DataError, match="target"):
        published_attack("square", model, given, codes, 0.1, targets=(codes + 1) % 3)
