"""How the service is run: where it listens, who may ask, and how much."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
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
        digest: SHA-256 of the key, in lower-case hex; the key itself is kept nowhere.
    """

    role: str
    digest: str

    @property
    def name(self) -> str:
        """What logs call it."""
        return self.digest[:8]


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the service; what is left alone is safe.

    Attributes:
        host: address to listen on; any other than loopback needs keys.
        port: 0 takes a free one.
        keys: who may use the service; empty: everybody who reaches it.
        hosts: names that clients may call it by, such as "shop.example" or "shop.example:8443", besides its address.
        origins: web origins whose pages may use it, such as "https://shop.example"; its own page always may.
        read_only: refuse every write.
        max_body: bytes of a request.
        max_pixels: pixels of an image, read from its header before it is decoded.
        max_call_pixels: pixels of all images of a call.
        max_samples: samples of a recording over all its channels, read from its header.
        max_images: images, or vectors, of a call.
        max_batch: images that go through the network at once.
        batch_wait: seconds that a batch waits for images that are being decoded.
        decode_threads: threads that decode.
        queue: requests that may be under way; more are sent away with 503.
        connections: that may be open; of one address other than loopback a quarter of them.
        memory: bytes of request bodies that may be held at once.
        timeout: seconds that a request may wait for its answer, and that a client may take to send it.
        rate: requests a second that a key, or without keys an address, may send for long; 0: no limit.
        burst: requests it may send at once.
        audit_log: file to which writes are appended, one JSON object a line; None: only the logger `nearkin.audit`.
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
            raise DataError(f"A port is a number from 0 to 65535, not {self.port}.")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise DataError(f"The service's {name} must be at least 1, not {getattr(self, name)}.")
        if self.memory < self.max_body:
            raise DataError(f"The service's memory must hold one body of {self.max_body} bytes, not {self.memory}.")
        if self.max_call_pixels < self.max_pixels:
            raise DataError(f"The service's max_call_pixels must hold one image of {self.max_pixels} pixels.")
        if not self.timeout > 0 or self.batch_wait < 0 or self.rate < 0 or self.burst < 1:
            raise DataError("The service's timeout must be above 0, batch_wait and rate not below, burst at least 1.")
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise DataError(f"An origin looks like https://shop.example, without a path, not '{origin}'.")

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def check_safe(self) -> None:
        """Refuse to listen where others reach it, unless there are keys.

        Raises:
            DataError: if so.
        """
        if not self.on_loopback and not self.keys:
            raise DataError(
                f"Listening on {self.host} opens the gallery to other machines: set NEARKIN_API_KEYS to "
                "'read:<sha256>,write:<sha256>', or listen on 127.0.0.1."
            )


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; a name other than localhost counts as not."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_keys(text: str) -> tuple[Key, ...]:
    """Keys from `read:<sha256 hex>,write:<sha256 hex>`.

    Raises:
        DataError: if an entry is anything else; the entry is not repeated, it may hold a key in the clear.
    """
    keys = []
    for place, entry in enumerate((part.strip() for part in text.split(",") if part.strip()), start=1):
        role, _, digest = entry.partition(":")
        if role not in ROLES or not _DIGEST.fullmatch(digest.lower()):
            raise DataError(
                f"Entry {place} of the API keys must be read:<digest> or write:<digest>, the digest 64 hex digits: the "
                "SHA-256 of the key, as `printf %s KEY | sha256sum` prints it."
            )
        if digest.lower() == _NO_KEY:
            raise DataError(
                f"Entry {place} of the API keys is the SHA-256 of an empty key: make one with `nearkin key`."
            )
        keys.append(Key(role, digest.lower()))
    if text and not keys:
        raise DataError("The API keys hold no entry: give read:<digest> or write:<digest>, or leave them out.")
    return tuple(keys)
