"""ZooScanNet: plankton seen by the ZooScan, taxon by taxon."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from nearkin.data.catalogue.entry import Entry, enter
from nearkin.data.catalogue.layout import IMAGE_SUFFIXES, Layout, files_in, read_rows
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.stores import FolderStore

_LAYOUT = Layout("ZooScanNet", "ZooScanNet/ with imgs/<taxon>/<objid>.* and, for names and splits, taxa.csv.gz")


def open_zooscan(folder: Path) -> Dataset:
    """ZooScanNet in its published folder, by the old or the new form of taxa.csv.gz; without it, by taxon folder."""
    images = files_in(_LAYOUT.directory(folder, "imgs"), IMAGE_SUFFIXES)
    if not images:
        raise _LAYOUT.refusal(folder, "imgs is empty")
    table = next((folder / name for name in ("taxa.csv.gz", "taxa.csv") if (folder / name).is_file()), None)
    manifest = _by_folder(folder, images) if table is None else _by_table(folder, images, table)
    return Dataset(manifest, FolderStore(folder), name="zooscan")


def _by_folder(folder: Path, images: list[str]) -> Manifest:
    if loose := next((path for path in images if "/" not in path), None):
        raise _LAYOUT.refusal(folder, f"the image imgs/{loose} is in no taxon's folder")
    return Manifest.from_rows([f"imgs/{path}" for path in images], [PurePosixPath(path).parent.name for path in images])


def _by_table(folder: Path, images: list[str], table: Path) -> Manifest:
    rows = read_rows(table, ("objid",))
    if not rows:
        raise _LAYOUT.refusal(folder, f"{table.name} lists no objects")
    if not {"taxon", "taxon_level1"} & rows[0].keys():
        raise _LAYOUT.refusal(folder, f"{table.name} has no column 'taxon' or 'taxon_level1'")
    taxon = "taxon_level1" if "taxon_level1" in rows[0] else "taxon"
    rows = _once(folder, rows, taxon, table.name)
    path_of = _paths(folder, images, {row["objid"] for row in rows})
    missing = [row["objid"] for row in rows if row["objid"] not in path_of]
    if missing:
        raise _LAYOUT.refusal(folder, f"imgs lacks {len(missing):,} of {len(rows):,} objects, {missing[0]} first")
    published = {"lineage": ("lineage_level1", "lineage"), "superclass": ("taxon_level2",), "split": ("set",)}
    more = {
        column: [row[name] for row in rows] for column, names in published.items() for name in names if name in rows[0]
    }
    return Manifest.from_rows([path_of[row["objid"]] for row in rows], [row[taxon] for row in rows], **more)


def _once(folder: Path, rows: list[dict[str, str]], taxon: str, table: str) -> list[dict[str, str]]:
    """The rows, one for each object; refuse an object without a taxon or with two."""
    kept: dict[str, dict[str, str]] = {}
    for row in rows:
        if not row[taxon]:
            raise _LAYOUT.refusal(folder, f"{table} has no {taxon} for the object '{row['objid']}'")
        known = kept.setdefault(row["objid"], row)[taxon]
        if known != row[taxon]:
            reason = f"{table} has the object '{row['objid']}' as '{known}' and as '{row[taxon]}'"
            raise _LAYOUT.refusal(folder, reason)
    return list(kept.values())


def _paths(folder: Path, images: list[str], listed: set[str]) -> dict[str, str]:
    """Where the image of each listed object is; refuse an object with two."""
    path_of: dict[str, str] = {}
    for path in images:
        name = PurePosixPath(path).stem
        if name in listed and path_of.setdefault(name, f"imgs/{path}") != f"imgs/{path}":
            raise _LAYOUT.refusal(folder, f"the object '{name}' has two images, {path_of[name]} and imgs/{path}")
    return path_of


enter(
    Entry(
        name="zooscan",
        title="ZooScan plankton (ZooScanNet)",
        classes=98,
        items=1_451_745,
        homepage="https://www.seanoe.org/data/00446/55741/",
        licence="CC BY-NC",
        layout=_LAYOUT.shape,
        split="published train/val/test of the images of each taxon (closed), in versions that have it",
        tested="layout-tested",
        open=open_zooscan,
        folders=("ZooScanNet", "ZooScanNet_data"),
    )
)
