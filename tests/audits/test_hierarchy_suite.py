"""The hierarchy suite: its numbers against the metrics, which items stand for classes, untrained views, pictures."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin as nk
from nearkin.audits import Subject, run_suites
from nearkin.audits.class_tree import InferredTree, distances_of_items, distances_of_proxies, references
from nearkin.audits.hierarchy import Untrained, hierarchy_suite
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError, NearkinError
from nearkin.metrics.hierarchy import (
    class_distance_matrix,
    class_prototypes,
    hierarchical_similarity,
    mean_correlation,
    ranking_metrics,
)
from nearkin.metrics.labels import halves
from nearkin.models.build import build_embedder
from nearkin.models.embedder import ClassScores
from nearkin.models.section import ModelSection
from nearkin.recipe import AuditSection
from nearkin.search import InnerProduct
from nearkin.spaces import Euclidean, Sphere

TREE = Hierarchy.from_nested(
    {"animals": {"fish": ["c0", "c1"], "birds": ["c2", "c3"]}, "plants": {"trees": ["c4", "c5"], "herbs": ["c6", "c7"]}}
)
LABELS = np.repeat([f"c{i}" for i in range(8)], 10)
QUICK = AuditSection(resamples=20, hierarchy_similarity_at=[5, 20])
CLASSES = tuple(sorted(set(LABELS)))


def clusters(noise, seed=0):
    """Points around centres that follow the tree."""
    rng = np.random.default_rng(seed)
    deep = [rng.normal(size=(2**level, 6)).repeat(8 // 2**level, axis=0) for level in (1, 2, 3)]
    centres = np.repeat(2 * deep[0] + deep[1] + 0.5 * deep[2], 10, axis=0)
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


def subject(**more):
    given = {"embeddings": clusters(1.0), "labels": LABELS, "space": Euclidean(), "hierarchy": TREE, **more}
    facts = {"classes": "8", "items": "80"}
    return Subject(
        given.pop("embeddings"), given.pop("labels"), given.pop("space"), progress=False, facts=facts, **given
    )


def expected(embeddings, space, how="path", diagonal=False, seed=0):
    """The suite's numbers by the metrics themselves, where half of each class is the reference."""
    known, asked = halves(LABELS, seed)
    prototypes = class_prototypes(embeddings[known], LABELS[known], space)
    distances = TREE.distances(CLASSES, how)
    scores = -space.distance(torch.from_numpy(embeddings[asked]), torch.from_numpy(prototypes.vectors)).numpy()
    truth = np.searchsorted(CLASSES, LABELS[asked])
    ranked = ranking_metrics(np.argsort(-scores, axis=1, kind="stable")[:, :5], truth, distances)
    learned = class_distance_matrix(prototypes.vectors, space)
    codes = np.searchsorted(CLASSES, LABELS)
    similar = hierarchical_similarity(embeddings, codes, distances, at=(5, 20), area=20, space=space)
    return {
        "MC, prototypes": mean_correlation(distances, learned, diagonal=diagonal).value,
        **ranked.values,
        **similar.values,
    }


@pytest.mark.parametrize(("how", "diagonal"), [("path", False), ("lcs", True)])
def test_its_numbers_are_those_of_the_metrics(how, diagonal):
    section = QUICK.model_copy(update={"tree_distance": how, "diagonal": diagonal})
    found = hierarchy_suite(subject(), section)
    assert found.values == pytest.approx(expected(clusters(1.0), Euclidean(), how, diagonal))
    assert list(found.values) == [
        "MC, prototypes", "top-1", "top-5", "AHD@1", "AHD@5", "HP@5", "severity", "HS@5", "HS@20", "AHS@20",
    ]  # fmt: skip
    assert found.lower_is_better == ("AHD@1", "AHD@5", "severity")
    assert set(found.numbers) == {"AHD@1", "AHD@5", "severity", "MC, prototypes"}
    assert json.loads(json.dumps(found.details))["hierarchy"]["tree distance"] == how


def test_means_over_items_have_intervals_and_means_of_classes():
    found = hierarchy_suite(subject(), QUICK)
    assert found.intervals.keys() == found.values.keys() - {"MC, prototypes"}
    for name, (low, high) in found.intervals.items():
        assert low <= found.values[name] <= high
    assert found.per_class.keys() == found.values.keys() - {"severity"}
    for name in ("top-1", "AHD@5", "HP@5", "HS@20"):
        assert list(found.per_class[name]) == list(CLASSES)
        assert np.mean(list(found.per_class[name].values())) == pytest.approx(found.values[name])
    z = np.arctanh(list(found.per_class["MC, prototypes"].values()))
    assert np.tanh(z.mean()) == pytest.approx(found.values["MC, prototypes"])


def test_the_baseline_has_its_own_prototypes_of_the_same_items():
    untrained = clusters(3.0, seed=4)
    found = hierarchy_suite(subject(baseline=untrained), QUICK)
    assert found.baseline == pytest.approx(expected(untrained, Sphere()))


def test_proxies_of_all_classes_are_measured_beside():
    vectors = clusters(0.0)[::10]
    names = CLASSES[::-1]
    found = hierarchy_suite(subject(proxies=(names, vectors[::-1])), QUICK)
    learned = class_distance_matrix(vectors, Euclidean())
    assert found.values["MC, proxies"] == pytest.approx(mean_correlation(TREE.distances(CLASSES), learned).value)
    _, asked = halves(LABELS, 0)
    points = torch.from_numpy(clusters(1.0)[asked])
    nearest = Euclidean().distance(points, torch.from_numpy(vectors)).argmin(dim=1).numpy()
    assert found.values["top-1, proxies"] == pytest.approx(np.mean(np.array(CLASSES)[nearest] == LABELS[asked]))
    assert {"AHD@1, proxies", "HP@5, proxies", "severity, proxies"} <= found.values.keys()
    assert "AHD@5, proxies" in found.lower_is_better
    assert "severity, proxies" in found.numbers


def test_proxies_of_other_classes_are_left_aside():
    found = hierarchy_suite(subject(proxies=(CLASSES[1:], clusters(0.0)[10::10])), QUICK)
    assert not [name for name in found.values if "proxies" in name]


def test_known_items_stand_for_classes_and_every_audited_item_is_asked():
    known = clusters(0.1, seed=7)
    found = hierarchy_suite(subject(known=lambda: (known, LABELS)), QUICK)
    prototypes = class_prototypes(known, LABELS, Euclidean())
    points = torch.from_numpy(clusters(1.0))
    nearest = Euclidean().distance(points, torch.from_numpy(prototypes.vectors)).argmin(dim=1).numpy()
    assert found.values["top-1"] == pytest.approx(np.mean(np.array(CLASSES)[nearest] == LABELS))
    assert (
        "80 items are given to the nearest of 8 prototypes, the means of 80 references (the items that were trained"
        in (found.notes[0])
    )


def test_a_published_gallery_stands_for_classes():
    gallery = np.arange(80) % 5 == 0
    found = references(subject(gallery=gallery), 0)
    assert found.rows.tolist() == np.flatnonzero(gallery).tolist()
    assert found.asked.tolist() == np.flatnonzero(~gallery).tolist()
    assert found.told == "the published gallery"


def test_items_of_classes_without_references_are_not_asked():
    gallery = (np.arange(80) % 5 == 0) & (LABELS != "c3")
    found = hierarchy_suite(subject(gallery=gallery), QUICK)
    assert any("references" in note for note in found.notes)
    assert "c3" not in found.per_class["top-1"]
    assert "c3" in found.per_class["HS@5"]


def test_labels_need_not_be_text():
    tree = Hierarchy.from_nested({"low": ["0", "1"], "high": ["2", "3"]})
    labels = np.repeat(np.arange(4), 20)
    found = hierarchy_suite(subject(labels=labels, hierarchy=tree), QUICK)
    assert list(found.per_class["top-1"]) == ["0", "1", "2", "3"]
    assert any("AHD@5" in note for note in found.notes)


def test_what_cannot_be_measured_is_left_out_with_a_note():
    flat = Hierarchy.from_nested(list(CLASSES))
    found = hierarchy_suite(subject(hierarchy=flat, embeddings=clusters(0.0)), AuditSection(resamples=5))
    assert "MC, prototypes" not in found.values
    assert "severity" not in found.values
    assert "HS@50" in found.values
    told = " ".join(found.notes)
    assert "MC, prototypes" in told
    assert "severity" in told
    assert "AHS@250" in told
    few = hierarchy_suite(subject(), AuditSection(resamples=5, hierarchy_similarity_at=[100, 250]))
    assert "HS@100" not in few.values
    assert any("79" in note for note in few.notes)


def test_the_first_note_and_the_details_say_which_tree_it_was():
    given = subject()
    given.facts["tree"] = "birds.nwk"
    found = hierarchy_suite(given, QUICK.model_copy(update={"tree_distance": "lcs"}))
    assert "birds.nwk" in found.notes[0]
    assert "lcs" in found.notes[0]
    assert found.details["hierarchy"]["tree name"] == "birds.nwk"
    diagonal = hierarchy_suite(subject(), QUICK.model_copy(update={"diagonal": True}))
    plain = hierarchy_suite(subject(), QUICK)
    assert "MC" in diagonal.notes[0]
    assert diagonal.notes[0] != plain.notes[0]


def test_a_precision_that_is_always_full_is_told():
    found = hierarchy_suite(subject(), QUICK)
    assert found.values["HP@5"] == 1.0
    assert any("HP@5" in note for note in found.notes)
    names = [f"c{i}" for i in range(8)]
    uneven = Hierarchy.from_nested({"many": names[:5], "few": names[5:]})
    other = hierarchy_suite(subject(hierarchy=uneven), QUICK)
    assert other.values["HP@5"] < 1.0
    assert not any("HP@5" in note for note in other.notes)


def test_classes_that_decide_or_leave_a_mean_correlation_are_told_in_whole_sentences():
    # On a line, the ends order the others as this tree does.
    places = np.array([0.0, 1.0, 3.0, 7.0], np.float32).repeat(20)[:, None]
    tree = Hierarchy.from_nested([[["a", "b"], "c"], "d"])
    labels = np.array(["a", "b", "c", "d"]).repeat(20)
    found = hierarchy_suite(subject(embeddings=places, labels=labels, hierarchy=tree), QUICK)
    rows = list(found.per_class["MC, prototypes"].values())
    full = sum(abs(row) > 1 - 1e-9 for row in rows)
    assert full > 1
    assert any(
        f"{full} of 4 classes agree fully with the tree (or oppose it) in MC, prototypes and decide the mean" in note
        for note in found.notes
    )
    star = Hierarchy.from_nested([["a", "b"], ["c", "d"], "e"])
    labels = np.array(["a", "b", "c", "d", "e"]).repeat(16)
    found = hierarchy_suite(subject(labels=labels, hierarchy=star), QUICK)
    assert any(
        "1 class is not in MC, prototypes, as all others are equally far from it" in note for note in found.notes
    )
    assert not any("decide" in note for note in hierarchy_suite(subject(embeddings=clusters(9.0)), QUICK).notes)


def test_a_row_that_is_not_finite_is_named_as_given():
    broken = clusters(1.0)
    broken[37, 2] = np.nan
    with pytest.raises(DataError, match="row 37"):
        nk.audit(broken, LABELS, suites=["hierarchy"], tree=TREE)
    with pytest.raises(DataError, match="row 37"):
        distances_of_items(subject(embeddings=broken), "prototypes")


def test_without_a_tree_or_a_mean_it_says_what_to_give():
    with pytest.raises(DataError, match="--tree"):
        hierarchy_suite(subject(hierarchy=None), QUICK)
    with pytest.raises(DataError, match="InnerProduct"):
        hierarchy_suite(subject(space=InnerProduct()), QUICK)
    with pytest.raises(DataError, match="c7"):
        hierarchy_suite(subject(hierarchy=TREE.restricted(CLASSES[:7])), QUICK)


def test_embeddings_of_your_own_are_audited_with_a_tree(tmp_path):
    file = tmp_path / "tree.nwk"
    file.write_text(TREE.to_newick())
    found = nk.audit(clusters(1.0), LABELS, suites=["hierarchy"], tree=file, overrides=["audit.resamples=5"])
    given = nk.audit(clusters(1.0), LABELS, suites=["hierarchy"], tree=TREE, overrides=["audit.resamples=5"])
    nested = nk.audit(
        clusters(1.0), LABELS, suites=["hierarchy"], tree=TREE.to_nested(), overrides=["audit.resamples=5"]
    )
    assert found.values == given.values == nested.values
    names = [result.details["hierarchy"]["tree name"] for result in (found, given, nested)]
    assert names == ["tree.nwk", "given in Python", "given in Python"]
    with pytest.raises(NearkinError, match="tree"):
        nk.audit(clusters(1.0), LABELS, suites=["hierarchy"])
    with pytest.raises(NearkinError, match="c4"):
        nk.audit(clusters(1.0), LABELS, suites=["hierarchy"], tree={"a": ["c0", "c1"], "b": ["c2", "c3"]})
    assert found.verdict().startswith(f"MC, prototypes {found['MC, prototypes']:.3f} over 8 classes and 80 items")
    with pytest.raises(NearkinError, match="hierarchy"):
        nk.audit(clusters(1.0), LABELS, tree=file)
    with pytest.raises(NearkinError, match=r"nowhere\.nwk"):
        nk.audit(clusters(1.0), LABELS, suites=["hierarchy"], tree="nowhere.nwk")
    with pytest.raises(NearkinError, match="tree_distance"):
        nk.audit(clusters(1.0), LABELS, suites=["hierarchy"], tree=file, overrides=["audit.tree_distance=far"])


@pytest.fixture(scope="module")
def untrained(patterns):
    section = ModelSection(backbone="conv4", pretrained=False, channels=3, size=16, dimension=8)
    return Untrained(build_embedder(section), patterns, lambda: None, progress=False)


def test_pixels_are_averaged_as_they_are_and_as_directions(untrained, patterns):
    rows = [np.array([0, 3]), np.array([9])]
    found = untrained.pixel_prototypes(rows)
    images = [
        np.stack([np.asarray(patterns.image(row).resize((32, 32)), np.float64).ravel() / 255 for row in part])
        for part in rows
    ]
    for place, part in enumerate(images):
        assert found["input space"][place] == pytest.approx(part.mean(axis=0), abs=1e-5)
        directions = part / np.linalg.norm(part, axis=1, keepdims=True)
        mean = directions.mean(axis=0) / np.linalg.norm(directions.mean(axis=0))
        assert found["normalised input space"][place] == pytest.approx(mean, abs=1e-4)


def test_a_random_network_depends_on_its_seed_and_not_on_the_model(untrained, patterns):
    first = untrained.random_network(np.arange(6), 0)
    section = ModelSection(backbone="conv4", pretrained=False, channels=3, size=16, dimension=8)
    other = Untrained(build_embedder(section, seed=5), patterns, lambda: None, progress=False)
    assert np.array_equal(first, other.random_network(np.arange(6), 0))
    assert not np.allclose(first, untrained.random_network(np.arange(6), 1))
    assert first.shape == (6, 8)


def test_untrained_views_are_correlated_with_the_tree(untrained, patterns):
    names = sorted(set(patterns.labels.tolist()))
    tree = Hierarchy.from_nested({"a": names[:3], "b": names[3:6], "c": names[6:]})
    embeddings = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    given = subject(embeddings=embeddings, labels=patterns.labels, hierarchy=tree, untrained=untrained)
    found = hierarchy_suite(given, QUICK.model_copy(update={"untrained_items": 2}))
    rows = references(given, 0).drawn(2, 0)
    assert [len(part) for part in rows] == [2] * 10
    assert all((patterns.labels[part] == name).all() for part, name in zip(rows, names, strict=True))
    means = untrained.pixel_prototypes(rows)["input space"]
    distances = tree.distances(names)
    assert found.values["MC, input space"] == pytest.approx(
        mean_correlation(distances, class_distance_matrix(means, Euclidean())).value
    )
    assert {"MC, normalised input space", "MC, random network"} <= found.values.keys()
    assert "MC, random network" in found.numbers
    assert any("references" in note for note in found.notes)
    none = hierarchy_suite(given, QUICK.model_copy(update={"untrained_items": 0}))
    assert not [name for name in none.values if "input" in name or "random" in name]


def test_a_seen_class_baseline_is_of_the_items_that_were_trained_on(untrained, patterns):
    features = clusters(0.3, seed=2)
    views = Untrained(untrained._embedder, patterns, lambda: features, progress=False)
    given = subject(known=lambda: (clusters(0.1), LABELS), baseline=clusters(0.3, seed=2), untrained=views)
    found = hierarchy_suite(given, QUICK.model_copy(update={"untrained_items": 0}))
    prototypes = class_prototypes(features, LABELS, Sphere())
    learned = class_distance_matrix(prototypes.vectors, Sphere())
    wanted = mean_correlation(TREE.distances(CLASSES), learned).value
    assert found.baseline["MC, prototypes"] == pytest.approx(wanted)


@pytest.mark.pixels
def test_pictures_show_known_beside_learned():
    given = subject(proxies=(CLASSES, clusters(0.0)[::10]))
    result = run_suites(given, QUICK, ["hierarchy"])
    distances, trees = (draw() for draw in result.drawings)
    assert distances.title == "Distances between classes"
    assert "Known tree" in trees.title
    assert all(Image.open(io.BytesIO(figure.png)).width == 1440 for figure in (distances, trees))


def test_the_order_of_items_and_classes_changes_nothing():
    order = np.random.default_rng(0).permutation(80)
    renamed = np.array([f"{9 - int(label[1])}-{label}" for label in LABELS])
    swapped = Hierarchy.from_newick(TREE.to_newick().replace("c", "@"))
    swapped = Hierarchy(swapped.parents, tuple(_renamed(name) for name in swapped.names))
    known = clusters(0.2, seed=3)
    first = hierarchy_suite(subject(known=lambda: (known, LABELS)), QUICK)
    second = hierarchy_suite(
        subject(
            embeddings=clusters(1.0)[order], labels=renamed[order], hierarchy=swapped, known=lambda: (known, renamed)
        ),
        QUICK,
    )
    assert second.values == pytest.approx(first.values)


def _renamed(name):
    return f"{9 - int(name[1])}-c{name[1]}" if name.startswith("@") else name


def test_a_tree_is_recovered_from_clear_prototypes_and_proxies():
    centres = np.hstack([np.repeat(4.0 / 2**k * np.eye(2**k), 8 // 2**k, axis=0) for k in (1, 2, 3)]).astype(np.float32)
    noise = np.random.default_rng(0).normal(0, 0.01, (80, 14)).astype(np.float32)
    given = subject(embeddings=centres.repeat(10, axis=0) + noise)
    for method in ("average", "neighbour-joining"):
        found = InferredTree.of(distances_of_items(given, "prototypes"), method, TREE)
        assert found.facts()["recovered groups"].startswith("6 of 6")
        assert found.facts()["Robinson-Foulds"].startswith("0 of 12")
        assert found.tree.clades() == TREE.clades()
    proxies = distances_of_proxies(CLASSES, centres, Euclidean())
    assert InferredTree.of(proxies, "average", None).tree.clades() == TREE.clades()
    assert "Robinson-Foulds" not in InferredTree.of(proxies, "average", None).facts()


def test_classes_are_near_that_are_taken_for_the_same():
    x = np.zeros((40, 1), np.float32)
    labels = np.repeat(["a", "b", "c", "d"], 10)
    x[labels == "b"] = 0.01
    x[labels == "c"] = 5
    x[labels == "d"] = 5.01
    x += np.random.default_rng(0).normal(0, 0.05, x.shape).astype(np.float32)
    found = distances_of_items(subject(embeddings=x, labels=labels), "confusions")
    near, far = found.values[[0, 2], [1, 3]], found.values[:2, 2:]
    assert near.max() < far.min()
    tree = Hierarchy.from_nested([["a", "b"], ["c", "d"]])
    assert InferredTree.of(found, "average", tree).facts()["recovered groups"].startswith("2 of 2")


def test_classes_with_nothing_to_ask_have_no_confusions():
    labels = LABELS.copy()
    labels[0] = "c7"
    labels[1:10] = "c1"  # no c0 is left; c7 has eleven
    labels[79] = "alone"
    tree = Hierarchy.from_nested([*CLASSES, "alone"])
    found = distances_of_items(subject(labels=labels, hierarchy=tree), "confusions")
    assert "alone" not in found.names
    assert found.values.shape == (len(found.names),) * 2
    with pytest.raises(DataError, match="classes"):
        distances_of_items(subject(embeddings=clusters(1.0)[:3], labels=np.array(["a", "a", "b"])), "confusions")


def test_the_losses_own_class_scores_are_measured_beside():
    weights = torch.randn(10, 6, generator=torch.Generator().manual_seed(0))
    names = ("x", *reversed(CLASSES), "y")  # more classes, in another order
    found = hierarchy_suite(subject(class_scores=ClassScores(names, lambda points: points @ weights.T)), QUICK)
    _, asked = halves(LABELS, 0)
    scores = clusters(1.0)[asked] @ weights.numpy().T[:, [names.index(name) for name in CLASSES]]
    truth = np.searchsorted(CLASSES, LABELS[asked])
    wanted = ranking_metrics(np.argsort(-scores, axis=1, kind="stable")[:, :5], truth, TREE.distances(CLASSES))
    told = {name: value for name, value in found.values.items() if name.endswith(", class scores")}
    assert told == pytest.approx({f"{name}, class scores": value for name, value in wanted.values.items()})
    assert any("loss itself" in note for note in found.notes)
    fewer = hierarchy_suite(subject(class_scores=ClassScores(CLASSES[1:], lambda points: points[:, :7])), QUICK)
    assert not any("class scores" in name for name in fewer.values)


def test_mean_correlations_of_some_classes():
    wanted = ["c0", "c1", "c2", "c3", "c7"]
    found = hierarchy_suite(subject(), QUICK.model_copy(update={"correlation_classes": wanted}))
    known, _ = halves(LABELS, 0)
    learned = class_distance_matrix(
        class_prototypes(clusters(1.0)[known], LABELS[known], Euclidean()).vectors, Euclidean()
    )
    places = np.ix_([0, 1, 2, 3, 7], [0, 1, 2, 3, 7])
    expected_value = mean_correlation(TREE.distances(CLASSES)[places], learned[places]).value
    assert found.values["MC of 5 classes, prototypes"] == pytest.approx(expected_value)
    assert found.values["MC, prototypes"] != pytest.approx(expected_value)
    assert "MC of 5 classes, prototypes" in found.numbers
    assert set(found.per_class["MC of 5 classes, prototypes"]) <= set(wanted)
    with pytest.raises(DataError, match="correlation_classes"):
        hierarchy_suite(subject(), QUICK.model_copy(update={"correlation_classes": ["c0", "c1", "z"]}))
