"""Getting published files, from the web or from a Debian package: verified, unpacked, each whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import queue
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO
from urllib.parse import urlsplit

from nearkin.errors import DataError, StorageError
from nearkin.progress import Progress
from nearkin.storage import replacing

_CHUNK = 1 << 18
_MIB = 1 << 20
_ARCHIVES = (".tgz", ".tar.gz", ".tar", ".zip")


def download(url: str, path: Path, checksum: str, progress: bool = True, timeout: float = 10.0) -> Path:
    """Download a file; it appears under `path` only when its checksum is right.

    Args:
        url: address of the file.
        path: where to put it.
        checksum: what its publisher says: the sha256 (64 hexadecimal digits) or the md5 (32) of the file.
        progress: show a bar when the length is known.
        timeout: seconds to wait for an answer, and between two pieces of it.
    """
    digest = hashlib.sha256() if len(checksum) == 64 else hashlib.md5(usedforsecurity=False)
    with replacing(path) as temporary, open(temporary, "wb") as out:
        for piece in _pieces(url, path.name, progress, timeout):
            digest.update(piece)
            out.write(piece)
        if digest.hexdigest() != checksum.lower():
            raise DataError(
                f"{url} gave a file with the {digest.name} {digest.hexdigest()} where {checksum} is published: "
                "try again later."
            )
    return path


def download_all(*files: tuple[str, str]) -> Callable[[Path, bool], None]:
    """A function that fills a new folder from (url, checksum) pairs; archives among them are unpacked there."""

    def fetch(folder: Path, progress: bool) -> None:
        with new_folder(folder) as temporary:
            for url, checksum in files:
                name = PurePosixPath(urlsplit(url).path).name
                file = download(url, temporary / name, checksum, progress)
                if name.endswith(_ARCHIVES):
                    unpack(file, temporary, progress)
                    file.unlink()

    return fetch


def unpack(archive: Path, folder: Path, progress: bool = True) -> None:
    """Unpack the plain files of a tar or zip archive below a folder; links and other special members are left out."""
    try:
        with (
            open(archive, "rb") as raw,
            _ByteBar(f"Unpacking {archive.name}", archive.stat().st_size, progress) as bar,
        ):
            for name, member in _members(raw):
                parts = PurePosixPath(name).parts
                if name.startswith("/") or ".." in parts:
                    raise DataError(f"{archive} holds '{name}', which points outside of it: download another copy.")
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with member, open(target, "wb") as out:
                    shutil.copyfileobj(member, out, _CHUNK)
                bar.reach(raw.tell())
            bar.reach(archive.stat().st_size)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} could not be unpacked ({error}): get it again.") from error


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; rename it to `folder` if the block succeeds."""
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.replace(folder)
    except OSError as error:
        raise StorageError(f"Could not write {folder} ({error}): free some space or choose another place.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _members(raw: BinaryIO) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(raw):
        raw.seek(0)
        with zipfile.ZipFile(raw) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, archive.open(info)
        return
    raw.seek(0)
    with tarfile.open(fileobj=raw) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file


def _pieces(url: str, name: str, progress: bool, timeout: float) -> Iterator[bytes]:
    try:
        with _answer(url, timeout) as response:
            length = int(response.headers.get("Content-Length") or 0)
            received = 0
            with _ByteBar(f"Downloading {name}", length, progress and length > 0) as bar:
                while piece := response.read(_CHUNK):
                    received += len(piece)
                    yield piece
                    bar.reach(received)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(error.reason if isinstance(error, urllib.error.URLError) else error) or type(error).__name__
        raise DataError(f"{url} did not answer ({reason}): check the network.") from error
    if received < length:
        raise DataError(f"{url} broke off after {received:,} of {length:,} bytes: try again.")


def _answer(url: str, timeout: float) -> Any:
    """Open a URL within `timeout` seconds in all; the system's name lookup, which knows no timeout, included."""
    box: queue.Queue[Any] = queue.Queue(1)

    def ask() -> None:
        try:
            box.put(urllib.request.urlopen(url, timeout=timeout))
        except Exception as error:  # handed over to the thread that waits
            box.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = box.get(timeout=timeout)
    except queue.Empty:
        raise TimeoutError(f"no answer in {timeout:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


class _ByteBar(Progress):
    """A progress bar in mebibytes, moved to a position."""

    def __init__(self, title: str, size: int, enabled: bool) -> None:
        super().__init__(f"{title} (MiB)", max(1, round(size / _MIB)), enabled)
        self._size = size

    def reach(self, position: int) -> None:
        """Move to a position in bytes; the last step is kept for the last byte."""
        steps = self.total if position >= self._size else min(position // _MIB, self.total - 1)
        if steps > self.done:
            self.advance(steps - self.done)


_ANSWER_SECONDS = 5
_PACKAGE_SECONDS = 300
_IMPATIENT = (
    "-o", "Acquire::Retries=0",
    "-o", f"Acquire::http::Timeout={_ANSWER_SECONDS}",
    "-o", f"Acquire::https::Timeout={_ANSWER_SECONDS}",
)  # fmt: skip


@contextmanager
def debian_package(package: str, progress: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that holds the files of a Debian package as if it were the root directory."""
    fetcher, opener = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if fetcher is None or opener is None:
        raise DataError("This system has no apt-get and dpkg-deb to fetch a Debian package with.")
    with tempfile.TemporaryDirectory(prefix="nearkin-") as temporary:
        # apt fetches as a user of its own when root calls it, and warns where that user cannot write.
        Path(temporary).chmod(0o755)
        if progress:
            print(f"Fetching the Debian package {package} ...", file=sys.stderr, flush=True)
        _run([fetcher, *_IMPATIENT, "download", package], temporary)
        archive = next(Path(temporary).glob("*.deb"), None)
        if archive is None:
            raise DataError(f"apt-get gave no file for the Debian package {package}.")
        root = Path(temporary) / "root"
        _run([opener, "-x", str(archive), str(root)], temporary)
        yield root


def _run(command: list[str], folder: str) -> None:
    name = Path(command[0]).name
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PACKAGE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{name} gave no package in {_PACKAGE_SECONDS} s.") from error
    except OSError as error:
        raise DataError(f"{name} could not be run ({error}).") from error
    if result.returncode:
        said = (result.stderr.strip().splitlines() or [f"code {result.returncode}"])[-1]
        raise DataError(f"{name} failed ({said}).")
