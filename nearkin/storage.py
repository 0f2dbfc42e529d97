"""Writing files so that nothing is lost or half-written: a temporary name, then a rename."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearkin.errors import StorageError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` if the block succeeds.

    A failed block leaves whatever `path` held before. A full disk, a quota or a read-only
    folder becomes a `StorageError` that names the file.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    with storing(target):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
            usual = temporary.stat().st_mode
            yield temporary
            # Some writers make files that only their owner may read.
            temporary.chmod(usual)
            with open(temporary, "rb+") as handle:
                os.fsync(handle.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def storing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a refused write inside the block into a `StorageError` that names `path`."""
    try:
        yield
    except Exception as error:
        # safetensors wraps the system's error in an exception of its own.
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise StorageError(
                f"Could not write {path} ({error}): make room there or choose another place; "
                "what was there before is unchanged."
            ) from error
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
