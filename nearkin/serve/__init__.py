"""The gallery over HTTP, and its web page."""

from __future__ import annotations

from typing import Any

from nearkin.errors import require
from nearkin.serve.run import serve
from nearkin.serve.settings import Key, ServeSettings, parse_keys

__all__ = ["Key", "ServeSettings", "create_app", "parse_keys", "serve"]


def __getattr__(name: str) -> Any:
    if name != "create_app":
        raise AttributeError(f"module 'nearkin.serve' has no attribute '{name}'")
    require("fastapi", "serve")
    from nearkin.serve.app import create_app

    return create_app
