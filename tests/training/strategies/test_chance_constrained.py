"""The proximal term against autograd on the formula."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from nearkin.errors import CheckpointError, RecipeError
from nearkin.objectives import ObjectiveSection, losses, make_objective
from nearkin.recipe import ChanceConstrainedSection, load_recipe
from nearkin.spaces import Euclidean
from nearkin.training import Run, train
from nearkin.training.batches import TrainingPool
from nearkin.training.run import load_state, save_state
from nearkin.training.step import WeightAverage
from nearkin.training.strategies import ChanceConstrained
from nearkin.training.strategies.base import SELECTION_METRIC
from nearkin.training.strategies.chance_constrained import RADIUS, proximal

SHAPES = [(3, 4), (5,), (2, 3, 1, 1)]


def weights(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]


def test_value_and_gradient_are_those_of_the_formula():
    ours, plain = ([w.requires_grad_(True) for w in weights(0)] for _ in range(2))
    centre = weights(1)
    value = proximal(ours, centre, 0.3)
    expected = 0.15 * sum(((w - c) ** 2).sum() for w, c in zip(plain, centre, strict=True))
    torch.testing.assert_close(value, expected)
    (2.0 * value).backward()
    (2.0 * expected).backward()
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_gradient_points_away_from_the_centre():
    """Descending it comes nearer: the sign that algorithm 1 of the paper has the other way round."""
    (weight,) = [torch.tensor([2.0], requires_grad=True)]
    proximal([weight], [torch.tensor([0.5])], 1.0).backward()
    assert weight.grad.item() == 1.5


def test_gradcheck():
    centre = weights(2)
    inputs = tuple(w.requires_grad_(True) for w in weights(3))
    assert torch.autograd.gradcheck(lambda *w: proximal(list(w), centre, 0.7), inputs)


CLASSES, DIMENSION = 3, 2
COUNTS = (7, 5, 2)


class Line:
    """Batches of an identity network: item i is the point (i, class)."""

    start = None

    def __init__(self, class_ids):
        self.class_ids = class_ids

    def plain(self, positions):
        return torch.from_numpy(np.stack([positions, self.class_ids[positions]], axis=1)).float()


class Network(torch.nn.Module):
    """As much of an Embedder as a schedule uses: a scale of the inputs."""

    dimension = DIMENSION

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.normalise = torch.nn.Module()
        self.normalise.mean = torch.zeros(())
        self.space = Euclidean()

    def forward(self, x, start=None):
        return self.scale * x


def make(tmp_path, **settings):
    class_ids = np.repeat(np.arange(CLASSES), COUNTS)
    network = Network()
    pool = TrainingPool(Line(class_ids), network, class_ids, seed=0)
    section = ChanceConstrainedSection(**{"proxies": 2, "pool": 4, "proximal": 0.3, **settings})
    return ChanceConstrained(section, pool, tmp_path / "kept.safetensors"), network


def objective(loss="contrastive"):
    return make_objective(ObjectiveSection(loss=loss), dimension=DIMENSION, classes=CLASSES, space=Euclidean())


def feed(schedule, network, values, step=0):
    said = []
    for place, value in enumerate(values, start=1):
        weights = {"scale": network.scale.detach().clone()}
        said.append(
            schedule.validated(step + place, {SELECTION_METRIC: value, RADIUS: 10 * value}, lambda w=weights: w)
        )
    return said


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("size", [1, 4, 7])
def test_pool_draws_from_each_class_and_repeats_only_small_ones(tmp_path, turn, size):
    schedule, _ = make(tmp_path)
    drawn = schedule._pool.draw(turn, size)
    assert drawn.shape == (CLASSES, size)
    for label, row in enumerate(drawn):
        assert set(schedule._pool.class_ids[row]) == {label}
        assert len(set(row)) == min(size, COUNTS[label])
    assert np.array_equal(drawn, schedule._pool.draw(turn, size))
    assert not np.array_equal(drawn, schedule._pool.draw(turn + 1, size)) or size == 1


def test_a_pool_is_no_larger_than_the_largest_class_and_repeats_are_embedded_once(tmp_path, monkeypatch):
    schedule, _ = make(tmp_path, pool=1000)
    asked = []
    inputs = schedule._pool.inputs
    monkeypatch.setattr(schedule._pool, "inputs", lambda positions: (asked.extend(positions), inputs(positions))[1])
    schedule.begin()
    assert sorted(asked) == list(range(sum(COUNTS)))
    drawn = schedule._pool.draw(1, 1000)
    assert drawn.shape == (CLASSES, max(COUNTS))
    torch.testing.assert_close(schedule._pool.embed(drawn)[..., 0], torch.from_numpy(drawn).float())
    assert schedule._pool.draw(1, 1000, least=9).shape == (CLASSES, 9)


def greedy(points, count, seeds):
    """Algorithm 2 of the seed for one class, by loops."""
    picked = []
    for _ in range(count):
        known = [*seeds, *(points[i] for i in picked)]
        gaps = [min(np.linalg.norm(point - other) for other in known) for point in points]
        picked.append(max((i for i in range(len(points)) if i not in picked), key=lambda i: (gaps[i], -i)))
    return points[picked]


def test_first_anchors_lie_far_from_the_origin_and_the_next_far_from_the_best_ones(tmp_path):
    schedule, network = make(tmp_path, patience=2)
    schedule.begin()
    for label in range(CLASSES):
        points = schedule._pool.embed(schedule._pool.draw(1, 4))[label].numpy()
        expected = greedy(points, 2, np.zeros((2, DIMENSION)))
        np.testing.assert_allclose(schedule.anchors.values()[label].numpy(), expected)
    with torch.no_grad():
        schedule.anchors.proxies.add_(0.25)
    best = schedule.anchors.values().clone()
    feed(schedule, network, [0.5])
    with torch.no_grad():
        schedule.anchors.proxies.zero_()  # worse than those kept, and not what the next ones are measured from
    feed(schedule, network, [0.4, 0.4], step=1)
    assert schedule.instance == 2
    for label in range(CLASSES):
        points = schedule._pool.embed(schedule._pool.draw(2, 4))[label].numpy()
        np.testing.assert_allclose(schedule.anchors.values()[label].numpy(), greedy(points, 2, best[label].numpy()))


def test_as_many_in_the_pool_as_proxies_is_random_selection(tmp_path):
    schedule, _ = make(tmp_path, pool=2)
    schedule.begin()
    drawn = schedule._pool.embed(schedule._pool.draw(1, 2))
    ours, theirs = ({tuple(row) for row in rows.flatten(0, 1).tolist()} for rows in (schedule.anchors.values(), drawn))
    assert ours == theirs


def test_value_of_a_step_is_that_of_the_formula(tmp_path):
    schedule, network = make(tmp_path, batch_weight=0.1)
    schedule.begin()
    loss = objective()
    embeddings, labels = torch.randn(6, DIMENSION), torch.tensor([0, 0, 1, 1, 2, 2])
    anchors, anchor_labels = schedule.anchors.vectors(), torch.tensor([0, 0, 1, 1, 2, 2])
    expected = loss.against(embeddings, labels, anchors, anchor_labels) + 0.1 * loss(embeddings, labels)
    torch.testing.assert_close(schedule(loss, embeddings, labels), expected)
    feed(schedule, network, [0.5, 0.4, 0.4, 0.4])  # the next instance has weights to stay near
    with torch.no_grad():
        network.scale.fill_(3.0)
    anchors = schedule.anchors.vectors()
    expected = loss.against(embeddings, labels, anchors, anchor_labels) + 0.1 * loss(embeddings, labels)
    torch.testing.assert_close(schedule(loss, embeddings, labels), expected + 0.15 * (3.0 - 1.0) ** 2)


def test_regularisers_count_once(tmp_path):
    schedule, _ = make(tmp_path, batch_weight=0.0)
    schedule.begin()
    section = ObjectiveSection(loss="contrastive", regularisers=[{"name": "embedding-norm", "weight": 0.5}])
    with_term = make_objective(section, dimension=DIMENSION, classes=CLASSES, space=Euclidean())
    embeddings, labels = torch.randn(6, DIMENSION), torch.tensor([0, 0, 1, 1, 2, 2])
    difference = schedule(with_term, embeddings, labels) - schedule(objective(), embeddings, labels)
    torch.testing.assert_close(difference, 0.5 * embeddings.square().sum(1).mean())


def test_an_instance_ends_after_validations_without_a_gain_and_starts_from_its_best_weights(tmp_path):
    schedule, network = make(tmp_path, patience=3, min_gain=1e-5)
    schedule.begin()
    said = []
    for step, (value, scale) in enumerate([(0.2, 1.0), (0.3, 2.0), (0.300001, 3.0), (0.3, 4.0), (0.1, 5.0)], start=1):
        with torch.no_grad():
            network.scale.fill_(scale)
        said += feed(schedule, network, [value], step=step - 1)
    assert said[:4] == [{}] * 4
    assert said[4]["instance"] == 1
    assert said[4]["instance_steps"] == 5
    assert said[4]["instance_MAP@R"] == 0.3
    assert said[4]["instance_covering_radius"] == pytest.approx(3.0)
    assert schedule.previous[0].item() == 2.0
    assert network.scale.item() == 5.0  # training goes on from where it is
    # What the first instance reached does not count in the second.
    assert feed(schedule, network, [0.05, 0.04, 0.04, 0.04], step=5)[3]["instance_MAP@R"] == 0.05


def test_the_last_instance_never_ends_and_is_reported_when_training_does(tmp_path):
    schedule, network = make(tmp_path, instances=1)
    schedule.begin()
    before = schedule.anchors.values().clone()
    assert feed(schedule, network, [0.5] + [0.4] * 20) == [{}] * 21
    assert torch.equal(schedule.anchors.values(), before)
    said = schedule.finished(21)
    assert (said["instance"], said["instance_steps"], said["instance_MAP@R"]) == (1, 21, 0.5)
    pairs = [np.linalg.norm(a - b) for a, b in before.numpy()]
    assert said["instance_spread"] == pytest.approx(np.mean(pairs))


def test_plain_steps_come_first_when_asked_for(tmp_path):
    schedule, network = make(tmp_path, warmup_steps=2, patience=1)
    schedule.begin()
    loss, (embeddings, labels) = objective(), (torch.randn(6, DIMENSION), torch.tensor([0, 0, 1, 1, 2, 2]))
    feed(schedule, network, [0.5])
    torch.testing.assert_close(schedule(loss, embeddings, labels), loss(embeddings, labels))
    assert schedule.anchors.values().abs().sum() == 0
    restored, _ = make(tmp_path, warmup_steps=2, patience=1)
    restored.restore(schedule.tensors(), schedule.facts())
    for each in (schedule, restored):
        feed(each, network, [0.6], step=1)
        assert (each.instance, each.began) == (1, 2)
        points = each._pool.embed(each._pool.draw(1, 4))[0].numpy()
        np.testing.assert_allclose(each.anchors.values()[0].numpy(), greedy(points, 2, np.zeros((2, DIMENSION))))
        anchors, their_labels = each.anchors.vectors(), torch.tensor([0, 0, 1, 1, 2, 2])
        expected = loss.against(embeddings, labels, anchors, their_labels) + 0.1 * loss(embeddings, labels)
        torch.testing.assert_close(each(loss, embeddings, labels), expected)
    # What the plain steps reached does not count in the first instance.
    assert feed(schedule, network, [0.3, 0.2], step=2)[1]["instance_steps"] == 2


def test_sample_anchors_move_with_the_network(tmp_path):
    schedule, network = make(tmp_path, anchors="samples")
    schedule.begin()
    first = schedule.anchors.vectors().detach()
    with torch.no_grad():
        network.scale.fill_(2.0)
    torch.testing.assert_close(schedule.anchors.vectors(), 2 * first)
    torch.testing.assert_close(schedule.anchors.values().flatten(0, 1), 2 * first)
    schedule.anchors.vectors().sum().backward()
    assert network.scale.grad is not None
    assert not list(schedule.parameters())


@pytest.mark.parametrize("anchors", ["proxies", "samples"])
@pytest.mark.parametrize("validations", [2, 4, 6])
def test_restored_in_the_middle_of_an_instance(tmp_path, anchors, validations):
    values = [0.5, 0.4, 0.45, 0.3, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1]
    whole, network = make(tmp_path, anchors=anchors)
    whole.begin()
    feed(whole, network, values[:validations])
    other, other_network = make(tmp_path, anchors=anchors)
    other.restore({name: value.clone() for name, value in whole.tensors().items()}, whole.facts())
    kept = (tmp_path / "kept.safetensors").read_bytes()
    left = feed(whole, network, values[validations:], step=validations)
    (tmp_path / "kept.safetensors").write_bytes(kept)
    assert feed(other, other_network, values[validations:], step=validations) == left
    assert torch.equal(other.anchors.values(), whole.anchors.values())
    assert (other.previous is None) == (whole.previous is None)


def damaged(file):
    file.write_bytes(file.read_bytes()[:50])


def foreign(file):
    tensors, facts = load_state(file)
    save_state(file, tensors, {**facts, "state": {**facts["state"], "best": 0.1}})


@pytest.mark.parametrize("harm", [Path.unlink, damaged, foreign])
def test_without_what_the_instance_kept_nothing_goes_on_and_nothing_is_lost(tmp_path, harm):
    whole, network = make(tmp_path)
    whole.begin()
    feed(whole, network, [0.5, 0.4])
    kept = tmp_path / "kept.safetensors"
    harm(kept)
    other, _ = make(tmp_path)
    with pytest.raises(CheckpointError, match=kept.name):
        other.restore(whole.tensors(), whole.facts())
    with pytest.raises(CheckpointError, match=kept.name):
        feed(whole, network, [0.4, 0.4], step=2)
    assert whole.finished(4) == {}


def test_what_is_kept_may_be_one_validation_ahead_of_the_checkpoint(tmp_path):
    whole, network = make(tmp_path)
    whole.begin()
    feed(whole, network, [0.5])
    tensors, facts = {name: value.clone() for name, value in whole.tensors().items()}, whole.facts()
    feed(whole, network, [0.6], step=1)  # killed before its checkpoint
    other, other_network = make(tmp_path)
    other.restore(tensors, facts)
    rest = [0.6, 0.1, 0.1, 0.1]
    assert feed(other, other_network, rest, step=1)[-1]["instance_MAP@R"] == 0.6


def test_the_first_validation_of_an_instance_always_counts(tmp_path):
    schedule, network = make(tmp_path, min_gain=2.0)
    schedule.begin()
    assert feed(schedule, network, [0.5, 0.6, 0.6, 0.6])[3]["instance_MAP@R"] == 0.5


CCP = [
    "training.schedule=chance_constrained",
    "training.chance_constrained={proxies: 2, pool: 4, patience: 1}",
    "training.max_steps=16",
    "training.evaluate_every=2",
    "data.classes_per_batch=3",
]


def run_training(dataset, overrides, path, base="contrastive", resume=False):
    recipe = load_recipe(base, overrides)
    run = Run(path)
    result = train(
        dataset, recipe, run, source="x", cache_directory=path.parent / "cache", progress=False, resume=resume
    )
    return result, run


@pytest.mark.parametrize("loss", [name for name in losses if losses.get(name).references])
def test_every_pair_loss_trains_with_it(loss, patterns, tiny, tmp_path):
    settings = [*tiny, *CCP, f"objective.loss={loss}", "training.max_steps=6"]
    result, run = run_training(patterns, settings, tmp_path / "run", base="base")
    assert result.state.step == 6
    rows = [row for row in run.history() if "instance" in row]
    assert [row["instance"] for row in rows] == list(range(1, len(rows) + 1))
    assert sum(row["instance_steps"] for row in rows) == 6
    assert all(np.isfinite(row["instance_covering_radius"]) for row in rows)


def test_the_log_and_the_snapshots_tell_each_instance(patterns, tiny, tmp_path):
    settings = [*tiny, *CCP, "training.max_steps=18"]  # the last instance is then cut short
    _, run = run_training(patterns, settings, tmp_path / "run")
    rows, snapshots = [row for row in run.history() if "instance" in row], run.instances()
    assert len(rows) == len(snapshots) > 1
    for snapshot in snapshots:
        classes = len(snapshot["classes"])
        assert snapshot["points"].shape == (len(snapshot["labels"]), 16)
        assert snapshot["converged"].shape == (classes, 2, 16)
    assert [len(snapshot["next"][0]) for snapshot in snapshots] == [2] * (len(snapshots) - 1) + [0]
    assert all("val_covering_radius" in row for row in run.history() if "val_MAP@R" in row)
    # A finished run may be resumed, and says nothing twice.
    before = run.log_file.read_text()
    run_training(patterns, settings, tmp_path / "run", resume=True)
    assert run.log_file.read_text() == before


def test_it_works_on_the_feature_cache(patterns, tiny, tmp_path):
    cached = ["model.freeze=all", "model.cache=true", "model.cache_views={flip: true}"]
    result, run = run_training(patterns, [*tiny, *CCP, *cached], tmp_path / "run")
    assert result.state.step == 16
    assert len(run.instances()) > 1


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["objective.loss=n-pairs"], "n-pairs"),
        (["objective.loss=proxy-anchor"], "proxy-anchor"),
        (["data.val_classes=0"], r"data\.val_classes"),
        (["training.chance_constrained={proxies: 5, pool: 4}"], "pool"),
        (["training.chance_constrained.min_gain=.inf"], "min_gain"),
        (["training.cross_batch_memory.batches=3"], "cross_batch_memory"),
        (["training.chance_constrained={prox: 5}"], r"training\.chance_constrained\.prox\b"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(overrides, word, patterns, tiny, tmp_path):
    with pytest.raises(RecipeError, match=word):
        run_training(patterns, [*tiny, *CCP, *overrides], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_recipes_of_old_still_say_the_shape_of_the_learning_rate_with_schedule():
    old = load_recipe("contrastive", ["training.schedule=cosine"])
    assert (old.training.schedule, old.training.lr_schedule) == ("plain", "cosine")
    new = load_recipe("contrastive", ["training.schedule=cross_batch_memory"])
    assert new.training.schedule == "cross-batch-memory"


def test_another_schedule_leaves_the_settings_of_the_old_one_behind(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: contrastive-ccp\ntraining: {chance_constrained: {proxies: 4}}\n")
    assert load_recipe(file).training.chance_constrained.proxies == 4
    plain = load_recipe(file, ["training.schedule=plain"]).training
    assert (plain.schedule, plain.chance_constrained.proxies) == ("plain", 8)
    with pytest.raises(RecipeError, match="chance_constrained"):
        load_recipe("contrastive", ["training.chance_constrained.proxies=4"])


def test_a_run_of_a_nearkin_that_knew_fewer_settings_goes_on(patterns, tiny, tmp_path):
    """Its recipe file lacks keys that came later, which then have their usual values."""
    settings = [*tiny, "training.lr_schedule=cosine"]
    run_training(patterns, settings, tmp_path / "whole")
    _, run = run_training(patterns, settings, tmp_path / "old")
    tree = yaml.safe_load(run.recipe_file.read_text())
    for name in ("schedule", "cross_batch_memory", "chance_constrained"):
        del tree["training"][name]
    tree["training"]["schedule"] = tree["training"].pop("lr_schedule")
    run.recipe_file.write_text(yaml.safe_dump(tree))
    run_training(patterns, settings, tmp_path / "old", resume=True)
    assert Run(tmp_path / "old").log_file.read_text() == Run(tmp_path / "whole").log_file.read_text()


def test_the_old_name_of_the_shape_does_not_switch_a_schedule_off(tmp_path):
    over = load_recipe("contrastive-ccp", ["training.schedule=cosine"]).training
    assert (over.schedule, over.lr_schedule) == ("chance-constrained", "cosine")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: contrastive-xbm\ntraining: {schedule: step}\n")
    mine = load_recipe(file).training
    assert (mine.schedule, mine.lr_schedule) == ("cross-batch-memory", "step")
    both = load_recipe("contrastive", ["training={schedule: cosine, lr_schedule: step}"]).training
    assert (both.schedule, both.lr_schedule) == ("plain", "step")


def test_a_memory_has_no_more_places_than_the_run_has_batches(patterns, tiny, tmp_path):
    huge = ["training.cross_batch_memory={batches: 1000000000, warmup_steps: 2}"]
    _, run = run_training(patterns, [*tiny, *huge], tmp_path / "run", base="contrastive-xbm")
    assert load_state(run.state_file)[0]["schedule"]["memory"].shape[0] == 12 * 4 * 3


def test_with_averaged_weights_the_averages_are_kept_and_new_proxies_lie_where_the_network_is(
    patterns, tiny, tmp_path, monkeypatch
):
    """Validation sees the averages; training goes on from the weights themselves, and so must its proxies."""
    inside, drawn = [], []
    applied, draw = WeightAverage.applied, ChanceConstrained._draw

    @contextmanager
    def noted(self):
        with applied(self):
            inside.append(True)
            yield
            inside.pop()

    def watched(self, seeds):
        drawn.append(bool(inside))
        return draw(self, seeds)

    monkeypatch.setattr(WeightAverage, "applied", noted)
    monkeypatch.setattr(ChanceConstrained, "_draw", watched)
    averaged = ["training.ema=0.9", "training.lr=0.01"]
    run_training(patterns, [*tiny, *CCP, *averaged], tmp_path / "run")
    assert len(drawn) > 1
    assert not any(drawn)
    _, once = run_training(patterns, [*tiny, *CCP, *averaged, "training.max_steps=2"], tmp_path / "once")
    state, kept = load_state(once.state_file)[0], load_state(tmp_path / "once" / "instance.safetensors")[0]
    assert all(torch.equal(kept["weights"][name], value) for name, value in state["average"].items())
    assert any(not torch.equal(state["embedder"][name], value) for name, value in state["average"].items())
