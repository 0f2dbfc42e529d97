"""The pooling suite: a tiny model end to end, what it looks at, its numbers, pictures, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.audits import Subject, pooling_suite, run_suites
from nearkin.audits.pooling_suite import LocalEncoder, sample_items
from nearkin.errors import DataError
from nearkin.metrics.local_features import check_bound, class_histograms, shared_mass
from nearkin.models import ModelSection, build_embedder
from nearkin.recipe import AuditSection
from nearkin.spaces import covering_radius, kcenter

QUICK = AuditSection(pooling_classes=4, pooling_items=3, pooling_prototypes=6)
TITLES = [
    "Local features and prototypes",
    "Hulls of classes",
    "Average pooling of single images",
    "Where the model looks",
]


def model(**options):
    return build_embedder(
        ModelSection(**{"backbone": "conv4", "channels": 3, "size": 32, "dimension": 8, **options})
    ).eval()


def subject(embedder, dataset):
    embeddings = embedder.encode(dataset, progress=False)
    return Subject(
        embeddings, dataset.labels, embedder.space, local=LocalEncoder(embedder, dataset), own_data=True, progress=False
    )


def test_it_samples_items_of_some_classes_by_a_seed():
    labels = np.repeat(["a", "b", "c", "d", "e"], [9, 1, 5, 7, 3])
    rows = sample_items(labels, 3, 4, seed=0)
    assert rows.tolist() == sorted(set(rows.tolist()))
    names, counts = np.unique(labels[rows], return_counts=True)
    assert len(names) == 3
    assert all(count == min(4, (labels == name).sum()) for name, count in zip(names, counts, strict=True))
    assert sample_items(labels, 3, 4, seed=0).tolist() == rows.tolist()
    assert len({tuple(sample_items(labels, 3, 4, seed)) for seed in range(20)}) > 10
    assert sample_items(labels, 99, 99, seed=0).tolist() == list(range(25))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dimension": None},
        {"local_dimension": 5},
        {"local_dimension": 5, "dimension": None},
        {"space": "euclidean"},
    ],
)
def test_the_mean_of_the_local_features_is_the_embedding_of_average_pooling(patterns, options):
    embedder = model(**options)
    encoder = LocalEncoder(embedder, patterns)
    rows = np.array([3, 70, 11])
    local = encoder(rows)
    assert encoder.in_coordinates
    assert (encoder.pooling, local.attributes) == ("gap", None)
    assert local.features.shape == (3, local.grid[0] * local.grid[1], embedder.dimension)
    pooled = embedder.space.project(local.features.mean(dim=1))
    np.testing.assert_allclose(pooled, embedder.encode(patterns.select(rows), progress=False), atol=1e-5)


def test_positions_come_row_by_row(patterns):
    embedder = model(dimension=None)
    local = LocalEncoder(embedder, patterns)(np.array([5]))
    sample = torch.from_numpy(np.array(LocalEncoder(embedder, patterns).view(5))).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        maps = embedder.local_features(embedder.normalise(sample))
    height, width = local.grid
    assert maps.shape[2:] == (height, width)
    np.testing.assert_allclose(local.features[0, width + 0], maps[0, :, 1, 0], atol=1e-4)
    np.testing.assert_allclose(local.features[0, 1], maps[0, :, 0, 1], atol=1e-4)


def test_blocks_of_items_change_nothing(patterns, monkeypatch):
    encoder = LocalEncoder(model(pooling="gsp"), patterns)
    rows = np.arange(10)
    whole = encoder(rows)
    monkeypatch.setattr("nearkin.audits.pooling_suite._ITEMS", 3)
    blocks = encoder(rows)
    np.testing.assert_allclose(whole.features, blocks.features, atol=1e-5)
    np.testing.assert_allclose(whole.attributes, blocks.attributes, atol=1e-5)


def test_its_numbers_are_those_of_the_scaled_local_features(patterns):
    given = subject(model(), patterns)
    result = run_suites(given, QUICK, ["pooling"])
    rows = sample_items(patterns.labels, 4, 3, 0)
    x = given.local(rows).features
    x = x / x.norm(dim=2).max()
    flat = x.reshape(1, -1, x.shape[2])
    prototypes = flat[0, kcenter(flat, 6)[0]]
    bound = check_bound(x, prototypes)
    assert result["covering radius"] == pytest.approx(float(covering_radius(flat, prototypes[None])), rel=1e-5)
    assert result["|PCC - GAP|, mean"] == pytest.approx(float(bound.error.mean()), rel=1e-5)
    assert result["|PCC - GAP|, largest"] == pytest.approx(float(bound.error.max()), rel=1e-5)
    assert result["images within the bound"] == 1.0
    assert 0 < result["|PCC - GAP|, largest"] <= result["covering radius"] <= 2.0
    _, codes = np.unique(patterns.labels[rows], return_inverse=True)
    histograms = class_histograms(bound.histogram, torch.from_numpy(codes))
    active = histograms > 0.005
    assert result["active prototypes, mean of classes"] == float(active.sum(dim=1).double().mean())
    several = (active.sum(dim=0) > 1).sum() / active.any(dim=0).sum()
    assert result["active prototypes, in several classes"] == pytest.approx(float(several))
    pairs = [float(shared_mass(histograms)[i, j]) for i in range(4) for j in range(i)]
    assert result["class overlap, shared mass"] == pytest.approx(np.mean(pairs))
    assert "class overlap, hulls" not in result
    assert result.details["pooling"]["active prototypes"] == active.sum(dim=1).tolist()
    json.dumps(result.to_dict())


def test_it_says_what_it_looked_at(patterns):
    (note,) = run_suites(subject(model(pooling="gmp"), patterns), QUICK, ["pooling"]).notes
    assert "12" in note
    assert "2 x 2" in note
    assert "prototypes" in note
    assert "gmp" in note


def test_two_dimensions_have_hulls_that_overlap(patterns):
    result = run_suites(subject(model(dimension=2), patterns), QUICK, ["pooling"])
    assert 0.0 <= result["class overlap, hulls"] <= 1.0
    assert np.shape(result.details["pooling"]["hulls"]) == (4, 4)
    assert "class overlap, hulls" in result.lower_is_better


def test_a_pooling_of_another_size_is_looked_at_before_the_head(patterns):
    given = subject(model(pooling="netvlad", pooling_parameters={"clusters": 3}), patterns)
    assert not given.local.through_head
    result = run_suites(given, QUICK, ["pooling"])
    assert "head" in result.notes[0]
    assert result["images within the bound"] == 1.0


@pytest.mark.parametrize(
    ("pooling", "parameters"),
    [("netvlad", {"clusters": 4, "dimension": 16}), ("ot", {"references": 4, "dimension": 16})],
)
@pytest.mark.parametrize("dimension", [8, None])
def test_an_equal_size_does_not_make_equal_coordinates(patterns, pooling, parameters, dimension):
    embedder = model(pooling=pooling, pooling_parameters=parameters, local_dimension=64, dimension=dimension)
    encoder = LocalEncoder(embedder, patterns)
    assert embedder.pooling.channels == embedder.pooling.out_channels == 64
    assert (encoder.through_head, encoder.in_coordinates) == (False, False)
    assert encoder(np.array([0])).features.shape[2] == 64


@pytest.mark.parametrize("fusion", ["concatenate", "sum"])
@pytest.mark.parametrize("dimension", [8, None])
def test_with_attention_the_last_map_is_looked_at_before_all_of_it(patterns, fusion, dimension):
    embedder = model(dimension=dimension, attention={"fusion": fusion})
    given = subject(embedder, patterns)
    assert (given.local.through_head, given.local.in_coordinates) == (False, False)
    rows = np.array([3, 70])
    local = given.local(rows)
    samples = np.stack([np.asarray(given.local.view(row)) for row in rows])
    with torch.no_grad():
        x = embedder.normalise(torch.from_numpy(samples).permute(0, 3, 1, 2) / 255)
        expected = embedder.local_features(x).flatten(2).transpose(1, 2)
    np.testing.assert_allclose(local.features, expected, atol=1e-4)
    result = run_suites(given, QUICK, ["pooling"])
    assert "attention" in result.notes[0]
    assert result["images within the bound"] == 1.0


def test_the_suite_shows_where_attention_looks(patterns):
    embedder = model(attention={"stages": ["block2", "block3"]})
    torch.nn.init.normal_(embedder.attention.scores["block2"].score.weight, generator=torch.Generator().manual_seed(0))
    figure = run_suites(subject(embedder, patterns), QUICK, ["pooling"]).drawings[-1]()
    assert figure.title == TITLES[-1]
    assert figure.png.startswith(b"\x89PNG")
    assert "the attention of block2, block3" in figure.caption


def test_attributes_are_transferred_with_attention_too(patterns):
    given = subject(model(pooling="gsp", attention={}), patterns)
    result = run_suites(given, AuditSection(pooling_classes=6, pooling_items=4, pooling_prototypes=6), ["pooling"])
    assert any(name.startswith("attribute transfer") for name in result.values)


def test_attributes_are_transferred_where_the_pooling_gives_some(patterns):
    from nearkin.metrics.local_features import attribute_transfer

    given = subject(model(pooling="gsp", local_dimension=8, dimension=None), patterns)
    section = AuditSection(pooling_classes=6, pooling_items=4, pooling_prototypes=6)
    result = run_suites(given, section, ["pooling"])
    rows = sample_items(patterns.labels, 6, 4, 0)
    expected = attribute_transfer(given.local(rows).attributes, given.embeddings[rows], patterns.labels[rows])
    assert expected.values.items() <= result.values.items()
    assert not any("attribute" in name for name in result.intervals)
    low, high = expected.intervals["attribute transfer, l2"]
    assert "1,000" in result.notes[-1]
    assert f"l2 {100 * low:.1f} to {100 * high:.1f} %" in result.notes[-1]
    few = run_suites(given, AuditSection(pooling_classes=3), ["pooling"])
    assert not any("attribute" in name for name in few)
    assert "attributes" in few.notes[-1]


def test_the_report_shows_all_pictures(patterns, tmp_path):
    result = run_suites(subject(model(), patterns), QUICK, ["pooling"])
    page = result.report(tmp_path / "audit.html").read_text("utf-8")
    assert all(f"<h2>{title}" in page for title in TITLES)


@pytest.mark.parametrize(("dimension", "flat"), [(2, True), (3, False)])
def test_captions_tell_which_plane_is_shown(patterns, monkeypatch, dimension, flat):
    for name in ("draw_prototypes", "draw_class_hulls", "draw_pooled"):
        monkeypatch.setattr(pooling_suite, name, lambda *_: b"png")
    result = run_suites(subject(model(dimension=dimension), patterns), QUICK, ["pooling"])
    figures = [draw() for draw in result.drawings[:3]]
    assert [figure.title for figure in figures] == TITLES[:3]
    plane = "plane is that of the largest variance of the local features, which have 3 dimensions"
    assert all((plane in figure.caption) != flat for figure in figures)


def test_the_caption_of_the_hulls_says_how_far_images_may_lie_from_them(patterns):
    result = run_suites(subject(model(), patterns), QUICK, ["pooling"])
    caption = result.drawings[1]().caption
    assert f"at most the covering radius, {result['covering radius']:.3f}" in caption
    assert "at most 0.5 % of its features are dropped" in caption
    assert "in many dimensions, hulls tell little" in caption


def test_patches_are_of_the_features_nearest_to_the_commonest_prototypes(patterns, monkeypatch):
    seen = []
    monkeypatch.setattr(pooling_suite, "draw_prototypes", lambda *given: seen.append(given) or b"png")
    given = subject(model(), patterns)
    run_suites(given, QUICK, ["pooling"]).drawings[0]()
    ((view, patches),) = seen
    mass = np.bincount(view.nearest.ravel(), minlength=6)
    assert list(patches) == np.argsort(-mass, kind="stable").tolist()
    for prototype, images in patches.items():
        holders = (view.nearest == prototype).any(axis=1).sum()
        assert len(images) == min(5, holders)


def test_a_patch_lies_around_its_position():
    from PIL import Image

    pixels = np.zeros((70, 70, 3), dtype=np.uint8)
    pixels[30:40, 40:50] = 255  # row 3, column 4 of 7 x 7
    part = pooling_suite._part(Image.fromarray(pixels), 3 * 7 + 4, (7, 7))
    assert part.size == (25, 25)
    found = np.argwhere(np.asarray(part)[:, :, 0])
    np.testing.assert_allclose(found.mean(axis=0), 12, atol=1)
    corner = pooling_suite._part(Image.fromarray(pixels), 0, (7, 7))
    assert corner.size == (25, 25)
    assert pooling_suite._part(Image.fromarray(pixels), 0, (1, 1)).size == (70, 70)


def test_items_that_would_not_fit_into_memory_are_fewer(patterns, monkeypatch):
    given = subject(model(), patterns)
    each = given.local(np.array([0])).features.numel()
    monkeypatch.setattr(pooling_suite, "_MOST_VALUES", 8 * each)
    result = run_suites(given, QUICK, ["pooling"])
    assert "8 items" in result.notes[0]
    assert "2 items" in result.notes[1]


def test_memory_is_shared_by_the_classes_that_there_are(patterns, monkeypatch):
    given = subject(model(), patterns)
    each = given.local(np.array([0])).features.numel()
    monkeypatch.setattr(pooling_suite, "_MOST_VALUES", 40 * each)
    many = AuditSection(pooling_classes=1000, pooling_items=64, pooling_prototypes=6)
    result = run_suites(given, many, ["pooling"])
    assert "40" in result.notes[0]
    assert "4 items" in result.notes[1]
    monkeypatch.setattr(pooling_suite, "_MOST_VALUES", 7 * each)
    result = run_suites(given, many, ["pooling"])
    assert "7 items" in result.notes[0]
    assert "memory" in result.notes[1]


def test_prototypes_are_a_quarter_of_the_features_at_the_most(patterns):
    section = AuditSection(pooling_classes=2, pooling_items=2)
    result = run_suites(subject(model(), patterns), section, ["pooling"])
    assert "prototypes" in result.notes[0]
    assert "48" in result.notes[1]
    assert result["covering radius"] > 0.0


def test_features_that_are_all_alike_are_measured(patterns):
    embedder = model()
    with torch.no_grad():
        embedder.head.weight.zero_()
        embedder.head.bias.zero_()
    given = Subject(
        np.random.default_rng(0).normal(size=(80, 8)).astype(np.float32),
        patterns.labels,
        embedder.space,
        local=LocalEncoder(embedder, patterns),
        progress=False,
    )
    result = run_suites(given, QUICK, ["pooling"])
    assert result["covering radius"] == 0.0
    assert result["class overlap, shared mass"] == 1.0


def test_a_model_that_gives_no_numbers_is_told(patterns):
    embedder = model()
    given = subject(embedder, patterns)
    with torch.no_grad():
        embedder.head.bias.fill_(torch.nan)
    with pytest.raises(DataError, match="NaN"):
        run_suites(given, QUICK, ["pooling"])


def test_embeddings_have_no_local_features():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="model"):
        nk.audit(rng.normal(size=(20, 4)), np.repeat(list("abcde"), 4), suites=["pooling"])


def test_an_audit_of_a_model_can_ask_for_it(photos, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    result = nk.audit(
        model(size=16),
        photos,
        suites=["pooling"],
        overrides=["audit.pooling_items=2", "audit.pooling_prototypes=5"],
        progress=False,
    )
    assert result["images within the bound"] == 1.0
    assert "16" in result.notes[0]
    assert result.verdict() == ""


def test_sounds_have_pictures_without_images(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / name).mkdir()
        for item in range(2):
            soundfile.write(tmp_path / name / f"{item}.wav", rng.uniform(-0.5, 0.5, 4800), 16000)
    dataset = nk.data.open_data(tmp_path, progress=False)
    section = ModelSection(backbone="tdnn", pretrained=False, dimension=8, pooling="stats")
    embedder = build_embedder(section, audio_seconds=0.2).eval()
    result = run_suites(subject(embedder, dataset), QUICK, ["pooling"])
    assert result["images within the bound"] == 1.0
    assert [bool(draw().png) for draw in result.drawings] == [True, True, True, False]
