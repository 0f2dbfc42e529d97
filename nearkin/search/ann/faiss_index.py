"""Building and tuning the index objects of faiss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nearkin.errors import DataError


def build(kit: Any, factory: str, dimensions: int, by_product: bool, seed: int) -> Any:
    """An empty, seeded index of this factory string, by inner product or by squared Euclidean distance."""
    metric = kit.METRIC_INNER_PRODUCT if by_product else kit.METRIC_L2
    try:
        index = kit.index_factory(dimensions, factory, metric)
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"faiss cannot build '{factory}' for vectors of {dimensions} dimensions: {reason(error)}"
        ) from error
    _prepare(kit, index, seed)
    return index


def reason(error: Exception) -> str:
    """The sentence in a faiss error, without the place in its source."""
    return str(error).strip().splitlines()[0].rpartition(": ")[2].rstrip(".") + "."


def _inner(kit: Any, index: Any) -> Any:
    """The index that searches, inside transforms and refinements."""
    for attribute in ("index", "base_index"):
        if hasattr(index, attribute):
            return _inner(kit, kit.downcast_index(getattr(index, attribute)))
    return index


def knobs_of(kit: Any, index: Any) -> dict[str, int]:
    """The search parameters that this index has, each with its largest value; 0 stands for the size of the gallery."""
    inner = _inner(kit, index)
    if isinstance(inner, kit.IndexIVF):
        return {"nprobe": inner.nlist}
    return {"efSearch": 0} if isinstance(inner, kit.IndexHNSW) else {}


def _prepare(kit: Any, index: Any, seed: int) -> None:
    """Seed the k-means of cells and codes and the levels of a graph; leave out training that no search here uses."""
    inner = _inner(kit, index)
    if hasattr(inner, "hnsw"):
        inner.hnsw.rng = kit.RandomGenerator(seed)
        inner = kit.downcast_index(inner.storage)
    if hasattr(inner, "do_polysemous_training"):
        # Annealing for a filter that is off by default takes most of the training time.
        inner.do_polysemous_training = False
    for learner in [inner, *([inner.pq] if hasattr(inner, "pq") else [])]:
        if hasattr(learner, "cp"):
            learner.cp.seed = seed


@contextmanager
def reproducible(kit: Any) -> Iterator[None]:
    """One thread for versions of faiss whose HNSW graph depends on which thread comes first; restored afterwards.

    faiss and torch share one OpenMP setting, so a count left behind would slow down torch.
    """
    if tuple(int(part) for part in kit.__version__.split(".")[:2]) >= (1, 15):
        yield
        return
    threads = kit.omp_get_max_threads()
    kit.omp_set_num_threads(1)
    try:
        yield
    finally:
        kit.omp_set_num_threads(threads)
