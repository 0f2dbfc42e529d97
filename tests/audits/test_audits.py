"""Audits: unseen classes only, intervals, baselines, and embeddings people bring."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import nearkin as nk
from nearkin.audits import Subject, unseen_items
from nearkin.errors import DataError, ModelError, UnknownNameError
from nearkin.metrics import class_bootstrap, retrieval_metrics
from nearkin.models.card import Card
from nearkin.spaces import Sphere


@pytest.fixture
def clusters():
    rng = np.random.default_rng(0)
    labels = np.repeat([f"c{i}" for i in range(12)], 10)
    centres = rng.normal(size=(12, 8))
    return (np.repeat(centres, 10, axis=0) + 0.4 * rng.normal(size=(120, 8))).astype(np.float32), labels


def test_embeddings_of_ones_own(clusters, tmp_path):
    vectors, labels = clusters
    result = nk.audit(vectors, labels)
    expected = retrieval_metrics(vectors, labels)
    assert result["MAP@R"] == expected.values["MAP@R"]
    assert result.intervals["MAP@R"] == class_bootstrap(expected.per_query["MAP@R"], labels)
    low, high = result.intervals["MAP@R"]
    assert low < result["MAP@R"] < high
    assert {"P@1", "R-precision", "MRR", "Recall@4", "kNN-Acc", "NMI", "AMI"} <= set(result)
    page = result.report(tmp_path / "audit.html").read_text()
    assert page.count("data:image/png") == 2
    json.dumps(result.to_dict())


def test_suites_can_be_chosen_and_misspelt_ones_are_suggested(clusters):
    assert set(nk.audit(*clusters, suites=["clustering"])) == {"NMI", "AMI", "F1"}
    with pytest.raises(UnknownNameError, match="clustering"):
        nk.audit(*clusters, suites=["clusterin"])


def test_mismatched_or_hopeless_input_is_refused(clusters):
    vectors, labels = clusters
    with pytest.raises(DataError, match="labels"):
        nk.audit(vectors, labels[1:])
    with pytest.raises(DataError, match="two"):
        nk.audit(vectors, np.arange(120))
    with pytest.raises(DataError, match="classes"):
        nk.audit(vectors, np.zeros(120))
    for collapsed in (np.zeros_like(vectors), np.full_like(vectors, 3.0)):
        with pytest.raises(DataError, match="identical"):
            nk.audit(collapsed, labels)
    with pytest.raises(DataError):
        nk.audit(np.full_like(vectors, np.nan), labels)
    with pytest.raises(DataError, match="numbers"):
        nk.audit([["a", "b"]], ["x"])


def test_a_few_zero_vectors_are_fine(clusters):
    vectors, labels = clusters
    vectors[::40] = 0
    assert 0 < nk.audit(vectors, labels)["MAP@R"] < 1


@pytest.mark.parametrize(
    ("train", "test", "expected", "note"),
    [
        (["class00", "class01"], ["class02"], {"class02"}, None),
        (["class00", "class01"], [], {f"class{i:02d}" for i in range(2, 10)}, "2"),
        ([f"class{i:02d}" for i in range(10)], [], {f"class{i:02d}" for i in range(10)}, "train"),
        (["elsewhere"], [], {f"class{i:02d}" for i in range(10)}, None),
    ],
)
def test_only_unseen_classes_are_audited(patterns, train, test, expected, note):
    card = {"classes": {"train": train, "val": [], "test": test}, "data": {"fingerprint": patterns.fingerprint()}}
    chosen, notes = unseen_items(patterns, Card.from_dict(card))
    assert set(patterns.labels[chosen]) == expected
    assert [note in text for text in notes] == ([True] if note else [])


def test_a_published_query_and_gallery_division_is_followed(patterns, tiny):
    from nearkin.audits import Subject, run_suites
    from nearkin.recipe import AuditSection

    rng = np.random.default_rng(0)
    vectors, gallery = rng.normal(size=(80, 4)).astype(np.float32), np.arange(80) % 2 == 0
    subject = Subject(vectors, patterns.labels, Sphere(), gallery=gallery)
    result = run_suites(subject, AuditSection(), ["retrieval"])
    expected = retrieval_metrics(
        vectors[~gallery],
        patterns.labels[~gallery],
        gallery=vectors[gallery],
        gallery_labels=patterns.labels[gallery],
    )
    assert {name: result.values[name] for name in expected.values} == expected.values
    for metric in ("MAP@R", "P@1"):
        by_class = expected.per_class(metric)
        assert result[f"{metric} (classes)"] == pytest.approx(np.mean(list(by_class.values())))
        low, high = result.intervals[f"{metric} (classes)"]
        assert low <= result[f"{metric} (classes)"] <= high
    assert set(result.values) - set(expected.values) == {"MAP@R (classes)", "P@1 (classes)"}


@pytest.fixture
def published(patterns, monkeypatch, tmp_path):
    """Makes a model that says it began with the published weights of BN-Inception, whose file is not there."""
    from nearkin.models import ModelSection, build_embedder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make(**changes):
        section = ModelSection(backbone="bn-inception", pretrained=False, size=16, dimension=4, **changes)
        embedder = build_embedder(section).eval()
        embedder.backbone.config["pretrained"] = True
        embedder.card = {"recipe": {"model": section.model_dump()}}
        return embedder

    return make


@pytest.mark.parametrize(
    "changes", [{"freeze": None, "cache": False}, {"freeze": "all", "cache": True, "pooling": "gem"}]
)
def test_weights_that_are_gone_leave_the_pretrained_features_out(published, patterns, changes, monkeypatch, tmp_path):
    from nearkin.audits import subject

    embedder, items = published(**changes), patterns.select(range(16))
    steps = []
    found = {name: getattr(subject, name) for name in ("pretrained_baseline", "_kept_features")}
    for name, function in found.items():
        monkeypatch.setattr(
            subject, name, lambda *args, name=name, function=function: steps.append(name) or function(*args)
        )
    audited = subject.subject_of_model(embedder, items, cache_directory=tmp_path / "features", progress=False)
    assert steps == ["pretrained_baseline", *["_kept_features"] * changes["cache"]]  # told before any work
    assert (audited.baseline, audited.baseline_name) == (None, "")
    assert audited.embeddings.shape == (16, 4)
    (note,) = audited.notes
    assert "bn-inception" in note
    result = nk.audit(embedder, items, suites=["retrieval"], progress=False)
    assert note in result.notes
    assert nk.audit(embedder, items, suites=["retrieval"], baseline=False, progress=False).notes == []


def test_pooled_features_of_a_frozen_trunk_need_no_weight_file(published, patterns, tmp_path):
    from nearkin.audits import subject

    embedder, items = published(freeze="all"), patterns.select(range(16))
    audited = subject.subject_of_model(embedder, items, cache_directory=tmp_path / "features", progress=False)
    assert (audited.notes, audited.baseline_name) == ([], "pretrained features")
    np.testing.assert_allclose(audited.baseline, embedder.encode_pooled(items, progress=False), atol=1e-5)


def test_a_damaged_weight_file_is_still_an_error(published, patterns, tmp_path):
    from nearkin.audits import subject

    path = tmp_path / "nearkin" / "weights" / "bn_inception-52deb4733.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"other")
    with pytest.raises(ModelError, match="damaged"):
        subject.subject_of_model(published(), patterns.select(range(16)), cache_directory=tmp_path, progress=False)


def test_the_retrieval_suite_imports_no_other_suite_and_no_attack():
    code = (
        "import sys, nearkin.audits\n"
        "nearkin.audits.suites.get('retrieval')\n"
        "print([name for name in sys.modules if name.startswith(('nearkin.attacks', 'nearkin.training'))])\n"
        "print([name for name in ('hierarchy', 'robustness', 'geometry') if f'nearkin.audits.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_a_subject_takes_properties_by_name_and_refuses_others():
    gallery = np.array([True, False, True, False])
    subject = Subject(np.eye(4), np.array(list("abab")), Sphere(), gallery=gallery)
    assert (subject.asked.tolist(), subject.searched.tolist()) == ([1, 3], [0, 2])
    assert subject.known is subject.pixels is subject.local is subject.trained_domains is None
    assert subject.changed(gallery=None).asked.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="galery"):
        Subject(np.eye(4), np.array(list("abab")), Sphere(), galery=gallery)
