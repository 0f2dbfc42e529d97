"""Opening data: a folder, a manifest, a zip, a Hugging Face directory or a catalogue name becomes a `Dataset`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from nearkin.data import huggingface
from nearkin.data.dataset import Dataset, MediaKind
from nearkin.data.decode import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from nearkin.data.manifest import SPLIT_NAMES, Manifest, parse_manifest, read_manifest
from nearkin.data.stores import FolderStore, UnreadableError, ZipStore, file_name, is_junk, is_url, protocols, redacted
from nearkin.data.url_store import UrlStore
from nearkin.errors import DataError, suggestion

MANIFEST_NAMES = ("manifest.csv", "manifest.parquet")


def open_data(source: str | Path | Dataset, *, data_root: Path | None = None, progress: bool = True) -> Dataset:
    """Open data in any of the forms nearkin understands.

    Args:
        source: a `Dataset` (returned as it is); a folder with one sub-folder a class (nested ones give labels such
            as "birds/owl"; top folders called train, val and test give splits), with a `manifest.csv` or
            `manifest.parquet`, or in a Hugging Face layout; a CSV or Parquet manifest, its paths relative to its
            folder or URLs; the URL of such a manifest; a zip of class folders or with a manifest inside; or a name
            from the catalogue.
        data_root: where the catalogue looks for its data sets.
        progress: show a bar if a data set of the catalogue is downloaded.

    Raises:
        DataError: there is no such data, or it cannot be used as it is.
    """
    if isinstance(source, Dataset):
        return source
    if not str(source).strip():
        raise DataError("The name of the data is empty: give a folder, a file or a name from `nearkin data list`.")
    if isinstance(source, str) and is_url(source):
        if protocols(source) != ["file"]:
            return _open_url(source)
        source = file_name(source)
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return _open_folder(path)
        if path.is_file():
            return _open_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    from nearkin.data.catalogue import catalogue, open_named

    name = str(source)
    if name in catalogue:
        return open_named(name, data_root, progress)
    if "/" in name or "\\" in name or path.suffix:
        raise DataError(f"There is no file or folder {name}: check the path.")
    raise DataError(f"There is no file, folder or known data set called '{name}'.{suggestion(name, catalogue)}")


def kind_of(paths: Iterable[str], place: str | Path) -> MediaKind:
    """Whether files are images or recordings, by their suffixes; files of neither kind do not count."""
    audio = image = ""
    for path in paths:
        suffix = os.path.splitext(file_name(path))[1].lower()
        if suffix in AUDIO_SUFFIXES:
            audio = audio or path
        elif suffix in IMAGE_SUFFIXES:
            image = image or path
    if audio and image:
        raise DataError(f"{place} mixes images ({redacted(image)}) and audio ({redacted(audio)}): separate them.")
    return "audio" if audio else "image"


def _open_folder(folder: Path) -> Dataset:
    if any((folder / name).is_file() for name in huggingface.MARKERS):
        return huggingface.open_saved(folder)
    for name in MANIFEST_NAMES:
        if (folder / name).is_file():
            return _open_manifest(folder / name, folder.name)
    has_parquet = any(next(folder.glob(pattern), None) for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"))
    if has_parquet and (shards := huggingface.find_shards(folder)):
        return huggingface.open_shards(folder, shards)
    store = FolderStore(folder)
    manifest = _by_folder(store.names(), folder)
    for path in manifest.paths:
        with suppress(UnreadableError):  # a broken file is for the check to name; a link that leaves is refused here
            store.check([path])
    return Dataset(manifest, store, kind_of(manifest.paths, folder), folder.resolve().name)


def _open_file(path: Path) -> Dataset:
    suffix = path.suffix.lower()
    if suffix == ".zip":
        return _open_zip(path)
    if suffix == ".parquet" and huggingface.is_shard(path):
        return huggingface.open_shards(path.parent, [path])
    if suffix in (".csv", ".parquet"):
        return _open_manifest(path, path.stem)
    raise DataError(
        f"{path} is a single file, not a data set: give a folder with one sub-folder a class, "
        "a .csv or .parquet manifest, a .zip, or a name from `nearkin data list`."
    )


def _open_manifest(path: Path, name: str) -> Dataset:
    manifest = read_manifest(path)
    store = UrlStore() if _names_urls(manifest, path) else FolderStore(path.parent)
    _check_listed(manifest, store, str(path))
    return Dataset(manifest, store, kind_of(manifest.paths, path), name)


def _open_url(url: str) -> Dataset:
    """A manifest on another machine, and what it names there."""
    path = PurePosixPath(file_name(url))
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"{redacted(url)} is not the URL of a manifest: pass that of a .csv or .parquet file, in a zip as "
            "zip://manifest.csv::https://…/photos.zip."
        )
    try:
        raw = UrlStore().read(url)
    except UnreadableError as error:
        raise DataError(f"The manifest {redacted(url)} {error.reason}: check the URL.") from error
    manifest = parse_manifest(raw, redacted(url))
    _names_urls(manifest, redacted(url))
    store = UrlStore(url)
    _check_listed(manifest, store, redacted(url))
    return Dataset(manifest, store, kind_of(manifest.paths, redacted(url)), path.stem)


def _names_urls(manifest: Manifest, place: str | Path) -> bool:
    """Whether the items of a manifest are behind URLs: all of them or none."""
    urls = [is_url(path) for path in manifest.paths]
    if any(urls) and not all(urls):
        url, path = manifest.paths[urls.index(True)], manifest.paths[urls.index(False)]
        raise DataError(f"The manifest {place} mixes URLs ({redacted(url)}) and paths ({path}): use one of the two.")
    return all(urls)


def _open_zip(path: Path) -> Dataset:
    store = ZipStore(path)
    names = store.names()
    inside = _manifest_among(names, path)
    if inside is not None:
        store = store.below(inside[: inside.rfind("/") + 1])
        manifest_name = inside.rpartition("/")[2]
        manifest = parse_manifest(store.read(manifest_name), f"{path}/{inside}")
        _check_listed(manifest, store, f"{path}/{inside}")
    else:
        names = [name for name in names if not is_junk(name)]
        tops = {name.partition("/")[0] for name in names}
        # A whole zip may be wrapped in one folder ("photos/"); else the top folders are the classes.
        top = f"{tops.pop()}/" if len(tops) == 1 and all(name.count("/") >= 2 for name in names) else ""
        store = store.below(top)
        manifest = _by_folder(sorted(name[len(top) :] for name in names), path)
    return Dataset(manifest, store, kind_of(manifest.paths, path), path.stem)


def _check_listed(manifest: Manifest, store: FolderStore | ZipStore | UrlStore, name: str) -> None:
    try:
        store.check(manifest.paths)
    except UnreadableError as error:
        raise DataError(
            f"The manifest {name} lists {redacted(error.path)}, which {error.reason}: add the file or remove the row."
        ) from error


def _manifest_among(names: list[str], path: Path) -> str | None:
    """The manifest of a zip: at its root, else in one of its top folders."""
    found = [name for name in MANIFEST_NAMES if name in names][:1]
    found = found or [name for name in names if name.count("/") == 1 and name.partition("/")[2] in MANIFEST_NAMES]
    if len(found) > 1:
        raise DataError(f"The zip file {path} holds several manifests ({', '.join(found[:3])}): keep one.")
    return found[0] if found else None


def _by_folder(paths: list[str], place: Path) -> Manifest:
    """A manifest whose labels are the folders; loose files that are no media (a README) are left out.

    Folders called train, val and test at the top of all others are splits, not classes.
    """
    rows = [(path, str(PurePosixPath(path).parent)) for path in paths]
    media = (*AUDIO_SUFFIXES, *IMAGE_SUFFIXES)
    loose = [path for path, label in rows if label == "." and path.lower().endswith(media)]
    rows = [(path, label) for path, label in rows if label != "."]
    if loose:
        raise DataError(
            f"{loose[0]} in {place} is in no class folder ({len(loose)} such files): put each class in a folder of "
            f"its own, "
            "or add a manifest.csv with the columns path,label."
        )
    if not rows:
        raise DataError(f"{place} is empty: put each class's files in a sub-folder named after the class.")
    labels = [label for _, label in rows]
    manifest = Manifest.from_rows([path for path, _ in rows], labels)
    tops = {label.partition("/")[0].lower() for label in labels}
    if len(tops) > 1 and tops <= SPLIT_NAMES.keys() and all("/" in label for label in labels):
        # Without this, train/cat and test/cat would be two classes and a held-out class one already seen.
        manifest = manifest.with_column("label", [label.partition("/")[2] for label in labels])
        manifest = manifest.with_column("split", [SPLIT_NAMES[label.partition("/")[0].lower()] for label in labels])
    return manifest
