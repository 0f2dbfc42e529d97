"""Connections: how many there may be, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from nearkin.serve.settings import is_loopback

_SHARE = 4
_HEADER_SECONDS = 10.0


def bounded_protocol(connections: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol for at most so many connections at once, of one address a quarter of them.

    On loopback an address may have all: a proxy there stands for many clients. A connection on which no whole request
    header came for ten seconds is closed, however many bytes of one drip in.
    """
    base: Any = AutoHTTPProtocol
    addresses: Counter[str] = Counter()

    class Bounded(base):
        _header_timer: asyncio.TimerHandle | None = None
        _address: str | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            address = str((transport.get_extra_info("peername") or ("",))[0])
            most = connections if is_loopback(address) or not address else max(1, connections // _SHARE)
            super().connection_made(transport)
            if addresses.total() >= connections or addresses[address] >= most:
                transport.abort()
                return
            self._address = address
            addresses[address] += 1
            self._expect_header()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._address is not None:
                addresses[self._address] -= 1
                if not addresses[self._address]:
                    del addresses[self._address]
                self._address = None
            self._forget_header()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._expect_header()
            super().on_response_complete()

        def _expect_header(self) -> None:
            self._forget_header()
            self._header_timer = self.loop.call_later(_HEADER_SECONDS, self._give_up)

        def _forget_header(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _give_up(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return Bounded
