"""The recipes of the thesis' protocol: the rows of its tables, their settings by data set, and a few steps of each."""

from __future__ import annotations

import re
from importlib import resources

import pytest
import yaml

from nearkin import fit
from nearkin.cli import main
from nearkin.data.catalogue import catalogue
from nearkin.errors import RecipeError, UnknownNameError
from nearkin.recipe import Recipe, list_recipes, load_recipe, settings_by_data

DATA = ("cub200", "cars196", "inshop", "sop")
FAIR = [name for name in list_recipes() if name.startswith("fair-")]
PROXIES = [name for name in FAIR if re.match("fair-(proxy|soft)", name)]
GSP = [name for name in FAIR if load_recipe(name).model.pooling == "gsp"]

# Gürbüz 2022, 3.3.2.1 and 5.3.4.1: (CUB, Cars, In-shop, SOP).
PUBLISHED = {
    ("fair-contrastive", "objective.parameters.pos_margin"): (0, 0.2652, 0.2858, 0.2858),
    ("fair-contrastive", "objective.parameters.neg_margin"): (0.3841, 0.5409, 0.5130, 0.5130),
    ("fair-contrastive-cosine", "objective.parameters.margin"): (0.5,) * 4,
    ("fair-contrastive-ccp", "objective.parameters.neg_margin"): (0.3841, 0.5409, 0.5130, 0.5130),
    ("fair-contrastive-ccp", "training.chance_constrained.proxies"): (8, 8, 4, 4),
    ("fair-contrastive-ccp", "training.chance_constrained.pool"): (12, 12, 7, 7),
    ("fair-contrastive-ccp", "training.chance_constrained.proximal"): (2e-4,) * 4,
    ("fair-contrastive-cosine-xbm", "training.cross_batch_memory.batches"): (25, 25, 400, 1400),
    ("fair-contrastive-cosine-xbm", "training.cross_batch_memory.warmup_steps"): (1000,) * 4,
    ("fair-triplet", "objective.parameters.margin"): (0.0961, 0.1190, 0.0451, 0.0451),
    ("fair-multi-similarity", "objective.parameters.alpha"): (2, 14.35, 8.49, 2),
    ("fair-multi-similarity", "objective.parameters.beta"): (40, 75.83, 57.38, 40),
    ("fair-multi-similarity", "objective.parameters.base"): (0.5, 0.66, 0.41, 0.5),
    ("fair-proxy-anchor", "objective.parameters.margin"): (0.1,) * 4,
    ("fair-proxy-anchor", "objective.parameters.alpha"): (32,) * 4,
    ("fair-proxy-anchor", "training.lr"): (1e-5, 1e-5, 1e-5, 5e-6),
    ("fair-proxy-nca++", "objective.parameters.temperature"): (0.1,) * 4,
    ("fair-proxy-nca++-gsp", "objective.parameters.temperature"): (0.11,) * 4,
    ("fair-soft-triple", "objective.parameters.scale"): (20, 17.69, 20, 100),
    ("fair-soft-triple", "objective.parameters.gamma"): (0.1, 19.18, 0.1, 47.9),
    ("fair-soft-triple", "objective.parameters.tau"): (0.2, 0.0669, 0.2, 0.2),
    ("fair-soft-triple", "objective.parameters.margin"): (0.01, 0.3588, 0.01, 0.3145),
    ("fair-contrastive-gsp", "model.pooling_parameters.prototypes"): (64, 64, 128, 128),
    ("fair-contrastive-gsp", "model.pooling_parameters.budget"): (0.3,) * 4,
    ("fair-contrastive-gsp", "model.pooling_parameters.sharpness"): (5,) * 4,
    ("fair-contrastive-zero-shot", "model.pooling_parameters.budget"): (1,) * 4,
    ("fair-contrastive-pooled", "model.pooling_parameters.budget"): (0.3,) * 4,
    ("fair-contrastive-ccp", "model.space"): ("lipschitz-ball",) * 4,
    ("fair-triplet-ccp", "model.space"): ("lipschitz-ball",) * 4,
    ("fair-multi-similarity-ccp", "model.space"): ("lipschitz-ball",) * 4,
    ("fair-contrastive-cosine-ccp", "model.space"): ("sphere",) * 4,
    ("conventional-contrastive-ccp", "training.lr"): (1e-5, 1e-4, 1e-4, 1e-4),
    ("conventional-contrastive-ccp", "training.plateau_patience"): (4,) * 4,
    ("conventional-contrastive-ccp", "training.patience"): (15, 15, 10, 10),
    ("conventional-contrastive-ccp", "training.evaluate_every"): (25, 25, 250, 250),
    ("conventional-contrastive-ccp", "training.select"): ("P@1",) * 4,
    ("conventional-contrastive-ccp", "model.dimension"): (512,) * 4,
    ("conventional-contrastive-ccp", "data.classes_per_batch"): (32,) * 4,
    ("conventional-contrastive-ccp", "objective.parameters.neg_margin"): (0.3841, 0.5409, 0.5130, 0.5130),
    ("conventional-contrastive-cosine-xbm-gsp+gmp", "model.pooling_parameters.prototypes"): (64, 64, 128, 128),
    ("fair-proxy-anchor-gsp", "model.pooling_parameters.sharpness"): (0.5,) * 4,
    ("fair-contrastive", "training.evaluate_every"): (25, 25, 250, 250),
    ("fair-contrastive", "training.patience"): (60,) * 4,
    ("fair-contrastive-gsp", "training.evaluate_every"): (100, 100, 1000, 1000),
    ("fair-contrastive-gsp", "training.patience"): (15, 15, 10, 10),
}


def at(recipe: Recipe, key: str):
    value = recipe.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize(("name", "key"), PUBLISHED)
def test_settings_are_those_of_the_thesis(name, key):
    assert tuple(at(load_recipe(name, data=data), key) for data in DATA) == PUBLISHED[name, key]


@pytest.mark.parametrize("name", FAIR)
@pytest.mark.parametrize("data", [None, *DATA])
def test_every_row_trains_the_whole_network_from_a_random_head_as_printed(name, data):
    recipe = load_recipe(name, data=data)
    model, training, section = recipe.model, recipe.training, recipe.data
    assert (model.freeze, model.cache, model.frozen_batch_norm, model.head_start) == (None, False, True, "random")
    assert (model.local_dimension if name in GSP else model.dimension) == 128
    assert (section.crop_scale, section.crop_ratio, section.flip) == ((0.16, 1.0), (3 / 4, 4 / 3), True)
    assert (training.optimizer, training.lr_schedule, training.weight_decay) == ("adam", "constant", 1e-4)
    assert (training.backbone_lr_factor, training.betas) == (1, (0.9, 0.99))
    assert (model.size, model.resize) == (227, 256)
    shape = (section.classes_per_batch, section.per_class)
    assert shape == ((32, 1) if name in PROXIES else (8, 4))
    warmed = (training.proxy_lr_factor, training.head_warmup_steps > 0)
    assert warmed == ((100, True) if name in PROXIES else (1, False))
    zero_shot = [(one.name, one.weight) for one in recipe.objective.regularisers]
    trained = name in GSP and name != "fair-contrastive-pooled"
    assert (recipe.objective.weight, zero_shot) == ((0.9, [("zero-shot", 0.1)]) if trained else (1, []))


@pytest.mark.parametrize(("data", "images"), list(zip(DATA, (5864, 8054, 25_882, 59_551), strict=True)))
def test_the_head_warms_up_for_an_epoch(data, images):
    assert load_recipe("fair-proxy-anchor", data=data).training.head_warmup_steps == round(0.75 * images / 32)


@pytest.fixture(scope="module")
def weights(patterns, tiny, tmp_path_factory):
    """A small backbone that knows something."""
    path = tmp_path_factory.mktemp("weights") / "run"
    fit(patterns, "contrastive", out=path, overrides=[*tiny, "training.max_steps=2"], progress=False)
    return f"model.weights={path}"


@pytest.mark.parametrize("name", [name for name in FAIR if name != "fair-base"])
def test_every_row_trains_a_few_steps(name, patterns, tiny, weights):
    proxies = []
    if name in PROXIES:
        proxies = ["data.classes_per_batch=5", "data.per_class=1", "training.head_warmup_steps=1"]
    pooled = (
        ["model.dimension=null", "model.local_dimension=16", "model.pooling_parameters.prototypes=8"]
        if name in GSP
        else []
    )
    memory = ["training.cross_batch_memory.warmup_steps=2"] if "xbm" in name else []
    short = ["training.max_steps=10", "training.evaluate_every=5", *proxies, *pooled, *memory]
    model = fit(patterns, name, overrides=[*tiny, weights, *short], progress=False)
    assert model.card.steps == 10
    assert model.dimension == 16


def test_data_without_settings_of_its_own_takes_those_of_cub():
    for name in FAIR:
        assert load_recipe(name) == load_recipe(name, data="cub200") == load_recipe(name, data="/home/me/photos")


def test_overrides_and_files_that_extend_come_after_the_settings_of_the_data(tmp_path):
    assert load_recipe("fair-triplet", ["objective.parameters.margin=0.3"], "sop").objective.parameters["margin"] == 0.3
    (tmp_path / "mine.yaml").write_text("extends: fair-triplet-ccp\nobjective: {parameters: {margin: 0.2}}\n")
    mine = load_recipe(tmp_path / "mine.yaml", data="sop")
    assert (mine.objective.parameters["margin"], mine.training.chance_constrained.pool) == (0.2, 7)
    (tmp_path / "other.yaml").write_text("extends: fair-contrastive\nobjective: {loss: triplet}\n")
    assert "pos_margin" not in load_recipe(tmp_path / "other.yaml", data="sop").objective.parameters


def test_a_file_has_settings_by_data_of_its_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: triplet\nby_data: {cars196: {training: {lr: 3e-5}}, default: {training: {lr: 2e-5}}}\n")
    assert [load_recipe(path, data=data).training.lr for data in ("cars196", "sop", None)] == [3e-5, 2e-5, 2e-5]
    assert settings_by_data(path) == {"cars196": {"training.lr": 3e-5}}


@pytest.mark.parametrize(
    ("given", "error", "word"),
    [
        ("contrastiv", UnknownNameError, "contrastive"),
        ("{cub20: {}}", UnknownNameError, "cub200"),
        ("3", RecipeError, "by_data"),
        ("{sop: 3}", RecipeError, "by_data"),
        ("{sop: {training: {lrr: 1}}}", RecipeError, "lr"),
    ],
)
def test_wrong_settings_by_data_say_what_to_change(given, error, word, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: triplet\nby_data: {given}\n")
    with pytest.raises(error, match=word):
        load_recipe(path, data="sop")


def test_every_published_table_is_of_the_catalogue_and_used():
    tables = yaml.safe_load((resources.files("nearkin.recipe") / "parameters.yaml").read_text())
    for table in tables.values():
        assert set(table) == {"default", *DATA}
        assert set(DATA) <= set(catalogue)
    names = [name for name in list_recipes() if name.startswith(("fair-", "conventional-"))]
    files = [(resources.files("nearkin.recipes") / f"{name}.yaml").read_text() for name in names]
    lines = [line for text in files for line in text.splitlines() if line.startswith("by_data")]
    assert set(tables) == {word for line in lines for word in re.findall(r"[\w-]+", line)} - {"by_data"}


def test_recipes_show_tells_what_depends_on_the_data(capsys, monkeypatch):
    def shown(*options):
        monkeypatch.setattr("sys.argv", ["nearkin", "recipes", "show", *options])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        return capsys.readouterr().out

    text = shown("fair-triplet")
    assert "# sop: objective.parameters.margin=0.0451" in text
    assert load_recipe("fair-triplet") == Recipe.model_validate(yaml.safe_load(text))
    assert yaml.safe_load(shown("fair-triplet", "--data", "sop"))["objective"]["parameters"]["margin"] == 0.0451
    assert "#" not in shown("triplet")
