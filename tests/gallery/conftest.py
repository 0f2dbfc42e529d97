"""What tests of galleries share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

_numbers = itertools.count()


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Iterator[str]:
    """A Milvus Lite database for all galleries of a module, served from the first test to the last."""
    for module in ("pymilvus", "milvus_lite"):
        pytest.importorskip(module, exc_type=ImportError)
    from nearkin.gallery import Gallery

    path = str(tmp_path_factory.mktemp("milvus") / "all.db")
    with Gallery.create(path, dimension=4, name="kept open"):
        yield path


@pytest.fixture
def address(database) -> str:
    """A place in that database where no gallery is yet."""
    return f"{database}#g{next(_numbers)}"
