"""Losses in blocks of anchors against the library's, which hold all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nearkin.objectives import Objective, make_objective
from nearkin.objectives.pairs import AnchorBlocks
from nearkin.objectives.section import ObjectiveSection
from nearkin.spaces import make_space

LOSSES = ("contrastive", "contrastive-cosine", "multi-similarity", "supcon")
LABELS = {
    "balanced": torch.arange(6).repeat_interleave(4),
    "single items": torch.tensor([0, 0, 1, 2, 3, 3, 3, 4, 5, 5]),
    "one class": torch.zeros(7, dtype=torch.int64),
    "no pairs": torch.arange(8),
}

# Where a batch has no negative at all the library calls supcon zero; batches of one class are refused anyway.
CASES = [(loss, case) for loss in LOSSES for case in LABELS if (loss, case) != ("supcon", "one class")]


def objective(loss: str, space: str = "sphere", at_once: int | None = None, **parameters) -> Objective:
    """The loss in blocks of so many pairs; None: as the library takes it."""
    section = ObjectiveSection(loss=loss, parameters=parameters)
    made = make_objective(section, dimension=5, classes=8, space=make_space(space))
    assert isinstance(made.loss, AnchorBlocks)
    made.loss.whole = 0 if at_once else 10**9
    made.loss.at_once = at_once or 0
    return made


def vectors(count: int, seed: int = 0, spread: float = 0.3) -> Tensor:
    """Points near each other, so that every hinge has pairs on both of its sides."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(5, generator=generator, dtype=torch.float64)
    return (centre + spread * torch.randn(count, 5, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize(
    ("loss", "case", "at_once"),
    [(*case, 30) for case in CASES] + [(loss, "single items", at_once) for loss in LOSSES for at_once in (1, 1000)],
)
def test_values_and_gradients_are_the_library_s(loss, case, at_once):
    labels = LABELS[case]
    ours, theirs = vectors(len(labels)), vectors(len(labels))
    found, expected = objective(loss, at_once=at_once)(ours, labels), objective(loss)(theirs, labels)
    (3 * found).backward()
    (3 * expected).backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_references_get_gradients_too(loss):
    labels, their_labels = LABELS["balanced"], torch.tensor([0, 1, 2, 7, 7])
    results = []
    for at_once in (7, None):
        anchors, references = vectors(len(labels)), vectors(5, seed=1)
        value = objective(loss, at_once=at_once).against(anchors, labels, references, their_labels)
        value.backward()
        results.append((value, anchors.grad, references.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("learned", ["anchors", "references"])
@pytest.mark.parametrize("loss", LOSSES)
def test_one_side_may_need_no_gradient(loss, learned):
    """Remembered vectors need none; nor do the anchors where only proxies learn."""
    labels, their_labels = LABELS["balanced"], torch.tensor([0, 1, 2, 7, 7])
    results = []
    for at_once in (7, None):
        sides = {"anchors": vectors(len(labels)), "references": vectors(5, seed=1)}
        for name, side in sides.items():
            side.requires_grad_(name == learned)
        value = objective(loss, at_once=at_once).against(sides["anchors"], labels, sides["references"], their_labels)
        value.backward()
        results.append((value, sides[learned].grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("loss", "parameters"),
    [("contrastive", {"squared": True, "neg_margin": 1.0}), ("supcon", {"similarity": "distance-ratio"})],
)
def test_other_forms(loss, parameters):
    labels = LABELS["balanced"]
    ours, theirs = vectors(len(labels)), vectors(len(labels))
    found = objective(loss, "euclidean", 30, **parameters)(ours, labels)
    expected = objective(loss, "euclidean", **parameters)(theirs, labels)
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("space", ["euclidean", "poincare-ball", "lipschitz-ball"])
def test_any_space(space):
    labels = LABELS["balanced"]
    ours, theirs = vectors(len(labels)), vectors(len(labels))
    found, expected = (
        objective("contrastive", space, at_once, neg_margin=1.0)(points, labels)
        for points, at_once in ((ours, 30), (theirs, None))
    )
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-9)


def test_large_batches_are_taken_in_blocks_and_small_ones_whole(monkeypatch):
    calls = []
    monkeypatch.setattr(AnchorBlocks, "_in_blocks", lambda self, *_: calls.append(1) or torch.zeros(()))
    made = make_objective(ObjectiveSection(loss="supcon"), dimension=5, classes=8)
    made(torch.randn(1024, 5), torch.arange(1024) % 8)
    assert calls == []
    made(torch.randn(1028, 5), torch.arange(1028) % 8)
    assert calls == [1]


def test_without_gradients_only_the_value_is_computed():
    labels = LABELS["balanced"]
    with torch.no_grad():
        value = objective("contrastive", at_once=30)(vectors(len(labels)), labels)
    torch.testing.assert_close(value, objective("contrastive")(vectors(len(labels)), labels).detach())
    assert not value.requires_grad
