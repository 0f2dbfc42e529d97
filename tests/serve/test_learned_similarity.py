"""The service over a gallery by a learned similarity: the same answers as the gallery, with distances below zero."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

from nearkin.gallery.gallery import Gallery
from nearkin.models import ModelSection, build_embedder
from nearkin.models.similarity import PairSimilarity
from nearkin.models.similarity_model import SimilarityModel

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (40, 50, 210)}


@pytest.fixture(scope="module")
def model(paint):
    section = ModelSection(backbone="conv4", channels=3, size=16, dimension=16, space="euclidean")
    torch.manual_seed(1)
    network = PairSimilarity(16, hidden=24)
    model = SimilarityModel(build_embedder(section), network, list(COLOURS)).eval()
    points = torch.from_numpy(model.encode([paint(colour, 500) for colour in COLOURS.values()], progress=False))
    with torch.no_grad():
        network.second.weight.mul_(8)
        network.second.bias.sub_(network.table(points, points).mean())
    return model


@pytest.fixture
def gallery(model, paint, tmp_path):
    items = [paint(colour, seed) for colour in COLOURS.values() for seed in range(12)]
    labels = [name for name in COLOURS for _ in range(12)]
    ids = [f"item-{number:02d}" for number in range(len(items))]
    with Gallery.create(tmp_path / "a.gallery", model, items, labels, ids=ids, progress=False) as made:
        yield made


@pytest.fixture
def client(gallery, start):
    with start(gallery) as running:
        running.learned()
        with running.client() as opened:
            yield opened


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@torch.no_grad()
def loop(model, gallery, query):
    """Ids and -S of all items, most similar first."""
    ids = [item.id for item in gallery.items(limit=1000)]
    pairs = zip(gallery.store.vectors(ids), ids, strict=True)
    return sorted((-float(model.network(torch.from_numpy(v), torch.from_numpy(query))), id) for v, id in pairs)


def test_identify_over_http_goes_by_the_similarity(client, gallery, model, paint):
    raw = paint(COLOURS["red"], 100)
    found = client.post("/v1/identify", json={"image": text(raw), "neighbours": 36, "place": True}).json()
    expected = loop(model, gallery, gallery.embed([raw])[0])
    assert [near["id"] for near in found["neighbours"]] == [id for _, id in expected]
    distances = [near["distance"] for near in found["neighbours"]]
    assert distances == pytest.approx([distance for distance, _ in expected], rel=1e-4, abs=1e-4)
    assert distances[0] < 0 < distances[-1]
    match = gallery.identify(raw)
    assert (found["label"], found["known"]) == (match.label, match.known)
    assert found["probability"] == pytest.approx(match.probability, abs=1e-6)
    assert 0 <= found["place"]["x"] <= 1


def test_search_and_verify_over_http(client, gallery, model, paint):
    raw, other = paint(COLOURS["green"], 100), paint(COLOURS["blue"], 101)
    near = client.post("/v1/search", json={"image": text(raw), "k": 4}).json()["neighbours"]
    assert [each["id"] for each in near] == [id for _, id in loop(model, gallery, gallery.embed([raw])[0])[:4]]
    found = client.post("/v1/verify", json={"a": text(raw), "b": text(other), "false_accept_rate": 0.05}).json()
    a, b = (torch.from_numpy(row) for row in gallery.embed([raw, other]))
    with torch.no_grad():
        assert found["distance"] == pytest.approx(-float(model.network(a, b)), rel=1e-4, abs=1e-4)
        assert found["distance"] != pytest.approx(-float(model.network(b, a)), abs=1e-3)
    assert found["same"] is (found["distance"] <= found["threshold"])


def test_the_model_is_told_with_its_space(client, gallery):
    told = client.get("/v1/model").json()
    assert told["space"] == {"name": "learned", "base": {"name": "euclidean"}}
    assert told["stats"]["index"] == "exact"
    assert told["calibration"]["identification"]["similarity"] is True
    assert np.isfinite(told["calibration"]["identification"]["temperature"])


def test_duplicates_go_by_the_base_space(client, paint):
    raw = paint(COLOURS["red"], 0)
    assert client.post("/v1/enrol", json={"label": "green", "images": [text(raw)]}).status_code < 300
    groups = client.get("/v1/duplicates").json()["duplicates"]
    assert "item-00" in [item["id"] for item in groups[0]["items"]]
    assert groups[0]["distance"] == pytest.approx(0, abs=1e-4)
    assert client.get("/v1/duplicates", params={"distance": 1e6}).status_code in (400, 422)


def test_the_page_explains_negative_distances(client):
    assert "similarity" in client.get("/static/model.js").text


def test_prototypes_name_the_class_over_http(client, gallery, paint):
    raw = paint(COLOURS["red"], 100)
    found = client.post("/v1/identify", json={"image": text(raw), "by": "prototypes"}).json()
    match = gallery.identify(raw, by="prototypes")
    assert (found["label"], found["known"]) == (match.label, match.known)
    assert found["probability"] == pytest.approx(match.probability, abs=1e-6)
    assert client.post("/v1/identify", json={"image": text(raw), "by": "magic"}).status_code == 422
    assert client.get("/v1/model").json()["comparison"] is None
