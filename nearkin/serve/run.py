"""Run the service on a gallery until it is stopped."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearkin.errors import DataError, require
from nearkin.serve.settings import ServeSettings, parse_keys

KEYS_VARIABLE = "NEARKIN_API_KEYS"


def serve(path: str | Path, settings: ServeSettings | None = None, *, model: Any = None, engine: str = "torch") -> None:
    """Serve a gallery until SIGINT or SIGTERM, then finish the accepted requests.

    Args:
        path: of the gallery.
        settings: address and limits; without keys, NEARKIN_API_KEYS is read.
        model: the gallery's model, if its store does not keep it.
        engine: what runs the model: "torch", or "onnx" for ONNX Runtime.

    Raises:
        DataError: if other machines could reach it without keys, or the address is in use.
    """
    settings = settings or ServeSettings()
    if not settings.keys:
        settings = replace(settings, keys=parse_keys(os.environ.get(KEYS_VARIABLE, "")))
    settings.check_safe()
    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve")
    from nearkin.gallery.gallery import Gallery

    with _listen(settings) as listener, Gallery.open(path, model, engine=engine) as gallery:
        _serve(gallery, replace(settings, port=listener.getsockname()[1]), listener)


def _serve(gallery: Any, settings: ServeSettings, listener: socket.socket) -> None:
    from nearkin.serve.app import Server, create_app
    from nearkin.serve.security import LOGGER

    warnings.filterwarnings("ignore", module="PIL")  # any client can trigger them
    if settings.audit_log is None:  # its lines go to standard error
        if not LOGGER.hasHandlers():
            LOGGER.addHandler(logging.StreamHandler())
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
    app = create_app(gallery, settings)
    listener.listen()  # before the line below: a client that connects as soon as it reads it is not refused
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"nearkin: {len(gallery):,} items at http://{host}:{settings.port}/ (Ctrl+C to stop)", flush=True)
    Server(app).run([listener])


def _listen(settings: ServeSettings) -> socket.socket:
    """A socket bound to the address; an address in use is reported before the model is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Without the protocol asyncio does not turn Nagle's algorithm off, and small answers would wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        listener.close()
        raise DataError(
            f"Cannot listen on {settings.host} port {settings.port} ({error.strerror}): choose another address."
        ) from error
    return listener
