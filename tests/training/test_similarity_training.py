"""A learned similarity in training: what is refused, and what a finished run can do."""

import numpy as np
import pytest
import torch

from nearkin.errors import ModelError, RecipeError
from nearkin.metrics import retrieval_metrics
from nearkin.models import LearnedSpace, SimilarityModel
from nearkin.recipe import load_recipe
from nearkin.training import Run, train
from nearkin.training.fit import make_learner


@pytest.mark.parametrize(
    ("base", "changes", "word"),
    [
        ("triplet", ["model.similarity={}"], "triplet"),
        ("learned-similarity", ["model.similarity=null"], r"model\.similarity"),
        ("learned-similarity", ["training.ema=0.9"], r"training\.ema"),
        ("learned-similarity", ["data.per_class=1"], r"data\.per_class"),
        ("triplet", ["model.space_parameters={radius: 8}"], "radius"),
        ("learned-similarity", ["model.similarity={form: difference, symmetric: max}"], "symmetric"),
    ],
)
def test_refusals(base, changes, word):
    recipe = load_recipe(base, ["model.backbone=lenet", "model.pretrained=false", "model.freeze=null",
                                "model.cache=false"])  # fmt: skip
    with pytest.raises((RecipeError, ModelError), match=word):
        make_learner(load_recipe(recipe, changes), "image", 4, validated=True)


def test_without_the_auxiliary_loss_there_is_no_dense_layer():
    settings = ["model.backbone=lenet", "model.pretrained=false", "model.freeze=null", "model.cache=false"]
    recipe = load_recipe("learned-similarity", [*settings, "objective.parameters.auxiliary_weight=0"])
    model, objective, _ = make_learner(recipe, "image", 4, validated=True, class_names=list("abcd"))
    assert isinstance(model, SimilarityModel)
    assert model.dense is None
    assert model.classes == tuple("abcd")
    assert objective.proxies() == []


def test_a_model_without_learned_similarity_keeps_the_weights_it_began_with():
    settings = ["model.backbone=lenet", "model.pretrained=false", "model.freeze=null", "model.cache=false"]
    plain = make_learner(load_recipe("softmax", settings), "image", 4, validated=True)[0]
    learned = make_learner(load_recipe("learned-similarity", settings), "image", 4, validated=True)[0]
    for name, value in plain.state_dict().items():
        assert torch.equal(learned.state_dict()[name], value), "both methods begin with the same encoder"


def test_a_run_keeps_prototypes_that_have_moved(tmp_path, patterns, tiny):
    recipe = load_recipe("learned-similarity", [*tiny, "data.split=items", "training.max_steps=40"])
    run = Run(tmp_path / "run")
    result = train(patterns, recipe, run, source="patterns", cache_directory=tmp_path, progress=False)
    model = Run(tmp_path / "run").model()
    assert isinstance(model, SimilarityModel)
    assert model.classes == tuple(result.embedder.classes)
    torch.testing.assert_close(model.prototypes.points, result.embedder.prototypes.points, rtol=0, atol=0)
    start = make_learner(recipe, "image", len(model.classes), validated=True, class_names=model.classes)[0]
    assert (model.prototypes.points - start.prototypes.points).abs().amin(dim=1).max() > 0
    log = Run(tmp_path / "run").history()
    assert {"class_loss", "pair_loss", "auxiliary_loss", "val_accuracy"} <= set().union(*log)


@pytest.mark.parametrize("form", ["concatenation", "difference"])
def test_a_run_on_unseen_classes_says_which_score_found_more(tmp_path, patterns, tiny, form):
    recipe = load_recipe("learned-similarity", [*tiny, "training.max_steps=2", f"model.similarity.form={form}"])
    result = train(patterns, recipe, Run(tmp_path / "run"), source="patterns", cache_directory=tmp_path, progress=False)
    model = Run(tmp_path / "run").model()
    told = model.card.compared
    assert told == result.embedder.card.compared
    items = np.flatnonzero(np.isin(patterns.labels, model.card.classes.val))
    asked = patterns.select(items)
    points = model.encode(asked, progress=False)
    for name, value in told["MAP@R"].items():
        space = "cosine" if name == "cosine" else LearnedSpace(model.base, model.network, name)
        expected = retrieval_metrics(points, asked.labels, metrics=["MAP@R"], space=space).values["MAP@R"]
        assert value == pytest.approx(expected, abs=1e-6)
    assert told["MAP@R"][told["best"]] == max(told["MAP@R"].values())


def test_seen_classes_say_nothing_of_unseen_ones(tmp_path, patterns, tiny):
    recipe = load_recipe("learned-similarity", [*tiny, "data.split=items", "training.max_steps=2"])
    train(patterns, recipe, Run(tmp_path / "run"), source="patterns", cache_directory=tmp_path, progress=False)
    assert Run(tmp_path / "run").model().card.compared is None
