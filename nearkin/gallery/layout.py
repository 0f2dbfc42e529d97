"""How a gallery is laid out for search: by which index, and in which partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nearkin.checks import check_range
from nearkin.errors import DataError, suggestion
from nearkin.gallery.checks import MAX_KEY

PARTITIONS = 64
"""Into how many partitions Milvus sorts the values of a key, unless told otherwise."""

_MOST_PARTITIONS = 1_024


@dataclass(frozen=True)
class Parameter:
    """A whole number that an index is built or searched with.

    Attributes:
        default: what it is unless told otherwise.
        least: the smallest that is allowed.
        most: the largest.
    """

    default: int
    least: int
    most: int


_NODE = {"M": Parameter(32, 2, 2048), "efConstruction": Parameter(128, 8, 65_536)}
_EFFORT = {"ef": Parameter(128, 1, 32_768)}
_CELLS = {"nlist": Parameter(1_024, 1, 65_536)}
_PROBES = {"nprobe": Parameter(32, 1, 65_536)}
_CODES = {"m": Parameter(0, 1, 32_768), "nbits": Parameter(8, 1, 16)}

BUILDING: Mapping[str, Mapping[str, Parameter]] = {
    "auto": {},
    "exact": {},
    "hnsw": _NODE,
    "hnsw-sq8": _NODE,
    "ivf-flat": _CELLS,
    "ivf-sq8": _CELLS,
    "ivf-pq": {**_CELLS, **_CODES},
    "diskann": {},
}
"""The indexes by name, with what each is built with."""

SEARCHING: Mapping[str, Mapping[str, Parameter]] = {
    "hnsw": _EFFORT,
    "hnsw-sq8": _EFFORT,
    "ivf-flat": _PROBES,
    "ivf-sq8": _PROBES,
    "ivf-pq": _PROBES,
    "diskann": {"search_list": Parameter(100, 1, 65_535)},
}
"""What each is searched with; more finds more, and takes longer."""


@dataclass(frozen=True)
class Layout:
    """How a gallery is laid out.

    Attributes:
        index: name of an index, one of `BUILDING`.
        parameters: its parameters that are not the default ones.
        partition: the metadata key by whose value items are kept apart; None: they are not.
        partitions: into how many partitions the values are sorted; 0 without a key.
    """

    index: str = "auto"
    parameters: Mapping[str, int] = field(default_factory=dict)
    partition: str | None = None
    partitions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Layout:
        """The inverse of `to_dict`; keys of a newer version are left alone."""
        return cls(**{name: plain[name] for name in cls.__dataclass_fields__ if name in plain})

    def value(self, name: str) -> int:
        """A parameter of the index, given or default."""
        known = {**BUILDING[self.index], **SEARCHING.get(self.index, {})}
        usual = known[name].default
        if name == "nprobe":
            usual = min(usual, self.value("nlist"))
        return int(self.parameters.get(name, usual))

    def in_words(self) -> str:
        """The index with its parameters, and the partitions, in one line."""
        names = [*BUILDING.get(self.index, ()), *SEARCHING.get(self.index, ())]
        set_to = ", ".join(f"{name} = {self.value(name)}" for name in names if self.value(name))
        shelves = f", {self.partitions} partitions by {self.partition}" if self.partition is not None else ""
        return f"{self.index}{f' ({set_to})' if set_to else ''}{shelves}"


def layout_of(
    index: Any = "auto",
    parameters: Mapping[str, Any] | None = None,
    partition: str | None = None,
    partitions: int | None = None,
) -> Layout:
    """A layout from what a user gives.

    Raises:
        DataError: there is no such index or parameter, or a value is out of range.
    """
    if not isinstance(index, str) or index not in BUILDING:
        raise DataError(f"A gallery cannot be searched by '{index}'.{suggestion(str(index), BUILDING)}")
    known = {**BUILDING[index], **SEARCHING.get(index, {})}
    chosen: dict[str, int] = {}
    for name, value in (parameters or {}).items():
        if name not in known:
            takes = ", ".join(known) or "none"
            raise DataError(f"The index '{index}' has no parameter '{name}'; it has {takes}.{suggestion(name, known)}")
        check_range(value, f"{name} (index {index})", known[name].least, known[name].most)
        chosen[name] = int(value)
    if partition is None and partitions is not None:
        raise DataError("`partitions` requires `partition`, the metadata key to partition by.")
    if partition is not None:
        if not isinstance(partition, str) or not 1 <= len(partition) <= MAX_KEY:
            raise DataError(f"`partition` must be a metadata key of 1 to {MAX_KEY} characters, not {partition!r}.")
        if partition in ("id", "label"):
            raise DataError(f"`partition` must be a metadata key, and '{partition}' is not one: use another name.")
        partitions = PARTITIONS if partitions is None else partitions
        check_range(partitions, "partitions", 1, _MOST_PARTITIONS)
    made = Layout(index, chosen, partition, int(partitions or 0))
    if "nprobe" in known and made.value("nprobe") > made.value("nlist"):
        raise DataError(
            f"'nprobe' of the index '{index}' counts cells, of which there are {made.value('nlist'):,} (nlist), so "
            f"{made.value('nprobe'):,} are too many."
        )
    return made
