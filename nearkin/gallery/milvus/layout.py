"""The indexes of Milvus: which of them there are for what vectors, and what they are built and searched with."""

from __future__ import annotations

from typing import Any

from nearkin.errors import DataError
from nearkin.gallery.layout import BUILDING, SEARCHING, Layout
from nearkin.gallery.values import Settings

_METRICS = {"sphere": "COSINE", "euclidean": "L2", "lipschitz-ball": "L2"}


def metric_of(settings: Settings) -> str:
    """The metric of Milvus that ranks as the space does.

    Raises:
        DataError: there is none.
    """
    name = str(settings.space.get("name"))
    if name == "learned":
        raise DataError(
            "Milvus cannot search by a learned similarity, which only the model can compute: use a local gallery, such "
            "as 'shop.gallery'."
        )
    if name not in _METRICS:
        raise DataError(
            f"Milvus cannot search the space '{name}': use one of {', '.join(sorted(_METRICS))}, or a local gallery."
        )
    return _METRICS[name]


_NAMES = {
    "exact": "FLAT",
    "hnsw": "HNSW",
    "hnsw-sq8": "HNSW_SQ",
    "ivf-flat": "IVF_FLAT",
    "ivf-sq8": "IVF_SQ8",
    "ivf-pq": "IVF_PQ",
    "diskann": "DISKANN",
}
_NOT_LITE = ("ivf-pq", "diskann")
_OF_INT8 = ("auto", "hnsw")
_AT_LEAST_K = ("ef", "search_list")


def check_layout(layout: Layout, settings: Settings, *, lite: bool) -> None:
    """Refuse an index that this Milvus does not have for such vectors.

    Raises:
        DataError: if so.
    """
    if lite and layout.index in _NOT_LITE:
        there = ", ".join(name for name in BUILDING if name not in _NOT_LITE)
        raise DataError(f"Milvus Lite has no index '{layout.index}': choose {there}, or a server.")
    if settings.dtype == "int8" and not lite:
        if metric_of(settings) != "COSINE":
            raise DataError(
                "Milvus compares int8 vectors without their scales, by which only angles stay what they were: use "
                "float16, or an index that is int8 itself, such as 'hnsw-sq8'."
            )
        if layout.index not in _OF_INT8:
            raise DataError(f"Milvus searches int8 vectors by 'hnsw' alone, not by '{layout.index}'.")
    if layout.index == "ivf-pq" and settings.dimension % _codes(layout, settings):
        raise DataError(
            f"'m' of the index 'ivf-pq' must divide the dimension, {settings.dimension}: give another than "
            f"{_codes(layout, settings)}."
        )


def index_parameters(layout: Layout, settings: Settings, *, lite: bool) -> dict[str, Any]:
    """What `add_index` of pymilvus takes beside the field."""
    index = layout.index
    if index == "auto":
        # Exact in Milvus Lite, as the server thinks best elsewhere.
        index = "exact" if lite else "hnsw" if settings.dtype == "int8" else index
    chosen = Layout(index, layout.parameters)
    made: dict[str, Any] = {name: chosen.value(name) for name in BUILDING[index]}
    if index == "ivf-pq":
        made["m"] = _codes(layout, settings)
    if index == "hnsw-sq8":
        made["sq_type"] = "SQ8"
    # Milvus Lite reads parameters as one document, a server one by one.
    told = {"params": {"params": made} if lite else made} if made else {}
    return {"index_type": _NAMES.get(index, "AUTOINDEX"), "metric_type": metric_of(settings), **told}


def search_parameters(layout: Layout, k: int) -> dict[str, Any]:
    """What a search for k neighbours gives the index; some numbers may not be below k."""
    names = SEARCHING.get(layout.index, {})
    values = {name: layout.value(name) for name in names}
    return {name: max(value, k) if name in _AT_LEAST_K else value for name, value in values.items()}


def _codes(layout: Layout, settings: Settings) -> int:
    """Into how many parts product quantisation cuts a vector: of four numbers each, unless told otherwise."""
    return layout.value("m") or max(1, settings.dimension // 4)
