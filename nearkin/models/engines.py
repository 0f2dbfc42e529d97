"""What runs a network, by name: torch as it is, or ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nearkin.models.encoder import Encoder
from nearkin.models.encoding import BatchEncoder
from nearkin.registry import Registry

if TYPE_CHECKING:
    from nearkin.models.embedder import Embedder

TORCH = "torch"

engines: Registry[Callable[[Embedder], BatchEncoder]] = Registry("engine")


def make_encoder(embedder: Embedder, engine: str = TORCH) -> BatchEncoder:
    """A model made ready by an engine; later training does not reach it.

    Args:
        embedder: the model.
        engine: "torch", or "onnx", which translates the model at its first use and keeps the translation.

    Raises:
        UnknownNameError: there is no such engine.
    """
    return engines.get(engine)(embedder)


def check_engine(engine: str) -> None:
    """Refuse a name that no engine has.

    Raises:
        UnknownNameError: there is no such engine.
    """
    engines.get(engine)


def list_engines() -> list[str]:
    """Names of the engines, sorted."""
    return engines.names()


@engines.register(TORCH)
def _torch(embedder: Embedder) -> BatchEncoder:
    return Encoder(embedder)


@engines.register("onnx")
def _onnx(embedder: Embedder) -> BatchEncoder:
    from nearkin.models.onnx.kept import kept_encoder

    return kept_encoder(embedder)
