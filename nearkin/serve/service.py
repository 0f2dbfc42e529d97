"""The gallery at work: threads that decode, encode, search and write, so that the event loop only waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nearkin.data.stores import UnreadableError
from nearkin.errors import DataError, ModelError, NearkinError, StorageError
from nearkin.gallery.values import Match
from nearkin.serve.auditlog import AuditLog
from nearkin.serve.batching import Batcher
from nearkin.serve.bodies import Bounds
from nearkin.serve.inspecting import check_image, check_recording
from nearkin.serve.keeping import Keeper
from nearkin.serve.learning import Learner
from nearkin.serve.metrics import Metrics
from nearkin.serve.problems import Problem
from nearkin.serve.settings import ServeSettings
from nearkin.serve.workers import Job, Workers

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery

R = TypeVar("R")

_LOGGER = logging.getLogger("nearkin.serve")
_DAMAGED = "The image or recording is truncated or damaged."
_READERS = 4
_MOST_SLOW = 32
_MOST_SEARCHED = 64
_WATCH_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 10.0
_LARGE = 16_000_000
"""Pixels of an image that is decoded alone: several such at once would take gigabytes."""


class Service:
    """What the routes use.

    Args:
        gallery: an open gallery; whoever opened it closes it.
        settings: limits and sizes.
    """

    def __init__(self, gallery: Gallery, settings: ServeSettings) -> None:
        if gallery.settings.kind != "vector" and gallery.encoder is None:
            raise ModelError("The gallery does not keep the model that made its vectors: open it with model=.")
        self.gallery = gallery
        self.settings = settings
        self._tie()
        self.metrics = Metrics()
        self.audit = AuditLog(settings.audit_log)
        self.ready = False
        self.stopping = False
        self._readers = Workers(_READERS, "read", settings.queue)
        self._writer = Workers(1, "write", settings.queue)
        self._slow = Workers(1, "slow", _MOST_SLOW)
        self._keeper = Keeper(self.timed)
        self._learner = Learner(gallery, self._slow, self.metrics)
        self._seen: int | None = None
        self._looked: tuple[float, Job[Any]] | None = None
        self._large = threading.Lock()
        self._encodes: Batcher[bytes, np.ndarray] = Batcher(
            self._run,
            prepare=self._prepare,
            threads=settings.decode_threads,
            max_batch=settings.max_batch,
            wait=settings.batch_wait,
            capacity=settings.queue + settings.max_images,
            observe=self.metrics.batches.observe,
            name="encode",
        )
        self._matches: Batcher[tuple[np.ndarray, int], Match] = Batcher(
            self._identified, max_batch=_MOST_SEARCHED, capacity=settings.queue, name="identify"
        )
        self.metrics.watch("nearkin_queue_length", "Images waiting for their vector.", lambda: self._encodes.waiting)
        self.metrics.watch(
            "nearkin_audit_failures", "Writes missing from the audit log's file.", lambda: self.audit.failures
        )
        self.metrics.watch("nearkin_items", "Items of the gallery.", lambda: len(gallery))

    async def start(self) -> None:
        """Start the threads, and learn from the gallery if that is due."""
        self.gallery.auto_recalibrate = False
        self._loop = asyncio.get_running_loop()
        for part in self._parts():
            part.start()
        self._watching = asyncio.create_task(self._watch())
        self.ready = True

    async def stop(self) -> None:
        """Finish what was accepted, then end the threads; what takes too long is left to the end of the process."""
        self.stopping = True
        self.ready = False
        self._watching.cancel()
        self._slow.drop()
        until = self._loop.time() + _STOP_SECONDS
        for part in self._parts():
            if not await asyncio.to_thread(part.close, max(0.0, until - self._loop.time())):
                _LOGGER.warning("something did not end in time, and is given up")
        self.audit.close()

    def _parts(self) -> tuple[Batcher[Any, Any] | Workers, ...]:
        return (self._encodes, self._matches, self._writer, self._readers, self._slow)

    async def vector(self, image: bytes | None, numbers: list[float] | None) -> np.ndarray:
        """The vector (d,) of a query: an image for a gallery with a model, numbers for one without."""
        self._check_kind(image is not None)
        if image is not None:
            return await self.timed(self._encodes.submit(image))
        points: np.ndarray = await self.read(lambda: self.gallery.embed(self._rows([numbers or []])))
        return points[0]

    async def identify(self, vector: np.ndarray, neighbours: int) -> Match:
        """What a vector (d,) is."""
        return await self.timed(self._matches.submit((vector, neighbours)))

    async def read(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """What a call on the gallery gives, made in a thread; the caller waits for a bounded time."""
        return await self.timed(self._readers.submit(lambda: call(*arguments, **named)).answer)

    async def write(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """What a call that changes the gallery gives; it is waited for to its end, whatever the client does."""
        result = await asyncio.shield(self._writer.submit(lambda: call(*arguments, **named)).answer)
        self._learner.wake()
        return result

    async def slowly(self, call: Callable[..., R], *arguments: Any) -> R:
        """What an expensive call gives, one at a time."""
        return await self.timed(self._slow.submit(lambda: call(*arguments)).answer)

    async def kept(self, name: str, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """What an expensive call gives: made once for each state of the gallery, one at a time."""
        key = (name, *arguments, *sorted(named.items()))
        return await self._keeper.get(key, await self.read(self._state), self._slow, lambda: call(*arguments, **named))

    async def kept_apart(self, name: str, call: Callable[[], R]) -> R:
        """What a call gives: made once for each state of the gallery, without waiting for the expensive ones."""
        return await self._keeper.get((name,), await self.read(self._state), self._readers, call)

    async def look(self) -> None:
        """Reach for the store, at most once a second.

        Raises:
            Problem: if it does not answer in time.
            StorageError, OSError: if it cannot be reached.
        """
        now = self._loop.time()
        if self._looked is None or now - self._looked[0] > _LOOK_SECONDS:
            self._looked = (now, self._readers.submit(self.gallery.store.size))
        await self.timed(asyncio.shield(self._looked[1].answer))

    async def timed(self, work: Awaitable[R]) -> R:
        """What is waited for, or a problem if it takes too long; work that has not begun is then dropped."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await work
        except TimeoutError:
            raise Problem("timed-out", "The answer was not ready in time: try again later.") from None

    @property
    def bounds(self) -> Bounds:
        """How much the body of a request may say."""
        most = self.settings.max_images
        return Bounds(most, most * self.dimension if self.kind == "vector" else 0)

    async def examples(self, images: list[bytes] | None, vectors: list[list[float]] | None) -> Any:
        """What `Gallery.add` takes: images that were looked at, or vectors (n, d)."""
        self._check_kind(images is not None)
        if images is None:
            return await self.read(self._rows, vectors or [])
        await self.read(self._check_items, images)
        return images

    def _tie(self) -> None:
        """Take note of what the gallery is tied to: the event loop must not wait for the store to tell."""
        settings = self.gallery.settings
        self.kind, self.dimension = settings.kind, settings.dimension

    def _state(self) -> tuple[int, Any]:
        """What answers depend on: the items, and what was learned from them."""
        self._tie()
        fitted = self.gallery.calibration
        return self.gallery.store.generation, None if fitted is None else fitted.key

    def _rows(self, vectors: list[list[float]]) -> np.ndarray:
        """Lists of numbers as rows float32 (n, d)."""
        self._tie()
        for numbers in vectors:
            if len(numbers) != self.dimension:
                raise Problem("invalid-request", f"A vector must have {self.dimension} numbers, not {len(numbers)}.")
        with np.errstate(over="ignore"):
            rows = np.asarray(vectors, np.float64).astype(np.float32)
        if not np.isfinite(rows).all():
            raise Problem("invalid-request", "A vector must hold finite numbers of at most 3.4e38.")
        return rows

    def _check_kind(self, by_image: bool) -> None:
        takes_images = self.kind != "vector"
        if by_image == takes_images:
            return
        expected, given = ("an image", "a vector") if takes_images else ("a vector", "an image")
        raise Problem("invalid-request", f"This gallery takes {expected}, not {given}.")

    def _check_item(self, raw: bytes) -> int:
        """How many pixels an image has; 0 for a recording."""
        if self.kind == "audio":
            check_recording(raw, self.settings.max_samples)
            return 0
        return check_image(raw, self.settings.max_pixels)

    def _check_items(self, images: list[bytes]) -> None:
        most = self.settings.max_call_pixels
        if sum(self._check_item(image) for image in images) > most:
            raise Problem("item-too-large", f"The images of a call may have at most {most} pixels together.")

    def _prepare(self, raw: bytes) -> Any:
        alone = self._large if self._check_item(raw) > _LARGE else nullcontext()
        try:
            with alone:
                return self._encoder().prepare(raw)
        except DataError as error:
            raise Problem("unreadable-item", _DAMAGED) from error

    def _run(self, samples: list[Any]) -> np.ndarray:
        return self._encoder().run(samples)

    def _encoder(self) -> Any:
        return self.gallery.encoder

    def _identified(self, queries: list[tuple[np.ndarray, int]]) -> list[Match]:
        """What vectors are; those that want fewer neighbours get the first of those found for all."""
        most = max(count for _, count in queries)
        found = self.gallery.identify_vectors(np.stack([vector for vector, _ in queries]), neighbours=most)
        generation = self.gallery.store.generation
        if generation != self._seen:  # somebody else may have written, or made the vectors anew
            self._seen = generation
            self._loop.call_soon_threadsafe(self._learner.wake)
        return [_cut(match, count) for match, (_, count) in zip(found, queries, strict=True)]

    async def _watch(self) -> None:
        """Look now and then whether others have changed the gallery."""
        while True:
            self._learner.wake()
            await asyncio.sleep(_WATCH_SECONDS)


def _cut(match: Match, count: int) -> Match:
    if len(match.neighbours) <= count:
        return match
    return Match(match.label, match.probability, match.known, match.neighbours[:count], match.candidates, match.reason)


def as_problem(error: NearkinError | OSError) -> Problem:
    """How one of our errors is told to a client; what it says of the server stays here."""
    if isinstance(error, UnreadableError) or isinstance(error.__cause__, UnreadableError):
        return Problem("unreadable-item", _DAMAGED)
    if isinstance(error, DataError):
        return Problem("invalid-request", str(error))
    if isinstance(error, StorageError | OSError):
        _LOGGER.warning("storage: %s", error)
        return Problem("storage", "Another process is writing the gallery, its disk is full, or its files are gone.")
    _LOGGER.error("unexpected: %s", error, exc_info=error)
    return Problem("internal")
