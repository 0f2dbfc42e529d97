"""Recipes: inheritance, overrides, and errors that name the nearest valid key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import RecipeError, UnknownNameError
from nearkin.objectives import losses
from nearkin.recipe import Recipe, list_recipes, load_recipe, recipe_schema
from nearkin.training import Run


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_loads_and_says_what_it_is(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert len(list_recipes()[name]) > 10


def test_every_loss_has_a_recipe():
    used = {load_recipe(name).objective.loss for name in list_recipes()}
    assert used >= set(losses)


def test_resolved_recipe_reads_back_equal(tmp_path):
    recipe = load_recipe("triplet", ["training.lr=1e-4", "data.test_classes=[a, b]"])
    recipe.save(tmp_path / "again.yaml")
    assert load_recipe(tmp_path / "again.yaml") == recipe


@given(st.integers(1, 10**6), st.floats(1e-8, 1.0), st.integers(0, 2**31))
def test_overrides_land_where_they_point(steps, lr, seed):
    recipe = load_recipe("demo", [f"training.max_steps={steps}", f"training.lr={lr!r}", f"training.seed={seed}"])
    assert (recipe.training.max_steps, recipe.training.lr, recipe.training.seed) == (steps, lr, seed)


def test_scientific_notation_is_a_number_in_files_and_overrides(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: proxy-anchor\nobjective:\n  parameters: {margin: 2e-1}\n")
    assert load_recipe(path).objective.parameters["margin"] == 0.2
    assert load_recipe("proxy-anchor", ["training.lr=3e-5"]).training.lr == 3e-5


def test_a_child_with_another_loss_does_not_inherit_the_old_loss_parameters():
    recipe = load_recipe("proxy-anchor", ["objective.loss=triplet"])
    assert "alpha" not in recipe.objective.parameters


def test_files_extend_files_beside_them(tmp_path):
    (tmp_path / "parent.yaml").write_text("extends: base\ntraining: {max_steps: 7}\n")
    (tmp_path / "child.yaml").write_text("extends: parent.yaml\ntraining: {lr: 0.5}\n")
    recipe = load_recipe(tmp_path / "child.yaml")
    assert (recipe.training.max_steps, recipe.training.lr, recipe.name) == (7, 0.5, "child")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.max_step=3"], "max_steps"),
        (["trainning.lr=3"], "'training'"),
        (["model.poling=gap"], "pooling"),
        (["training.lr=-1"], r"training\.lr"),
        (["training.lr_schedule=cosin"], r"training\.lr_schedule"),
        (["training.lr"], r"training\.lr"),
        (["training.lr=[1"], "YAML"),
    ],
)
def test_wrong_overrides_say_what_to_change(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("proxy-anchor", overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.layer_decay=0"], r"training\.layer_decay"),
        (["training.layer_decay=0.8"], "freeze"),
        (["model.freeze=null", "model.cache=false", "training.layer_decay=0.8", "training.backbone_lr_factor=0"], "0"),
        (["training.betas=[0.9, 1.0]"], r"training\.betas"),
        (["training.optimizer=sgd", "training.betas=[0.5, 0.9]"], "sgd"),
        (["training.plateau_patience=2"], "lr_schedule"),
        (["training.step_every=9"], r"training\.lr_schedule to step,"),
        (["training.lr_schedule=constant", "training.step_factor=0.1"], "step or plateau"),
        (["training.step_factor=0.1", "training.lr_schedule=cosine"], "step or plateau"),
        (["training.optimizer=adamw", "training.momentum=0.5"], "sgd"),
        (["training.average_best=2", "training.evaluate_every=60", "training.max_steps=60"], "evaluate_every"),
        (["training.lr_schedule=plateau", "training.patience=4"], "patience"),
        (["training.lr_schedule=plateau", "training.step_factor=1"], "step_factor"),
        (["training.select=MAP"], "validation_metrics"),
        (["training.select=NMI"], "validation_metrics"),
        (["training.average_best=1"], r"training\.average_best"),
        (["training.gradient_accumulation=0"], r"training\.gradient_accumulation"),
        (["data.erase=0.5"], r"model\.cache"),
        (["data.rotation=5"], r"model\.cache"),
        (["data.colour=0.1"], r"model\.cache"),
        (["data.rotation=181"], r"data\.rotation"),
        (["model.drop_path=1"], r"model\.drop_path"),
        (["model.drop_path=0.1"], "frozen"),
    ],
)
def test_settings_of_fine_tuning_that_are_wrong_or_useless_are_refused(overrides, message):
    with pytest.raises(RecipeError, match=message) as refusal:
        load_recipe("proxy-anchor", overrides)
    assert len(str(refusal.value)) < 300


def test_another_schedule_or_optimiser_drops_what_the_old_one_used(tmp_path):
    section = load_recipe("plankton-triplet", ["training.lr_schedule=constant", "training.optimizer=adam"]).training
    assert (section.step_every, section.step_factor, section.momentum) == (500, 0.5, 0.9)


def test_a_run_with_settings_that_nothing_uses_is_still_read(tmp_path):
    load_recipe("proxy-anchor").save(tmp_path / "recipe.yaml")
    text = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(text.replace("step_every: 500", "step_every: 100"))
    with pytest.raises(RecipeError, match="step_every"):
        load_recipe(tmp_path / "recipe.yaml")
    assert Run(tmp_path).recipe().training.step_every == 100


def test_settings_of_fine_tuning_read_back_equal(tmp_path):
    sets = ["model.freeze=null", "model.cache=false", "training.layer_decay=0.8", "training.betas=[0.9, 0.98]"]
    sets += ["training.lr_schedule=plateau", "training.validation_metrics=[NMI]", "training.select=NMI"]
    sets += ["data.erase=0.2", "model.drop_path=0.1", "model.resize=256", "training.average_best=3"]
    recipe = load_recipe("proxy-anchor", sets)
    recipe.save(tmp_path / "again.yaml")
    assert load_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "mapping"),
        ("a: [1\n", "YAML"),
        ("extends: mine.yaml\n", "extends"),
        ("extends: [a, b]\n", "extends"),
    ],
)
def test_wrong_files_say_what_to_change(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(path)


def test_unknown_recipes_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="proxy-anchor"):
        load_recipe("proxyanchor")


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(RecipeError, match=r"none\.yaml"):
        load_recipe(tmp_path / "none.yaml")


def test_schema_describes_every_key():
    schema = recipe_schema()
    assert {"extends", "by_data", *Recipe.model_fields} == set(schema["properties"])
    for section in schema["$defs"].values():
        for name, key in section.get("properties", {}).items():
            assert key.get("description"), name
