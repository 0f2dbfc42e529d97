"""What tests of galleries share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

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


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """Refuses what would make a file longer than so many bytes, part of the way through, as a full disk does."""
    resource = pytest.importorskip("resource", reason="Windows has no limit on file sizes")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
