"""How a run begins: recipe keys, head and proxies from the training items, step 0 in the log, and resumption."""

from __future__ import annotations

import json
import math
import os
import signal
from copy import deepcopy

import numpy as np
import pytest
import torch
import yaml

from nearkin.data.hierarchy import Hierarchy
from nearkin.data.splits import resolve_split
from nearkin.errors import RecipeError, RunError
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection
from nearkin.models.start import fit_start
from nearkin.objectives import make_objective
from nearkin.objectives.section import ObjectiveSection
from nearkin.recipe import load_recipe
from nearkin.spaces import Euclidean, Sphere
from nearkin.training import Run, train
from nearkin.training.fit import TrainingSetup
from nearkin.training.loop import Loop
from nearkin.training.ranks import Ranks
from nearkin.training.run import load_state
from nearkin.training.start import (
    RunStart,
    measure_start,
    per_query,
    random_start_line,
    rate_note,
    rate_share,
    raw_features,
    resize_head,
    start_lines,
)

HEAD = {
    "kind": "whitened",
    "dimension": 128,
    "features": 1280,
    "ridge": 3.0,
    "damping": 0.0,
    "trials": [
        {"dimension": 64, "ridge": 1.0, "damping": 0.0, "precision": 0.40, "map_at_r": 0.10, "queries": 90},
        {"dimension": 128, "ridge": 3.0, "damping": 0.0, "precision": 0.427, "map_at_r": 0.11, "queries": 90},
        {"dimension": 1280, "ridge": 3.0, "damping": 0.0, "precision": 0.43, "map_at_r": 0.11, "queries": 90},
    ],
    "notes": ["Mind the gap."],
}


# ---------------------------------------------------------------- the file


def test_what_is_saved_is_read_back(tmp_path):
    values = {"P@1": [1.0, 0.0], "MAP@R": [0.5, 0.25]}
    start = RunStart(HEAD, values, values, ["a", "b"])
    start.save(tmp_path / "start.json")
    assert RunStart.load(tmp_path / "start.json") == start


def test_a_run_of_old_began_at_random(tmp_path):
    assert RunStart.load(tmp_path / "start.json") == RunStart()


@pytest.mark.parametrize("text", ["{", '{"heads": null}', "[1, 2]"])
def test_a_damaged_file_is_told(text, tmp_path):
    (tmp_path / "start.json").write_text(text)
    with pytest.raises(RunError, match=r"start\.json"):
        RunStart.load(tmp_path / "start.json")


@pytest.mark.parametrize(
    "change",
    [
        {"head": {}},
        {"head": {"kind": "whitened"}},
        {"head": {key: value for key, value in HEAD.items() if key != "features"}},
        {"head": {**HEAD, "dimension": "128"}},
        {"head": {**HEAD, "trials": [{"dimension": 64}]}},
        {"first": {"P@1": [1.0, 0.0]}},
        {"first": [1.0, 0.0]},
        {"raw": {"P@1": [1.0], "MAP@R": [0.5]}},
        {"labels": None},
    ],
)
def test_an_incomplete_file_is_told(change, tmp_path):
    values = {"P@1": [1.0, 0.0], "MAP@R": [0.5, 0.25]}
    whole = {"head": HEAD, "raw": values, "first": values, "labels": ["a", "b"]}
    (tmp_path / "start.json").write_text(json.dumps({**whole, **change}))
    with pytest.raises(RunError, match=r"start\.json"):
        RunStart.load(tmp_path / "start.json")


def test_a_head_of_another_kind_says_less(tmp_path):
    start = RunStart(head={"kind": "other", "dimension": 8})
    start.save(tmp_path / "start.json")
    assert RunStart.load(tmp_path / "start.json") == start


# ---------------------------------------------------------------- what is told


def test_the_size_is_told_with_what_a_smaller_one_would_cost():
    first, *others = start_lines(HEAD)
    assert all(word in first for word in ("whitened", "128", "1280", "2.7"))
    assert all(value in "\n".join(others) for value in ("40.0", "42.7", "43.0"))
    assert "Mind the gap." in others[-1]


def test_damping_is_told_where_there_is_some():
    assert "damping" not in start_lines(HEAD)[0]
    assert "damping 0.5" in start_lines({**HEAD, "damping": 0.5})[0]


def test_all_dimensions_are_told_with_what_they_take():
    lines = start_lines({**HEAD, "dimension": 1280, "notes": []})
    assert "0.3" in lines[0]
    assert "5.1 GB" in lines[-1]


@pytest.mark.parametrize(
    ("rate", "words", "absent"),
    [
        (0.8e-4, None, ""),
        (2e-5, ("2e-05", "0.0001", "84 items", "full_rate_classes", "0 turns either off"), "nearly"),
        (7.8e-8, ("7.8e-08", "84 items", "nearly as it is", "full_rate_classes=0", "full_rate_items=0"), "slowly"),
    ],
)
def test_a_rate_that_was_lowered_is_told(rate, words, absent):
    note = rate_note({**HEAD, "lr": rate, "lr_lowered_for": "84 items"}, 1e-4)
    if words is None:
        assert note is None
    else:
        assert all(word in note for word in words)
        assert absent not in note


def test_starts_of_old_say_nothing_of_rates():
    assert rate_note(HEAD, 1e-4) is None
    assert rate_share(None, 1e-4) == 1.0


def test_where_nothing_was_chosen_there_is_no_table():
    (line,) = start_lines({**HEAD, "kind": "pca", "ridge": None, "trials": [], "notes": []})
    assert all(word in line for word in ("principal components", "128", "1280"))


# ---------------------------------------------------------------- the recipe


def test_the_usual_start_depends_on_what_the_backbone_knows():
    pretrained = ModelSection(backbone="efficientnet-lite0", pretrained=True)
    assert (pretrained.head_start, pretrained.dimension) == ("whitened", "auto")
    assert ModelSection(weights="runs/a").head_start == "whitened"
    scratch = ModelSection(backbone="conv4")
    assert (scratch.head_start, scratch.dimension) == ("random", 128)
    assert ModelSection(pretrained=True, dimension=32).dimension == 32
    assert ModelSection(pretrained=True, head_start="random").dimension == 128


def test_a_start_from_the_data_may_be_asked_for_from_scratch():
    section = ModelSection(backbone="conv4", head_start="pca")
    assert (section.head_start, section.dimension) == ("pca", "auto")


def test_proxies_start_as_the_head_does():
    assert load_recipe("proxy-anchor").objective.proxy_start == "prototypes"
    assert load_recipe("proxy-anchor", ["model.head_start=random"]).objective.proxy_start == "random"
    kept = load_recipe("proxy-anchor", ["objective.proxy_start=random"])
    assert (kept.model.head_start, kept.objective.proxy_start) == ("whitened", "random")


def test_a_saved_recipe_is_read_back(tmp_path):
    recipe = load_recipe("proxy-anchor")
    recipe.save(tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


def test_a_recipe_saved_before_keeps_its_random_start(tmp_path):
    recipe = load_recipe("proxy-anchor", ["model.head_start=random"])
    tree = yaml.safe_load(recipe.to_yaml())
    del tree["model"]["head_start"], tree["objective"]["proxy_start"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(tree))
    old = load_recipe(tmp_path / "old.yaml")
    assert old.model.pretrained
    assert (old.model.head_start, old.model.dimension, old.objective.proxy_start) == ("random", 128, "random")
    assert old == recipe


def test_a_section_saved_before_keeps_its_random_start():
    tree = ModelSection(pretrained=True, dimension=128).model_dump(mode="json")
    del tree["head_start"]
    assert ModelSection(**tree).head_start == "random"
    assert ModelSection(**tree).dimension == 128


def test_the_poincare_ball_starts_at_random():
    section = ModelSection(pretrained=True, space="poincare-ball")
    assert (section.head_start, section.dimension) == ("random", 128)
    with pytest.raises(RecipeError, match="poincare-ball"):
        ModelSection(pretrained=True, space="poincare-ball", head_start="whitened")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"space": "poincare-ball"}, ("head", "random", "Poincaré")),
        ({"head_start": "random"}, ("head", "random", "model.head_start")),
        ({"head_start": "random", "dimension": None, "local_dimension": 8}, ("1x1 convolution", "random")),
        ({}, None),
        ({"dimension": None}, None),
        ({"pretrained": False}, None),
    ],
)
def test_a_random_start_behind_a_backbone_that_knows_something_is_told(settings, words):
    line = random_start_line(ModelSection(**{"pretrained": True, **settings}))
    assert (line is None) == (words is None)
    assert all(word in line for word in words or ())


def test_without_a_layer_there_is_no_start():
    assert ModelSection(pretrained=True, dimension=None).head_start == "random"
    with pytest.raises(RecipeError, match=r"model\.dimension"):
        ModelSection(pretrained=True, dimension=None, head_start="whitened")
    assert ModelSection(pretrained=True, dimension=None, local_dimension=8).head_start == "whitened"


@pytest.mark.parametrize("dimension", [0, 65537, 999999999, 1.5, "wide"])
def test_a_dimension_out_of_bounds_is_told_in_plain_words(dimension):
    with pytest.raises(RecipeError, match="65536") as told:
        load_recipe("multi-similarity", [f"model.dimension={dimension}"])
    assert "constrained" not in str(told.value)
    assert load_recipe("multi-similarity", ["model.dimension=65536"]).model.dimension == 65536


def test_prefixes_want_a_number():
    with pytest.raises(RecipeError, match="prefixes"):
        load_recipe("proxy-anchor", ["model.dimension=auto", "objective.prefixes=[16]"])
    assert load_recipe("proxy-anchor", ["model.dimension=64", "objective.prefixes=[16]"]).model.dimension == 64


# ---------------------------------------------------------------- proxies


def started_proxies(loss, points, space=None, **parameters):
    """The parameter of a loss with one row (or column) for each of its proxies, after the start."""
    classes, _, dimension = points.shape
    section = ObjectiveSection(loss=loss, parameters=parameters)
    objective = make_objective(section, dimension=dimension, classes=classes, space=space)
    assert objective.has_learned_proxies
    objective.start_proxies(points)
    return max(objective.loss.parameters(), key=lambda parameter: parameter.numel()).detach()


@pytest.mark.parametrize("loss", ["proxy-anchor", "proxy-nca", "normface", "normalized-softmax", "softmax"])
def test_proxies_start_at_the_prototypes(loss):
    points = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
    prototypes = torch.stack([Sphere().mean(Sphere().project(of_class)) for of_class in points])
    found = started_proxies(loss, points)
    torch.testing.assert_close(found if len(found) == 5 else found.T, prototypes)


@pytest.mark.parametrize("prefixes", [[], [2]])
def test_proxies_that_follow_class_means_start_there_too(prefixes):
    points = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
    section = ObjectiveSection(loss="normface", parameters={"proxies": "ema", "ema_rate": 0.25}, prefixes=prefixes)
    objective = make_objective(section, dimension=4, classes=5)
    objective.start_proxies(points)
    prototypes = Sphere().mean(Sphere().project(points))
    torch.testing.assert_close(objective.loss.class_vectors(), prototypes)
    for prefix in objective.prefixes:
        torch.testing.assert_close(prefix.loss.class_vectors(), Sphere().mean(Sphere().project(points[..., :2])))
    batch = torch.eye(4)[:1].repeat(2, 1)
    objective(batch, torch.zeros(2, dtype=torch.int64))
    objective.stepped()
    moved = torch.nn.functional.normalize(0.25 * batch[0] + 0.75 * prototypes[0], dim=0)
    torch.testing.assert_close(objective.loss.class_vectors()[0], moved, rtol=1e-4, atol=1e-5)


def test_several_centres_of_a_class_start_at_parts_of_it():
    points = torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(0))
    found = started_proxies("soft-triple", points, centres=3).T
    assert found.shape == (15, 4)
    for number, of_class in enumerate(points):
        centres = torch.stack([Sphere().mean(of_class[k::3]) for k in range(3)])
        torch.testing.assert_close(found[3 * number : 3 * number + 3], centres)


def test_more_centres_than_items_repeat_them():
    points = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(0))
    found = started_proxies("soft-triple", points, centres=3).T
    torch.testing.assert_close(found[:3], Sphere().project(points[0][[0, 1, 0]]), rtol=1e-4, atol=1e-5)


def test_prototypes_are_means_of_the_space():
    points = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(started_proxies("softmax", points, Euclidean()), points.mean(1))


def test_prefixes_start_at_prototypes_of_the_first_dimensions():
    section = ObjectiveSection(loss="proxy-anchor", prefixes=[2])
    objective = make_objective(section, dimension=4, classes=3)
    points = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    objective.start_proxies(points)
    proxies = [p for p in objective.proxies() if p.shape == (3, 2)]
    torch.testing.assert_close(proxies[0].detach(), Sphere().mean(points[..., :2]))


def test_a_loss_without_proxies_has_nothing_to_start():
    objective = make_objective(ObjectiveSection(loss="multi-similarity"), dimension=4, classes=3)
    assert not objective.has_learned_proxies
    objective.start_proxies(torch.randn(3, 2, 4))


# ---------------------------------------------------------------- raw features and step 0


@pytest.fixture
def small():
    return build_embedder(ModelSection(backbone="conv4", size=16, dimension=8, freeze="all"), seed=0).eval()


def test_raw_features_share_the_backbone(small):
    raw = raw_features(small)
    assert raw.backbone is small.backbone
    assert raw.frozen_upto == small.frozen_upto
    assert raw.dimension == small.feature_size == 64
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(raw(x), small.pooled(x))


def test_a_head_is_made_anew_only_for_another_size(small):
    head = small.head
    resize_head(small, 8)
    assert small.head is head
    resize_head(small, 12)
    assert small.dimension == 12
    assert small.head.weight.shape == (12, 64)


def test_queries_without_a_partner_are_left_out():
    points = np.eye(5, 3, dtype=np.float32) + 0.1
    values, labels = per_query(points, np.array(["a", "a", "b", "c", "c"]), Sphere())
    assert labels == ["a", "a", "c", "c"]
    assert all(len(values[name]) == 4 for name in ("P@1", "MAP@R"))


def test_step_0_is_measured_where_there_is_something_to_find(small):
    rng = np.random.default_rng(0)
    tables = {64: rng.normal(size=(4, 64)).astype(np.float32), 8: rng.normal(size=(4, 8)).astype(np.float32)}
    start = measure_start(small, np.array(list("aabb")), lambda model: tables[model.dimension], pretrained=True)
    assert start.labels == list("aabb")
    assert start.first == per_query(tables[8], np.array(list("aabb")), Sphere())[0]
    assert start.raw == per_query(tables[64], np.array(list("aabb")), Sphere())[0]
    assert measure_start(small, np.array(list("aabb")), lambda m: tables[m.dimension], pretrained=False).raw is None
    assert measure_start(small, np.array(list("abcd")), lambda m: tables[m.dimension], pretrained=True) == RunStart()


# ---------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def pretrained(patterns, tiny, tmp_path_factory):
    """A backbone that knows something: that of a small run."""
    path = tmp_path_factory.mktemp("pretrained")
    recipe = load_recipe("contrastive", [*tiny, "training.max_steps=4", "training.seed=1"])
    run_training(patterns, recipe, path / "run", path)
    return path / "run"


@pytest.fixture(scope="module")
def settings(tiny, pretrained):
    """A run on cached features of that backbone; the head's size is chosen."""
    frozen = ["model.freeze=all", "model.cache=true", "model.dimension=auto", "training.lr=0.01"]
    return [*tiny, *frozen, f"model.weights={pretrained}"]


def run_training(dataset, recipe, path, cache, resume=False):
    return train(dataset, recipe, Run(path), source="patterns", cache_directory=cache, resume=resume, progress=False)


def rows_at(path, step):
    """What the log says of a step, all rows together."""
    return {name: value for row in Run(path).history() if row["step"] == step for name, value in row.items()}


@pytest.mark.parametrize("name", ["proxy-anchor", "multi-similarity"])
def test_a_run_begins_at_its_start_and_goes_on_from_it(name, patterns, settings, tmp_path, monkeypatch):
    recipe = load_recipe(name, settings)
    assert (recipe.model.head_start, recipe.model.dimension) == ("whitened", "auto")
    whole = run_training(patterns, recipe, tmp_path / "whole", tmp_path)
    start = RunStart.load(Run(tmp_path / "whole").start_file)
    assert start.head["kind"] == "whitened"
    # So few classes keep all that the backbone gives.
    assert whole.embedder.dimension == start.head["dimension"] == 64
    logged = rows_at(tmp_path / "whole", 0)
    assert logged["val_MAP@R"] == pytest.approx(np.mean(start.first["MAP@R"]), abs=1e-5)
    assert {name: logged[f"raw_{name}"] for name in start.raw} == pytest.approx(
        {name: np.mean(start.raw[name]) for name in ("P@1", "MAP@R")}
    )
    card = json.loads(Run(tmp_path / "whole").card_file.read_text())
    assert card["start"] == start.head
    assert card["gain"]["best_step"] == whole.state.best_step
    assert card["gain"] == json.loads(json.dumps(whole.gain.to_dict()))
    assert set(card["gain"]["values"]) == {"raw", "start", "best"}

    plain = Loop._step

    def interrupted(self, inputs, labels):
        if self.state.step + 1 == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, inputs, labels)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", interrupted)
        assert run_training(patterns, recipe, tmp_path / "stopped", tmp_path).interrupted
    # Whoever resumes does not compute the start again.
    monkeypatch.setattr("nearkin.training.start.fit_start", None)
    resumed = run_training(patterns, recipe, tmp_path / "stopped", tmp_path, resume=True)
    assert resumed.embedder.dimension == 64
    assert Run(tmp_path / "stopped").log_file.read_text() == Run(tmp_path / "whole").log_file.read_text()
    ours, theirs = (Run(tmp_path / one).model().state_dict() for one in ("whole", "stopped"))
    assert ours.keys() == theirs.keys()
    assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert resumed.gain == whole.gain


@pytest.mark.parametrize("text", [None, "{}", '{"head": null}'])
@pytest.mark.parametrize("change", ["model.dimension=auto", "model.dimension=64"])
def test_a_fitted_run_does_not_go_on_without_its_start(text, change, patterns, settings, tmp_path):
    recipe = load_recipe("contrastive", [*settings, change, "training.max_steps=2"])
    run_training(patterns, recipe, tmp_path / "run", tmp_path)
    file = Run(tmp_path / "run").start_file
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(RunError, match=r"start\.json is missing or damaged: ") as told:
        run_training(patterns, recipe, tmp_path / "run", tmp_path, resume=True)
    assert "\n" not in str(told.value)


def test_a_run_of_old_goes_on_without_a_start(patterns, settings, tmp_path):
    recipe = load_recipe("contrastive", [*settings, "model.head_start=random", "training.max_steps=2"])
    whole = run_training(patterns, recipe, tmp_path / "run", tmp_path)
    Run(tmp_path / "run").start_file.unlink()
    again = run_training(patterns, recipe, tmp_path / "run", tmp_path, resume=True)
    assert again.embedder.fingerprint() == whole.embedder.fingerprint()


def test_training_that_only_harms_gives_back_the_start(patterns, settings, tmp_path, monkeypatch):
    begun, falling = [], iter(range(100, 0, -1))
    plain = Loop._validate_start

    def keep(self, known):
        begun.append({name: value.clone() for name, value in self.embedder.state_dict().items()})
        plain(self, known)

    monkeypatch.setattr(Loop, "_validate_start", keep)
    monkeypatch.setattr(Loop, "_validation_values", lambda self, validate: {"val_MAP@R": next(falling) / 100})
    recipe = load_recipe("multi-similarity", [*settings, "training.lr=0.1"])
    result = run_training(patterns, recipe, tmp_path / "run", tmp_path)
    assert result.state.best_step == 0
    assert result.gain.differences["best - start"]["P@1"].points == 0
    saved = Run(tmp_path / "run").model().state_dict()
    assert [name for name, value in begun[0].items() if not torch.equal(saved[name], value)] == []
    tensors, _ = load_state(Run(tmp_path / "run").state_file)
    assert not torch.equal(tensors["embedder"]["head.weight"], begun[0]["head.weight"])


def test_a_run_from_scratch_keeps_its_random_head_and_counts_step_0(patterns, tiny, tmp_path):
    result = run_training(patterns, load_recipe("contrastive", tiny), tmp_path / "run", tmp_path)
    start = RunStart.load(Run(tmp_path / "run").start_file)
    assert start.head is None
    assert start.raw is None
    assert "start" not in result.embedder.card
    assert set(result.gain.values) == {"start", "best"}
    assert math.isfinite(rows_at(tmp_path / "run", 0)["val_MAP@R"])


@pytest.mark.parametrize("proxies", ["learned", "ema"])
def test_proxies_of_a_run_from_scratch_start_at_the_prototypes_of_its_untrained_network(
    proxies, patterns, tiny, tmp_path, monkeypatch
):
    begun = []
    plain = Loop.train

    def keep(self, **given):
        begun.append((self.objective.loss.class_vectors().detach().clone(), deepcopy(self.embedder)))
        return plain(self, **given)

    monkeypatch.setattr(Loop, "train", keep)
    changes = [f"objective.parameters.proxies={proxies}", "objective.proxy_start=prototypes", "training.max_steps=2"]
    recipe = load_recipe("normface", [*tiny, *changes])
    assert recipe.model.head_start == "random"
    run_training(patterns, recipe, tmp_path / "run", tmp_path)
    (vectors, embedder) = begun[0]
    items = patterns.select(resolve_split(patterns.manifest, recipe.data, recipe.training.seed).train)
    points = embedder.eval().encode(items, progress=False)
    labels = np.asarray(items.labels)
    means = np.stack([points[labels == name].mean(axis=0) for name in items.classes])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors.numpy(), means, atol=1e-4)


def test_without_a_head_the_convolution_takes_the_start(patterns, settings, tmp_path, monkeypatch):
    found = []

    def fit_and_keep(*arguments, **options):
        found.append(fit_start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr("nearkin.training.start.fit_start", fit_and_keep)
    local = ["model.dimension=null", "model.local_dimension=6", "model.cache=false"]
    still = ["training.lr=1e-12", "training.weight_decay=0"]
    result = run_training(patterns, load_recipe("contrastive", [*settings, *local, *still]), tmp_path / "run", tmp_path)
    (start,) = found
    assert start.weight.shape == (6, 64)
    torch.testing.assert_close(result.embedder.local.weight[:, :, 0, 0].detach(), start.weight)
    torch.testing.assert_close(result.embedder.local.bias.detach(), start.bias)
    head = RunStart.load(Run(tmp_path / "run").start_file).head
    assert "1x1 convolution" in head.pop("layer")
    assert {name: head[name] for name in head if not name.startswith("lr")} | {"layer": "head"} == start.to_dict()


def test_the_rate_is_lowered_for_few_classes_and_items(patterns, settings, tmp_path):
    more = ["training.lr=0.01", "training.lr_schedule=constant"]
    more += ["training.full_rate_classes=8", "training.full_rate_items=0"]
    result = run_training(patterns, load_recipe("multi-similarity", [*settings, *more]), tmp_path / "run", tmp_path)
    classes = len(result.embedder.card["classes"]["train"])
    assert classes < 8
    rates = {row["lr"] for row in Run(tmp_path / "run").history() if "lr" in row}
    assert list(rates) == pytest.approx([0.01 * (classes / 8) ** 2])
    assert result.embedder.card["start"]["lr"] == pytest.approx(0.01 * (classes / 8) ** 2)


@pytest.mark.parametrize(
    ("changes", "lowered"),
    [
        ([], True),
        (["model.freeze=block4"], True),  # the last one
        (["model.freeze=block3"], False),
        (["model.freeze=null"], False),
        (["model.head_start=random"], False),
    ],
)
def test_rates_are_lowered_only_behind_a_backbone_that_is_frozen(changes, lowered, patterns, settings, tmp_path):
    recipe = load_recipe("multi-similarity", [*settings, "model.cache=false", *changes])
    split = resolve_split(patterns.manifest, recipe.data, 0)
    setup = TrainingSetup(patterns, recipe, Run(tmp_path / "run"), split, Ranks(), "patterns", (), False, False)
    embedder = build_embedder(recipe.model, seed=0)
    items = len(split.train)
    expected = 0.01 * (items / 3000) ** 2 if lowered else 0.01
    assert setup.section(embedder).lr == pytest.approx(expected)
    rates = setup.rates(embedder)
    assert rates["lr"] == pytest.approx(expected)
    assert rates["lr_lowered_for"] == (f"{items} items" if lowered else "")


@pytest.mark.parametrize(
    "change",
    [
        "model.attention={score: additive}",
        "model.attention={score: average}",
        "model.pooling=gap+gmp",
        "model.pooling=gem",
        "model.pooling=gsp",
        "model.space=euclidean",
        "model.space=lipschitz-ball",
        "model.dimension=100",
    ],
)
@pytest.mark.parametrize("cache", [True, False])
def test_whatever_makes_the_features_raw_ones_and_a_start_are_measured(change, cache, patterns, settings, tmp_path):
    more = [change, f"model.cache={str(cache).lower()}", "training.max_steps=2"]
    more += ["model.pooling_parameters.prototypes=8"] if change.endswith("gsp") else []
    result = run_training(patterns, load_recipe("contrastive", [*settings, *more]), tmp_path / "run", tmp_path)
    assert set(result.gain.values) == {"raw", "start", "best"}
    learns = "attention={score: additive" in change or change.endswith(("gem", "gsp"))
    assert any("learn" in note for note in result.embedder.card["start"]["notes"]) == learns


def test_watched_clusters_of_a_chosen_dimension_can_be_resumed(patterns, settings, tmp_path):
    recipe = load_recipe("contrastive", [*settings, "training.cluster_items=3", "training.max_steps=4"])
    whole = run_training(patterns, recipe, tmp_path / "run", tmp_path)
    assert whole.embedder.dimension != 128
    again = run_training(patterns, recipe, tmp_path / "run", tmp_path, resume=True)
    assert again.state.step == whole.state.step


# ---------------------------------------------------------------- going on from a run


def test_a_finished_run_goes_on_with_another_schedule(patterns, tiny, tmp_path):
    """Head included, as it was: step 0 is what the first run kept, and a resumed run is the same run."""
    run_training(patterns, load_recipe("contrastive", [*tiny, "training.lr=0.02"]), tmp_path / "first", tmp_path)
    first = Run(tmp_path / "first").model()
    sets = [*tiny, "model.dimension=auto", f"model.start={tmp_path / 'first'}"]
    more = ["training.chance_constrained={proxies: 2, pool: 3, patience: 1}", "training.lr=0.001"]
    recipe = load_recipe("contrastive-ccp", [*sets, *more, "training.full_rate_items=0"])
    result = run_training(patterns, recipe, tmp_path / "second", tmp_path)
    best = first.card.validation
    assert {name: rows_at(tmp_path / "second", 0)[name] for name in best} == best
    assert result.embedder.dimension == first.dimension
    card = Run(tmp_path / "second").model().card
    assert card.started_from["file"] == str(tmp_path / "first" / "model.safetensors")
    assert "head" in card.started_from["parts"]
    assert card.started_from["classes"] == first.card.classes.train
    assert start_lines(card.start) == [
        f"The model goes on from {tmp_path / 'first'}, with its {first.dimension} dimensions."
    ]
    assert card.start["lr"] == 0.001  # the backbone learns too
    again = run_training(patterns, recipe, tmp_path / "second", tmp_path, resume=True)
    assert again.embedder.fingerprint() == result.embedder.fingerprint()


def test_a_run_that_goes_on_is_resumed_to_the_same_end(patterns, tiny, tmp_path, monkeypatch):
    run_training(patterns, load_recipe("contrastive", tiny), tmp_path / "first", tmp_path)
    recipe = load_recipe("proxy-anchor", [*tiny, f"model.start={tmp_path / 'first'}"])
    whole = run_training(patterns, recipe, tmp_path / "whole", tmp_path)
    plain = Loop._step

    def stopped(self, *arguments):
        if self.state.step + 1 == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        assert run_training(patterns, recipe, tmp_path / "cut", tmp_path).interrupted
    again = run_training(patterns, recipe, tmp_path / "cut", tmp_path, resume=True)
    assert again.embedder.fingerprint() == whole.embedder.fingerprint()
    assert Run(tmp_path / "cut").log_file.read_text() == Run(tmp_path / "whole").log_file.read_text()


def test_rows_of_a_trees_nodes_start_at_the_mean_points_of_the_classes_below():
    tree = Hierarchy.from_nested({"x": ["a", "b"], "y": {"z": ["c"], "w": ["d", "e"]}})
    section = ObjectiveSection(loss="hxe", parameters={"scores": "conditional"}, prefixes=[2])
    given = {"dimension": 4, "classes": 5, "class_names": tuple("abcde"), "hierarchy": tree}
    objective = make_objective(section, **given)
    assert objective.has_learned_proxies
    points = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    objective.start_proxies(points)
    for loss, size in ((objective.loss, 4), (objective.prefixes[0].loss, 2)):
        rows = loss.bank.weight.detach()
        for below in ([0, 1], [2, 3, 4], [0], [1], [2], [3], [4], [3, 4]):
            mean = Sphere().mean(Sphere().project(points[below][..., :size].flatten(0, 1)))
            assert any(np.allclose(row, mean, atol=1e-6) for row in rows)
    assert torch.isfinite(objective(points.flatten(0, 1), torch.arange(5).repeat_interleave(3)))
