"""Debian packages as a source of data: fetched and opened without root, where the tools for it exist."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearkin.errors import DataError

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
