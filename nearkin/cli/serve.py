"""`nearkin serve` and `nearkin key`: serve a gallery over HTTP, and make API keys."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli.options import Engine, GalleryPath, Json, Model
from nearkin.cli.output import show_json

_KEYS = "NEARKIN_API_KEYS"


Role = StrEnum("Role", ["read", "write"])


def serve(
    path: GalleryPath,
    host: Annotated[
        str, typer.Option(help=f"Address to listen on; addresses other than loopback require {_KEYS}.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free port.")] = 8765,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Allow this Host name, e.g. shop.example; repeatable.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="Allow this web origin, e.g. https://shop.example; repeatable.")
    ] = None,
    audit_log: Annotated[
        Path | None, typer.Option(help="Append a line to this file for each write.", dir_okay=False)
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.0, help="Requests per second for each key or address; 0: no limit.")
    ] = 200.0,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum size of a request in bytes.")] = 20_000_000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Maximum duration of a request in seconds.")] = 30.0,
    model: Model = None,
    engine: Engine = "torch",
) -> None:
    """Serve a gallery over HTTP, with a web page at /. Ctrl-C finishes the accepted requests and stops."""
    from nearkin.serve.run import serve as run
    from nearkin.serve.settings import ServeSettings

    settings = ServeSettings(
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        origins=tuple(cors or ()),
        read_only=read_only,
        max_body=max_body,
        timeout=timeout,
        rate=rate,
        audit_log=audit_log,
    )
    run(path, settings, model=model, engine=engine)


def key(
    role: Annotated[Role, typer.Option(help="read, or write, which includes read.")] = Role.read,
    as_json: Json = False,
) -> None:
    """Make a new API key. It is shown only once; the service needs only its hash."""
    import hashlib
    import secrets

    # The prefix lets scanners of code and logs recognise a key, and keeps it from beginning with a dash.
    fresh = f"nk_{secrets.token_urlsafe(32)}"
    entry = f"{role.value}:{hashlib.sha256(fresh.encode()).hexdigest()}"
    if as_json:
        show_json({"role": role.value, "key": fresh, "entry": entry})
        return
    print(f"Key for the client (keep it secret; it cannot be shown again):\n  {fresh}")
    print(f"Entry for {_KEYS} of the service (separate several by commas):\n  {entry}")
