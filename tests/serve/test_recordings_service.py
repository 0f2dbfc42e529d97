"""The service with a model of recordings: what cannot be heard gets the sentence that the prompt says."""

from __future__ import annotations

import io

import numpy as np
import pytest

from nearkin.gallery import Gallery
from nearkin.models import build_embedder
from nearkin.models.section import ModelSection

RATE = 16_000
TONE = 0.3 * np.sin(np.arange(RATE // 2) * 0.1)


def wav(wave: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    pytest.importorskip("soundfile").write(buffer, wave, RATE, format="WAV")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    section = ModelSection(backbone="tdnn-narrow", size=10, pooling="stats", dimension=6)
    gallery = Gallery.create(tmp_path_factory.mktemp("voices") / "gallery", build_embedder(section, audio_seconds=0.2))
    gallery.enrol("tone", [wav(TONE)])
    return gallery


def test_what_cannot_be_heard_is_told(start, gallery):
    with start(gallery) as server, server.client() as client:
        assert client.post("/v1/identify", files={"image": wav(TONE)}).json()["label"] == "tone"
        for wave, word in ((TONE[:1600], "short"), (0 * TONE, "silent"), (np.stack([TONE, -TONE], 1), "channels")):
            asked = client.post("/v1/identify", files={"image": wav(wave)})
            enrolled = client.post("/v1/enrol", files={"image": wav(wave)}, data={"label": "new"})
            for answer in (asked, enrolled):
                assert answer.status_code == 422
                assert word in answer.json()["detail"]
        assert len(gallery) == 1
