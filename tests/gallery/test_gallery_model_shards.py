"""From a model to a gallery by way of shards: what `embed` wrote goes into galleries of the same model."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError, ModelError
from nearkin.gallery import Gallery
from nearkin.models import ModelSection, build_embedder
from nearkin.models.bulk import embed_shards, part_files
from nearkin.models.bulk.parts import KEY

SECTION = ModelSection(backbone="conv4", channels=3, size=16, dimension=8)


@pytest.fixture(scope="module")
def model():
    return build_embedder(SECTION, seed=0).eval()


@pytest.fixture
def shards(model, patterns, tmp_path):
    folder = tmp_path / "vectors"
    embed_shards(model, patterns, folder, shards=3, progress=False)
    return folder


def test_a_gallery_of_the_same_model_takes_shards(model, patterns, shards, tmp_path):
    with Gallery.create(tmp_path / "tied.gallery", model) as gallery:
        imported = gallery.import_files(shards)
        assert (imported.rows, imported.replaced, imported.items) == (80, 0, 80)
        assert gallery.import_files(shards).items == 80
        vectors = model.encode(patterns, progress=False)
        for row in (0, 41, 79):
            [found] = gallery.search_vectors(vectors[row][None], 1)
            assert found[0].item.source == patterns.manifest.paths[row]
            assert found[0].item.label == patterns.labels[row]
            assert found[0].distance == pytest.approx(0, abs=1e-3)
        ids = [item.id for item in gallery.store.page(limit=100)]
        kept = gallery.store.vectors(ids)
        assert {row.tobytes() for row in kept} == {row.tobytes() for row in vectors}


def test_a_gallery_of_another_model_refuses_them(shards, tmp_path):
    other = build_embedder(SECTION, seed=1).eval()
    with Gallery.create(tmp_path / "tied.gallery", other) as gallery:
        with pytest.raises(ModelError, match="model"):
            gallery.import_files(shards)
        assert len(gallery.store) == 0


def test_a_gallery_of_vectors_takes_them(shards, tmp_path):
    with Gallery.create(tmp_path / "own.gallery", dimension=8, name="ours") as gallery:
        assert gallery.import_files(shards).items == 80
        assert np.allclose(np.linalg.norm(gallery.store.vectors([gallery.store.page(limit=1)[0].id]), axis=1), 1)


def test_a_shard_that_says_nonsense_of_itself_is_refused(model, shards, tmp_path):
    import pyarrow.parquet as pq

    file = part_files(shards)[0]
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({KEY: b"{}"}), file)
    with (
        Gallery.create(tmp_path / "tied.gallery", model) as gallery,
        pytest.raises(DataError, match="shard"),
    ):
        gallery.import_files(shards)


def damage_a_page(file) -> None:
    """Change the last vector and leave all else of the file as it is."""
    import pyarrow.parquet as pq

    group = pq.read_metadata(file).row_group(0)
    vectors = group.column(group.num_columns - 1)
    end = (vectors.dictionary_page_offset or vectors.data_page_offset) + vectors.total_compressed_size
    content = bytearray(file.read_bytes())
    content[end - 8 : end] = bytes(byte ^ 0xFF for byte in content[end - 8 : end])
    file.write_bytes(bytes(content))


def test_a_damaged_shard_is_refused_and_made_again(model, patterns, shards, tmp_path):
    file = shards / "part-00001-of-00003.parquet"
    whole = file.read_bytes()
    damage_a_page(file)
    with Gallery.create(tmp_path / "tied.gallery", model) as gallery:
        with pytest.raises(DataError, match="part-00001-of-00003"):
            gallery.import_files(shards)
        reports = embed_shards(model, patterns, shards, shards=3, progress=False)
        assert [report.written for report in reports] == [False, True, False]
        assert file.read_bytes() == whole
        assert gallery.import_files(shards).items == 80


def test_what_is_not_there_is_not_called_damaged(model, tmp_path):
    with (
        Gallery.create(tmp_path / "tied.gallery", model) as gallery,
        pytest.raises(DataError, match="nope"),
    ):
        gallery.import_files(tmp_path / "nope")
