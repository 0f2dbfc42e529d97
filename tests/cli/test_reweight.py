"""`nearkin reweight` on a folder: the model it writes, how a power is chosen, and a gallery rebuilt by it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.audits.geometry import POWERS, _best_power, reweighting_of_training
from nearkin.audits.subject import training_rows
from nearkin.errors import DataError, ModelError
from nearkin.metrics import retrieval_metrics
from nearkin.models.shorten import raw_embeddings
from nearkin.spaces import Euclidean, PrincipalReweighting


@pytest.fixture(scope="module")
def run(photos, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    nk.fit(photos, "triplet", out=path, overrides=[*tiny, "training.max_steps=2"], progress=False)
    return path


def test_a_reweighted_model_is_written_and_a_gallery_rebuilt_by_it(nearkin, run, photos, tmp_path):
    out = tmp_path / "even.safetensors"
    code, told, err = nearkin("reweight", run, "--power", 0.5, "--out", out, "-q")
    assert code == 0, err
    assert "power 0.5" in " ".join(told.split())
    model, before = nk.load(out), nk.load(run)
    data = nk.open_data(photos)
    rows = training_rows(data, before.card)
    raw = raw_embeddings(before).encode(data, progress=False)
    change = PrincipalReweighting(0.5).fit(raw[rows])
    wanted = change.transform(raw)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(data, progress=False), wanted, atol=1e-4)
    assert model.card["reweighted"]["items"] == len(rows)
    gallery = tmp_path / "birds.gallery"
    assert nearkin("gallery", "create", gallery, photos, "--model", run, "-q")[0] == 0
    code, _, err = nearkin("gallery", "rebuild", gallery, "--model", out, "-q")
    assert code == 0, err
    code, told, err = nearkin("gallery", "info", gallery, "--json")
    assert code == 0, err
    assert json.loads(told)["settings"]["fingerprint"] == model.fingerprint() != before.fingerprint()


def test_the_power_is_the_best_on_validation_classes(run, photos, tmp_path):
    model, data = nk.load(run), nk.open_data(photos)
    rows = training_rows(data, model.card)
    judged = np.flatnonzero(np.isin(data.labels, model.card.classes.val))
    raw = raw_embeddings(model).encode(data, progress=False)

    def quality(points):
        return retrieval_metrics(model.space.project(points), data.labels[judged]).values["MAP@R"]

    changes = [PrincipalReweighting(power).fit(raw[rows]) for power in POWERS]
    found = [quality(torch.from_numpy(change.transform(raw[judged]))) for change in changes]
    unchanged = quality(torch.from_numpy(raw[judged]))
    options = {"cache_directory": tmp_path, "progress": False}
    if max(found) <= unchanged:
        with pytest.raises(DataError, match="Keep"):
            reweighting_of_training(model, data, **options)
        return
    facts = reweighting_of_training(model, data, **options).card["reweighted"]
    assert facts["power"] == POWERS[int(np.argmax(found))]
    assert (facts["MAP@R"], facts["unchanged"]) == pytest.approx((max(found), unchanged), abs=1e-5)
    assert "validation" in facts["chosen_on"]


def test_a_power_is_chosen_where_weak_directions_tell_classes_apart_and_refused_where_strong_ones_do():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 15)
    noise, signal = rng.normal(size=(300, 4)), rng.normal(size=(20, 12))[labels] + 0.3 * rng.normal(size=(300, 12))
    known = labels < 10
    hidden = np.hstack([5 * noise, signal])
    power, facts = _best_power(hidden[known], hidden[~known], labels[~known], Euclidean())
    assert power == 1.0
    assert facts["MAP@R"] > facts["unchanged"] + 0.1
    plain = np.hstack([0.01 * noise, signal])
    with pytest.raises(DataError, match="Keep"):
        _best_power(plain[known], plain[~known], labels[~known], Euclidean())


def test_weights_of_ones_own_and_what_is_refused(run, photos, tmp_path):
    data, options = nk.open_data(photos), {"cache_directory": tmp_path, "progress": False}
    model = nk.load(run)
    some = reweighting_of_training(model, data, weights=[1.0] * 8 + [0.0] * 8, **options)
    points = raw_embeddings(some).encode(data, progress=False)
    assert np.linalg.matrix_rank(points - points.mean(axis=0), tol=1e-4 * np.abs(points).max()) <= 8
    assert some.card["reweighted"]["weights"] == [1.0] * 8 + [0.0] * 8
    with pytest.raises(DataError, match="weights"):
        reweighting_of_training(model, data, weights=[1.0], **options)
    with pytest.raises(DataError, match="power"):
        reweighting_of_training(model, data, power="best", **options)
    others = data.select(np.flatnonzero(~np.isin(data.labels, model.card.classes.train)))
    with pytest.raises(DataError, match="training"):
        reweighting_of_training(model, others, power=0.5, **options)
    model.head = model.backbone
    with pytest.raises(ModelError, match="re-weighted"):
        reweighting_of_training(model, data, power=0.5, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--power", "much", "--out", "a.safetensors"], "much"),
        (["--out", "a.onnx"], ".onnx"),
        (["--out", "{run}/model.safetensors"], "overwrite"),
        (["--data", "nowhere", "--out", "a.safetensors"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(nearkin, run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = nearkin("reweight", run, *[part.format(run=run) for part in arguments], "-q")
    assert code == 2
    assert message in " ".join(err.split())
    assert not list(tmp_path.iterdir())
