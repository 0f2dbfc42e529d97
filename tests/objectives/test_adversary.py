"""The class adversary: gradients of both players, the coefficient over the epochs, what it counts and what it says."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from nearkin.errors import DataError, RecipeError
from nearkin.objectives import LossShape, ObjectiveSection, make_objective, regularisers
from nearkin.objectives.adversary import ClassAdversary, coefficient_for, kept_units, least_loss, scale_gradient
from nearkin.spaces import make_space, spaces

CLASSES, SIZE, HIDDEN = 6, 5, 7
COEFFICIENTS = (-0.7, 0.0, 0.4, 1.0)


def batch(seed=0, size=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, SIZE, generator=generator, dtype=torch.float64), torch.arange(size) % CLASSES


def make(coefficient=None, **settings):
    """In double precision and eval mode, where nothing is dropped or counted."""
    torch.manual_seed(0)
    adversary = ClassAdversary(SIZE, CLASSES, hidden=HIDDEN, **settings).double().eval()
    if coefficient is not None:
        adversary.coefficient.fill_(coefficient)
        adversary.acted.fill_(coefficient)
    return adversary


def twin(adversary):
    """The classifier alone, as anybody would write it."""
    plain = nn.Sequential(copy.deepcopy(adversary.hidden), nn.ReLU(), copy.deepcopy(adversary.output))
    return plain.double()


# The layer that scales gradients.


@pytest.mark.parametrize("factor", [-1.3, -1.0, 0.0, 0.5])
def test_the_gradient_through_the_layer_is_the_factor_times_the_plain_one(factor):
    x = batch()[0].requires_grad_()
    scale = torch.tensor(factor, dtype=torch.float64)

    def function(value):
        return (value.square() * value.tanh()).sum()

    assert gradcheck(function, x)
    (plain,) = torch.autograd.grad(function(x), x)
    value = function(scale_gradient(x, scale))
    (scaled,) = torch.autograd.grad(value, x)
    assert value == function(x)
    torch.testing.assert_close(scaled, factor * plain)
    assert gradgradcheck(lambda value: scale_gradient(value, scale), x)


# Both players.


@pytest.mark.parametrize("smoothing", [0.0, 0.15])
@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_value_and_gradients_are_those_of_the_paper(coefficient, smoothing):
    """The value and the features' gradient are those of -lambda l_c; the classifier's gradient is that of l_c."""
    features, labels = batch()
    features.requires_grad_()
    adversary = make(coefficient, smoothing=smoothing)
    plain = twin(adversary)
    value = adversary(features, labels)
    value.backward()
    ours, features.grad = features.grad, None
    loss = functional.cross_entropy(plain(features), labels, label_smoothing=smoothing)
    loss.backward()
    assert value.item() == pytest.approx(-coefficient * loss.item(), abs=1e-12)
    torch.testing.assert_close(ours, -coefficient * features.grad)
    for mine, theirs in zip(adversary.parameters(), plain.parameters(), strict=True):
        assert theirs.grad.abs().max() > 0
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_the_features_gradient_by_finite_differences(coefficient):
    features, labels = batch()
    adversary = make(coefficient)
    assert gradcheck(lambda f: adversary(f, labels), features.requires_grad_())


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.9])
def test_labels_are_smoothed_as_in_equation_19(alpha):
    features, labels = batch()
    adversary = make(-1.0, smoothing=alpha)
    logs = twin(adversary)(features).log_softmax(1).tolist()
    terms = []
    for row, label in zip(logs, labels.tolist(), strict=True):
        target = [(1 - alpha) * (k == label) + alpha / CLASSES for k in range(CLASSES)]
        terms.append(-sum(y * log for y, log in zip(target, row, strict=True)))
    assert adversary(features, labels).item() == pytest.approx(sum(terms) / len(terms))


@pytest.mark.parametrize("space", spaces.names())
def test_embeddings_are_classified_as_points_of_the_space(space):
    where = make_space(space)
    embeddings, labels = batch()
    adversary = make(0.5, space=where)
    plain = functional.cross_entropy(twin(adversary)(where.project(embeddings)), labels)
    assert adversary.takes == "embeddings"
    assert adversary(embeddings, labels).item() == pytest.approx(-0.5 * plain.item())
    assert gradcheck(lambda f: adversary(f, labels), embeddings.requires_grad_())


# The coefficient.


def test_the_coefficient_is_that_of_equation_25():
    losses = torch.tensor([0.0, 0.5, 1.5, 2.0, 4.6], dtype=torch.float64)
    expected = [0.905148253644866, 0.761594155955765, 0.0, -0.46211715726001, -0.995949359386]
    torch.testing.assert_close(coefficient_for(losses, 1.5).tolist(), expected, rtol=1e-9, atol=1e-12)


@given(st.floats(0.1, 5), st.floats(1e-3, 3))
def test_features_help_above_the_threshold_and_hinder_below(threshold, apart):
    loss = torch.tensor([threshold + apart, threshold - apart], dtype=torch.float64)
    above, below = coefficient_for(loss, threshold).tolist()
    assert -1 < above < 0 < below < 1
    assert above == pytest.approx(-below)


@pytest.mark.parametrize("classes", [3, 4, 5, 100])
def test_the_first_epoch_takes_the_loss_of_a_classifier_that_knows_nothing(classes):
    adversary = ClassAdversary(SIZE, classes, threshold=1.5, epoch_steps=10)
    assert adversary.coefficient.item() == pytest.approx(-math.tanh(math.log(classes) - 1.5), rel=1e-6)
    assert (adversary.coefficient < 0) == (classes >= 5)


def test_the_coefficient_changes_at_the_end_of_each_epoch_by_its_mean_loss():
    """Each step's own loss, seen from outside, over epochs of three steps."""
    adversary = make(threshold=1.4, epoch_steps=3, dropout=0.4).train()
    expected, epoch = -math.tanh(math.log(CLASSES) - 1.4), []
    for step in range(1, 11):
        assert adversary.coefficient.item() == pytest.approx(expected, rel=1e-5)
        features, labels = batch(step)
        epoch.append(-adversary(features, labels).item() / expected)
        if step % 3 == 0:
            expected, epoch = -math.tanh(sum(epoch) / 3 - 1.4), []
    assert int(adversary.steps) == 10


def test_the_backward_pass_uses_the_coefficient_of_its_own_step():
    """The forward pass of an epoch's last step sets the next coefficient before its own gradients are taken."""
    features, labels = batch()
    features.requires_grad_()
    adversary = make(0.4, epoch_steps=1, dropout=0.0).train()
    value = adversary(features, labels)
    assert adversary.coefficient.item() != pytest.approx(0.4)
    value.backward()
    functional.cross_entropy(twin(adversary)(other := features.detach().clone().requires_grad_()), labels).backward()
    torch.testing.assert_close(features.grad, -0.4 * other.grad)


def test_soft_never_turns():
    adversary = make(threshold=None, epoch_steps=1).train()
    for step in range(4):
        adversary(*batch(step))
    assert adversary.coefficient.item() == -1


def test_the_two_players():
    """Helped, features come to tell the classes; hindered, they come to hide them from a classifier that keeps trying.

    Features are free, one vector an item, and start where classes can be told apart.
    """
    losses = {}
    for coefficient in (-1.0, 1.0):
        labels = batch()[1]
        features = (batch()[0] + 3 * functional.one_hot(labels, CLASSES)[:, :SIZE]).requires_grad_()
        adversary = make(coefficient, threshold=None, dropout=0.0).train()
        optimiser = torch.optim.Adam([features, *adversary.parameters()], lr=0.05)
        for _ in range(150):
            optimiser.zero_grad()
            adversary(features, labels).backward()
            optimiser.step()
        losses[coefficient] = functional.cross_entropy(twin(adversary)(features), labels).item()
    assert losses[-1.0] < 0.1
    assert losses[1.0] > 1.0


# Dropout.


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_leaves_out_its_share_and_keeps_the_mean(dropout):
    kept = torch.stack([kept_units((20, 50), dropout, seed=0, step=step) for step in range(100)]).double()
    assert kept.mean().item() == pytest.approx(1 - dropout, abs=0.01)
    assert (kept.mean(0) > 0).all()
    features = batch()[0]
    adversary = make(-1.0, dropout=dropout, threshold=None)
    logits = adversary._logits(features)
    adversary.train()
    draws = []
    for step in range(1000):
        adversary._steps = step
        draws.append(adversary._logits(features))
    torch.testing.assert_close(torch.stack(draws).mean(0), logits, rtol=0, atol=0.08)


def test_draws_follow_seed_and_step_and_leave_the_global_state_alone():
    state = torch.get_rng_state()
    first, again = (kept_units((4, 64), 0.5, seed=3, step=9) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, kept_units((4, 64), 0.5, seed=3, step=10))
    assert not torch.equal(first, kept_units((4, 64), 0.5, seed=4, step=9))
    assert torch.equal(state, torch.get_rng_state())


def test_eval_mode_drops_and_counts_nothing():
    adversary = make(dropout=0.5, epoch_steps=1)
    before = copy.deepcopy(adversary.state_dict())
    values = {adversary(*batch()).item() for _ in range(3)}
    assert len(values) == 1
    assert all(torch.equal(value, before[name]) for name, value in adversary.state_dict().items())


# Readings and checkpoints.


def test_readings_are_means_since_the_last_one():
    adversary = make(-0.5, threshold=1.5, epoch_steps=100, dropout=0.0).train()
    plain = twin(adversary)
    for steps in ((0, 1, 2), (3,)):
        losses, hits = [], []
        for step in steps:
            features, labels = batch(step)
            adversary(features, labels)
            losses.append(functional.cross_entropy(plain(features), labels).item())
            hits.append((plain(features).argmax(1) == labels).double().mean().item())
        found = adversary.readings(weight=0.2)
        assert found == pytest.approx(
            {"coefficient": -0.1, "turns": 0, "loss": sum(losses) / len(steps), "accuracy": sum(hits) / len(steps)},
            rel=1e-6,
        )
        assert len(set(hits)) > 1 or len(steps) == 1
    assert adversary.readings() == pytest.approx({"coefficient": -0.5, "turns": 0})


def test_the_coefficient_that_is_read_is_the_one_that_acted():
    """A row as long as an epoch ends where the next epoch's coefficient is set."""
    adversary = make(threshold=1.4, epoch_steps=3, dropout=0.0).train()
    for _ in range(3):
        acting = adversary.coefficient.item()
        values = [adversary(*batch(step)).item() for step in range(3)]
        found = adversary.readings(weight=0.5)
        assert adversary.coefficient.item() != pytest.approx(acting)
        assert found["coefficient"] == pytest.approx(0.5 * acting)
        assert sum(values) / 3 == pytest.approx(-acting * found["loss"])
        for parameter in adversary.parameters():
            parameter.data *= 1.5


def test_changes_of_sign_are_counted_when_they_act():
    """Against a loop over the coefficient of every step; what is set after the last step does not count yet."""
    adversary = make(threshold=1.5, epoch_steps=2, dropout=0.0).train()
    adversary.epoch_loss.zero_()
    wanted = [2.0, 2.0, 1.0, 1.0, 1.2, 3.0, 0.5]  # mean losses of the epochs
    signs, told = [], []
    for step in range(14):
        signs.append(math.copysign(1, adversary.coefficient.item()))
        adversary._count(torch.tensor(wanted[step // 2], dtype=torch.float64), torch.tensor(0.5))
        told.append(adversary.readings())
        changes = [i + 1 for i in range(1, len(signs)) if signs[i] != signs[i - 1]]
        expected = {"turns": len(changes)} | ({"first_turn": changes[0], "last_turn": changes[-1]} if changes else {})
        assert {name: value for name, value in told[-1].items() if "turn" in name} == expected
    assert told[-1]["turns"] == 2
    assert (told[-1]["first_turn"], told[-1]["last_turn"]) == (7, 13)
    adversary._count(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5))
    assert adversary.readings()["turns"] == 3


def test_soft_has_no_changes_of_sign_to_tell():
    adversary = make(threshold=None, epoch_steps=1).train()
    adversary(*batch())
    assert set(adversary.readings()) == {"coefficient", "loss", "accuracy"}


def test_no_step_reads_a_tensor(monkeypatch):
    """To read one would make a GPU wait."""
    adversary = make(threshold=1.5, epoch_steps=2).train()
    for name in ("item", "tolist", "__int__", "__float__", "__bool__", "__index__", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, **__: pytest.fail("read"))
    for step in range(5):
        features, labels = batch(step)
        adversary(features, labels)


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch(stop):
    whole = make(epoch_steps=3, dropout=0.3, seed=4, threshold=math.log(CLASSES)).train()
    values = []
    for step in range(8):
        if step == stop:
            kept = copy.deepcopy(whole.state_dict())
        values.append(whole(*batch(step)).item())
    resumed = make(epoch_steps=3, dropout=0.3, seed=4, threshold=math.log(CLASSES)).train()
    resumed.load_state_dict(kept)
    assert [resumed(*batch(step)).item() for step in range(stop, 8)] == values[stop:]
    assert resumed.readings() == whole.readings()
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


# As a part of an objective.

SHAPE = LossShape(dimension=4, classes=CLASSES, space=make_space("sphere"), features=SIZE, epoch_steps=9)


def section(weight=0.5, **parameters):
    term = {"name": "class-adversary", "weight": weight, "parameters": parameters}
    return ObjectiveSection(loss="contrastive", regularisers=[term])


def test_what_a_recipe_leaves_out():
    build = regularisers.get("class-adversary").factory
    adaptive, soft = build(SHAPE), build(SHAPE, kind="soft")
    assert (adaptive.threshold, adaptive.epoch_steps, adaptive.smoothing, adaptive.dropout) == (1.5, 9, 0.0, 0.1)
    assert (soft.threshold, soft.smoothing, soft.takes) == (None, 0.15, "features")
    assert (adaptive.hidden.in_features, adaptive.hidden.out_features, adaptive.output.out_features) == (SIZE, 512, 6)
    assert build(SHAPE, epoch_steps=4).epoch_steps == 4
    assert build(SHAPE, smoothing=0.3).smoothing == 0.3
    assert build(SHAPE, kind="soft", smoothing=0.0).smoothing == 0.0
    on_embeddings = build(SHAPE, vectors="embeddings")
    assert (on_embeddings.takes, on_embeddings.hidden.in_features) == ("embeddings", 4)


def test_soft_is_the_loss_plus_lambda_times_a_smoothed_cross_entropy():
    made = make_objective(section(0.4, kind="soft", hidden=HIDDEN), dimension=4, classes=CLASSES, features=SIZE)
    objective = made.double().eval()
    plain = make_objective(ObjectiveSection(loss="contrastive"), dimension=4, classes=CLASSES)
    features, labels = batch()
    embeddings = batch(1)[0][:, :4]
    logits = twin(objective.regularisers["class-adversary"])(features)
    expected = plain(embeddings, labels) + 0.4 * functional.cross_entropy(logits, labels, label_smoothing=0.15)
    torch.testing.assert_close(objective(embeddings, labels, features=features), expected)
    assert list(objective.parts(embeddings, labels, None, features)) == ["loss", "class-adversary"]


def test_the_objective_weighs_what_it_reads():
    objective = make_objective(section(0.2), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5)
    features, labels = batch()
    objective(features[:, :4].float(), labels, features=features.float())
    found = objective.readings()
    assert set(found) == {f"class-adversary_{what}" for what in ("coefficient", "turns", "loss", "accuracy")}
    assert found["class-adversary_coefficient"] == pytest.approx(-0.2 * math.tanh(math.log(CLASSES) - 1.5), rel=1e-5)
    assert make_objective(ObjectiveSection(), dimension=4, classes=3).readings() == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_computed_in_single(dtype):
    objective = make_objective(section(0.2), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5).eval()
    features, labels = batch()
    half = features.to(dtype).requires_grad_()
    value = objective(half[:, :4], labels, features=half)
    value.backward()
    assert value.dtype == torch.float32
    assert half.grad.dtype == dtype
    single = half.detach().float()
    torch.testing.assert_close(value, objective(single[:, :4], labels, features=single))
    assert all(parameter.dtype == torch.float32 for parameter in objective.networks())


def test_double_precision_is_taken_by_a_classifier_in_single():
    objective = make_objective(section(0.2), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5).eval()
    features, labels = batch()
    features.requires_grad_()
    value = objective(features[:, :4], labels, features=features)
    value.backward()
    assert value.dtype == features.grad.dtype == torch.float64
    single = features.detach().float()
    torch.testing.assert_close(value.float(), objective(single[:, :4], labels, features=single))


def test_with_a_weight_of_0_the_classifier_does_not_learn():
    objective = make_objective(section(0.0), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5)
    features, labels = batch()
    objective(features[:, :4].float(), labels, features=features.float()).backward()
    assert all(parameter.grad.abs().max() == 0 for parameter in objective.networks())


def test_its_network_is_no_proxy():
    terms = [{"name": "class-adversary"}, {"name": "zero-shot"}]
    made = ObjectiveSection(loss="proxy-anchor", regularisers=terms)
    objective = make_objective(made, dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5)
    players, proxies = ({id(p) for p in group} for group in (objective.networks(), objective.proxies()))
    assert players == {id(p) for p in objective.regularisers["class-adversary"].parameters()}
    assert not players & proxies
    assert players | proxies == {id(p) for p in objective.parameters()}
    assert objective.takers("features") == ["class-adversary"]
    assert objective.takers("attributes") == ["zero-shot"]


def test_seeds():
    def first(seed):
        made = make_objective(section(), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5, seed=seed)
        return made.regularisers["class-adversary"].hidden.weight

    state = torch.get_rng_state()
    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    assert torch.equal(state, torch.get_rng_state())


# Refusals.


def test_what_it_must_know_is_asked_for():
    with pytest.raises(RecipeError, match="features"):
        make_objective(section(), dimension=4, classes=CLASSES, epoch_steps=5)
    with pytest.raises(RecipeError, match="epoch_steps"):
        make_objective(section(), dimension=4, classes=CLASSES, features=SIZE)
    make_objective(section(vectors="embeddings", epoch_steps=3), dimension=4, classes=CLASSES)
    make_objective(section(vectors="embeddings", kind="soft"), dimension=4, classes=CLASSES)


def test_missing_features_are_asked_for():
    objective = make_objective(section(), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5)
    with pytest.raises(RecipeError, match="features"):
        objective(torch.randn(12, 4), batch()[1], torch.rand(12, 3))


@pytest.mark.parametrize("name", ["features", "epoch_steps"])
@pytest.mark.parametrize("count", [0, -3, 2.5, True, "5"])
def test_sizes_are_whole_numbers(name, count):
    given = {"features": SIZE, "epoch_steps": 5} | {name: count}
    with pytest.raises(RecipeError, match=name):
        make_objective(section(), dimension=4, classes=CLASSES, **given)


@pytest.mark.parametrize("shape", [(12, SIZE + 1), (11, SIZE), (12, SIZE, 1), (SIZE,)])
def test_features_of_another_shape_are_refused(shape):
    objective = make_objective(section(), dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5)
    with pytest.raises(DataError, match="features"):
        objective(torch.randn(12, 4), batch()[1], features=torch.randn(shape))
    on_embeddings = make_objective(section(vectors="embeddings", epoch_steps=3), dimension=4, classes=CLASSES)
    with pytest.raises(DataError, match="embeddings"):
        on_embeddings(torch.randn(12, 5), batch()[1])


def test_attributes_of_another_length_are_refused():
    made = ObjectiveSection(loss="contrastive", regularisers=[{"name": "zero-shot"}])
    objective = make_objective(made, dimension=4, classes=CLASSES)
    with pytest.raises(DataError, match="attributes"):
        objective(torch.randn(12, 4), batch()[1], torch.rand(11, 3))


@pytest.mark.parametrize("parameters", [{"threshold": 2.0}, {"epoch_steps": 3}])
def test_what_soft_has_no_use_for_is_refused(parameters):
    (name,) = parameters
    with pytest.raises(RecipeError, match=name):
        make_objective(section(kind="soft", **parameters), dimension=4, classes=CLASSES, features=SIZE)


@pytest.mark.parametrize("smoothing", [0.0, 1e-6, 0.15, 0.5, 0.999])
@pytest.mark.parametrize("classes", [2, 6, 100])
def test_the_least_loss_is_that_of_a_classifier_that_says_the_smoothed_label(smoothing, classes):
    label = torch.full((1, classes), smoothing / classes, dtype=torch.float64)
    label[0, 0] += 1 - smoothing
    reached = functional.cross_entropy(label.log(), torch.tensor([0]), label_smoothing=smoothing) if smoothing else 0.0
    assert least_loss(smoothing, classes) == pytest.approx(float(reached), abs=1e-12)


def test_smoothing_that_leaves_nothing_to_turn_at_is_refused():
    least = least_loss(0.9, CLASSES)

    def build(threshold):
        made = section(smoothing=0.9, threshold=threshold)
        return make_objective(made, dimension=4, classes=CLASSES, features=SIZE, epoch_steps=5)

    with pytest.raises(RecipeError, match="threshold"):
        build(1.0)
    with pytest.raises(RecipeError, match="threshold"):
        build(least)
    build(least + 1e-3)
    make_objective(section(kind="soft", smoothing=0.99), dimension=4, classes=100, features=SIZE)


@pytest.mark.parametrize(
    "given", [["class-adversary"], [{"weight": 1}], [{}], "class-adversary", {"name": "class-adversary"}, None, [None]]
)
def test_regularisers_in_another_form_are_shown_the_right_one(given):
    with pytest.raises(RecipeError, match=r"objective\.regularisers"):
        ObjectiveSection(loss="contrastive", regularisers=given)


@pytest.mark.parametrize(
    "parameters",
    [
        {"kind": "hard"},
        {"vectors": "pixels"},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"smoothing": 1},
        {"smoothing": True},
        {"hidden": 0},
        {"hidden": 100_000_000_000},
        {"threshold": 0},
        {"epoch_steps": 0},
        {"treshold": 1.5},
    ],
)
def test_bad_parameters(parameters):
    with pytest.raises(RecipeError, match=next(iter(parameters))):
        section(**parameters)
