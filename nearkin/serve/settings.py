"""Settings of the service: address, keys and limits."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nearkin.errors import DataError

ROLES = ("read", "write")
_COUNTS = ("max_body", "max_pixels", "max_samples", "max_images", "max_batch", "decode_threads", "queue", "connections")
_NO_KEY = hashlib.sha256(b"").hexdigest()
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """Someone who may use the service.

    Attributes:
        role: "read", or "write", which may read too.
        digest: SHA-256 of the key, in lower-case hex; the key itself is not stored.
    """

    role: str
    digest: str

    @property
    def name(self) -> str:
        """Its name in logs."""
        return self.digest[:8]


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the service; the defaults are safe.

    Attributes:
        host: address to listen on; addresses other than loopback require keys.
        port: 0 picks a free one.
        keys: who may use the service; empty: anyone who can reach it.
        hosts: allowed Host names besides its address, such as "shop.example" or "shop.example:8443".
        origins: allowed web origins, such as "https://shop.example"; its own page is always allowed.
        read_only: refuse every write.
        max_body: largest request body in bytes.
        max_pixels: largest image, checked before decoding.
        max_call_pixels: most pixels of all images of a request.
        max_samples: longest recording in samples over all channels, checked before decoding.
        max_images: most images or vectors per request.
        max_batch: most images per forward pass.
        batch_wait: seconds a batch waits for images that are being decoded.
        decode_threads: number of decoding threads.
        queue: most concurrent requests; more are answered with 503.
        connections: most open connections; one address other than loopback may hold a quarter of them.
        memory: most bytes of request bodies held at once.
        timeout: seconds a request may take to be sent, and then to be answered.
        rate: sustained requests per second for each key, or each address without keys; 0: no limit.
        burst: requests allowed at once.
        audit_log: JSON Lines file of all writes; None: only the logger `nearkin.audit`.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    keys: tuple[Key, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    read_only: bool = False
    max_body: int = 20_000_000
    max_pixels: int = 40_000_000
    max_call_pixels: int = 100_000_000
    max_samples: int = 50_000_000
    max_images: int = 16
    max_batch: int = 64
    batch_wait: float = 0.005
    decode_threads: int = 2
    queue: int = 512
    connections: int = 800
    memory: int = 512_000_000
    timeout: float = 30.0
    rate: float = 200.0
    burst: int = 400
    audit_log: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise DataError(f"The port must be from 0 to 65535, not {self.port}.")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise DataError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.memory < self.max_body:
            raise DataError(f"memory must be at least max_body ({self.max_body} bytes), not {self.memory}.")
        if self.max_call_pixels < self.max_pixels:
            raise DataError(f"max_call_pixels must be at least max_pixels, which is {self.max_pixels}.")
        if not self.timeout > 0 or self.batch_wait < 0 or self.rate < 0 or self.burst < 1:
            raise DataError("timeout must be positive, batch_wait and rate not negative, and burst at least 1.")
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise DataError(f"An origin has the form https://shop.example, without a path, not '{origin}'.")

    @property
    def on_loopback(self) -> bool:
        """Whether it is reachable from this machine only."""
        return is_loopback(self.host)

    def check_safe(self) -> None:
        """Require keys unless the address is loopback.

        Raises:
            DataError: if so.
        """
        if not self.on_loopback and not self.keys:
            raise DataError(
                f"Listening on {self.host} exposes the gallery to other machines: set NEARKIN_API_KEYS to "
                "'read:<sha256>,write:<sha256>' (see nearkin key), or listen on 127.0.0.1."
            )


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether an address is loopback; of names only localhost is."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_keys(text: str) -> tuple[Key, ...]:
    """Keys from `read:<sha256 hex>,write:<sha256 hex>`.

    Raises:
        DataError: if an entry is malformed; it is not quoted, as it may be a key in clear text.
    """
    keys = []
    for place, entry in enumerate((part.strip() for part in text.split(",") if part.strip()), start=1):
        role, _, digest = entry.partition(":")
        if role not in ROLES or not _DIGEST.fullmatch(digest.lower()):
            raise DataError(
                f"Entry {place} of the API keys must be read:<digest> or write:<digest>, the digest being the SHA-256 "
                "of the key in 64 hex digits, as `printf %s KEY | sha256sum` prints it."
            )
        if digest.lower() == _NO_KEY:
            raise DataError(
                f"Entry {place} of the API keys is the SHA-256 of an empty key: make one with `nearkin key`."
            )
        keys.append(Key(role, digest.lower()))
    if text and not keys:
        raise DataError("The API keys are empty: give read:<digest> or write:<digest>, or unset them.")
    return tuple(keys)
