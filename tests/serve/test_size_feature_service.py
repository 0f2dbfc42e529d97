"""The service with a model that takes sizes: what is sent is as large as its file says."""

from __future__ import annotations

import io

import torch
from PIL import Image

from nearkin.gallery import Gallery
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection


def png(side):
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 150)).save(buffer, format="png")
    return buffer.getvalue()


def test_images_of_one_colour_are_told_apart_by_their_sizes(start, tmp_path):
    section = ModelSection(backbone="conv4", channels=3, size=16, fit="crop", dimension=8, size_feature="pixels")
    embedder = build_embedder(section).eval()
    with torch.no_grad():
        embedder.size_feature.weight.copy_(torch.randn(embedder.size_feature.weight.shape))
    gallery = Gallery.create(tmp_path / "gallery", embedder)
    for label, side in (("small", 20), ("large", 400)):
        gallery.enrol(label, [png(side), png(side + 2)])
    with start(gallery) as server, server.client() as client:
        server.learned()
        for label, side in (("small", 21), ("large", 401)):
            found = client.post("/v1/search", files={"image": png(side)}, data={"k": "2"}).json()["neighbours"]
            assert [neighbour["label"] for neighbour in found] == [label, label]
