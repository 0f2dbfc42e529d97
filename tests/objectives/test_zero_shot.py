"""The zero-shot prediction loss against ridge regression done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from nearkin.errors import RecipeError
from nearkin.objectives import ObjectiveSection, make_objective
from nearkin.objectives.zero_shot import ZeroShotPrediction, first_half

CLASSES = 6


def batch(seed=0, size=12, attributes=5):
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(size, attributes, generator=generator, dtype=torch.float64)
    return z / z.sum(1, keepdim=True), torch.arange(size) % CLASSES


def module(**parameters):
    """In eval mode, where the halves stay the same."""
    torch.manual_seed(0)
    return ZeroShotPrediction(CLASSES, 4, **parameters).double().eval()


def by_hand(loss, attributes, labels):
    """Both halves' cross-entropies with scikit-learn's ridge regression and plain loops."""
    first = first_half(labels, seed=0, turn=0).numpy()
    z, y, v = attributes.numpy(), labels.numpy(), loss.class_vectors.detach().numpy()
    halves = []
    for seen in (first, ~first):
        fitted = Ridge(alpha=loss.ridge, fit_intercept=False, solver="cholesky").fit(z[seen], v[y[seen]])
        terms = []
        for row, label in zip(z[~seen], y[~seen], strict=True):
            logits = [loss.scale * float(np.dot(v[c], fitted.predict(row[None])[0])) for c in range(CLASSES)]
            terms.append(math.log(sum(math.exp(value - logits[label]) for value in logits)))
        halves.append(sum(terms) / len(terms))
    return sum(halves) / 2


@pytest.mark.parametrize("parameters", [{}, {"ridge": 1.0, "scale": 1.0}, {"ridge": 1e-3}])
def test_value_is_that_of_ridge_regression(parameters):
    attributes, labels = batch()
    loss = module(**parameters)
    assert loss(attributes, labels).item() == pytest.approx(by_hand(loss, attributes, labels), rel=1e-8)


def test_more_samples_than_attributes_and_fewer_agree_with_the_primal_form():
    for attributes in (2, 40):
        z, labels = batch(attributes=attributes)
        loss = module()
        assert loss(z, labels).item() == pytest.approx(by_hand(loss, z, labels), rel=1e-7)


def test_the_order_of_the_batch_does_not_matter():
    attributes, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    loss = module()
    torch.testing.assert_close(loss(attributes[order], labels[order]), loss(attributes, labels))


@pytest.mark.parametrize("count", [2, 3, 5, 32])
def test_halves_share_no_class(count):
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(0, count, (200,), generator=generator)
    first = first_half(labels, seed=1, turn=5)
    ours, theirs = set(labels[first].tolist()), set(labels[~first].tolist())
    assert not ours & theirs
    assert len(ours) - len(theirs) in (0, 1)


def test_halves_change_from_step_to_step_even_if_every_class_is_in_every_batch():
    """Any two of eight classes are together as often as chance has it, 3 of 7 times."""
    labels = torch.arange(8)
    halves = torch.stack([first_half(labels, seed=0, turn=turn) for turn in range(2000)])
    together = (halves.unsqueeze(1) == halves.unsqueeze(2)).double().mean(0)
    apart = ~torch.eye(8, dtype=torch.bool)
    torch.testing.assert_close(together[apart], torch.full((56,), 3 / 7, dtype=torch.float64), rtol=0, atol=0.05)


def test_training_goes_on_to_other_halves_and_a_checkpoint_remembers_where():
    attributes, labels = batch()
    loss = module().train()
    values = [loss(attributes, labels).item() for _ in range(6)]
    assert len(set(values)) > 1
    resumed = module().train()
    resumed.load_state_dict({**loss.state_dict(), "steps": torch.tensor(3)})
    assert [resumed(attributes, labels).item() for _ in range(3)] == values[3:]
    other = module(seed=1).train()
    assert [other(attributes, labels).item() for _ in range(6)] != values


def test_one_class_alone_costs_nothing_and_has_a_graph():
    attributes = batch()[0].requires_grad_()
    value = module()(attributes, torch.zeros(12, dtype=torch.int64))
    assert value.item() == 0
    value.backward()
    assert attributes.grad.abs().max() == 0


def test_attributes_that_tell_the_class_linearly_are_learned():
    """Class vectors that are a linear image of the attributes are predicted across the halves: the loss falls."""
    generator = torch.Generator().manual_seed(0)
    of_class = torch.rand(CLASSES, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(24) % CLASSES
    loss = module(ridge=1e-4)
    with torch.no_grad():
        loss.class_vectors.copy_(of_class @ torch.randn(3, 4, generator=generator, dtype=torch.float64))
    informative = loss(of_class[labels], labels)
    shuffled = loss(of_class[labels.flip(0).roll(1)], labels)
    assert informative < shuffled


def test_gradients_reach_everything():
    attributes, labels = batch()
    attributes.requires_grad_()
    loss = module()

    def value(z, vectors):
        return torch.func.functional_call(loss, {"class_vectors": vectors}, (z, labels))

    assert torch.autograd.gradcheck(value, (attributes, loss.class_vectors))


def test_first_values_have_the_variance_of_the_reference_implementation():
    vectors = ZeroShotPrediction(400, 128).class_vectors
    assert vectors.var().item() == pytest.approx(2 / 400, rel=0.05)
    assert vectors.shape == (400, 128)


def section(**more):
    return ObjectiveSection(loss="contrastive", regularisers=[{"name": "zero-shot", "weight": 0.1}], **more)


def test_mixed_with_a_loss():
    objective = make_objective(section(weight=0.9), dimension=4, classes=CLASSES).double().eval()
    plain = make_objective(ObjectiveSection(loss="contrastive"), dimension=4, classes=CLASSES)
    attributes, labels = batch()
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    term = objective.regularisers["zero-shot"](attributes, labels)
    expected = 0.9 * plain(embeddings, labels) + 0.1 * term
    torch.testing.assert_close(objective(embeddings, labels, attributes), expected)
    references = torch.randn(5, 4, generator=generator, dtype=torch.float64), torch.arange(5)
    against = plain.against(embeddings, labels, *references)
    torch.testing.assert_close(objective.against(embeddings, labels, *references), 0.9 * against)


def test_without_attributes_it_says_what_is_missing():
    objective = make_objective(section(), dimension=4, classes=CLASSES)
    assert objective.takers("attributes") == ["zero-shot"]
    with pytest.raises(RecipeError, match="attributes"):
        objective(torch.randn(12, 4), torch.arange(12) % CLASSES)


def test_a_batch_of_one_class_is_refused():
    proxies = ObjectiveSection(loss="proxy-anchor", regularisers=[{"name": "zero-shot"}])
    with pytest.raises(RecipeError, match="classes"):
        make_objective(proxies, dimension=4, classes=CLASSES).check_batch(1, 4)


@pytest.mark.parametrize("parameters", [{"ridge": 0}, {"scale": -1}, {"rigde": 1}])
def test_bad_parameters(parameters):
    with pytest.raises(RecipeError):
        ObjectiveSection(regularisers=[{"name": "zero-shot", "parameters": parameters}])


def test_nothing_to_minimise_is_refused():
    with pytest.raises(RecipeError, match="weight"):
        ObjectiveSection(loss="contrastive", weight=0)
    section(weight=0)
