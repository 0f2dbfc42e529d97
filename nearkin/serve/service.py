"""The gallery at work: threads that decode, encode, search and write, so that the event loop only waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nearkin.data.stores import UnreadableError
from nearkin.errors import DataError, ModelError, NearkinError, StorageError
from nearkin.gallery.values import Match
from nearkin.serve.auditlog import AuditLog
from nearkin.serve.batching import Batcher
from nearkin.serve.limits import check_image, check_recording
from nearkin.serve.metrics import Metrics
from nearkin.serve.problems import Problem
from nearkin.serve.settings import ServeSettings

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery

R = TypeVar("R")

_LOGGER = logging.getLogger("nearkin.serve")
_DAMAGED = "The image or recording is truncated or damaged."
_READERS = 4
_MOST_SEARCHED = 64
_MOST_KEPT = 32
_WATCH_SECONDS = 30.0


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
        # Asked for once: the gallery would look into its store every time, and the event loop must not wait for that.
        self.kind = gallery.settings.kind
        self.dimension = gallery.settings.dimension
        self.metrics = Metrics()
        self.audit = AuditLog(settings.audit_log)
        self.ready = False
        self.stopping = False
        self._kept: dict[tuple[Any, ...], tuple[int, asyncio.Future[Any]]] = {}
        self._calibrated_at: int | None = None
        self._asked_to_calibrate = False
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
        self.metrics.watch("nearkin_items", "Items of the gallery.", lambda: len(gallery))

    async def start(self) -> None:
        """Start the threads, and learn from the gallery if that is due."""
        self.gallery.auto_recalibrate = False
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="slow")
        self._encodes.start()
        self._matches.start()
        self._watching = asyncio.create_task(self._watch())
        self.ready = True

    async def stop(self) -> None:
        """Finish what was accepted, then end the threads."""
        self.stopping = True
        self.ready = False
        self._watching.cancel()
        for _, task in self._kept.values():
            task.cancel()
        loop = asyncio.get_running_loop()
        for close in (self._encodes.close, self._matches.close, self._writer.shutdown, self._readers.shutdown):
            await loop.run_in_executor(None, close)
        await loop.run_in_executor(None, lambda: self._slow.shutdown(cancel_futures=True))
        self.audit.close()

    async def vector(self, image: bytes | None, numbers: list[float] | None) -> np.ndarray:
        """The vector (d,) of a query: an image for a gallery with a model, numbers for one without."""
        self._check_kind(image is not None)
        if image is not None:
            return await self.timed(self._encodes.submit(image))
        points: np.ndarray = await self.read(self.gallery.embed, self.row(numbers or []))
        return points[0]

    async def identify(self, vector: np.ndarray, neighbours: int) -> Match:
        """What a vector (d,) is."""
        return await self.timed(self._matches.submit((vector, neighbours)))

    async def read(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """What a call on the gallery gives, made in a thread; the caller waits for a bounded time."""
        return await self.timed(self._in(self._readers, call, *arguments, **named))

    async def write(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """What a call that changes the gallery gives; it is waited for to its end, whatever the client does."""
        result = await asyncio.shield(self._in(self._writer, call, *arguments, **named))
        self._calibrate_if_due()
        return result

    async def slowly(self, call: Callable[..., R], *arguments: Any) -> R:
        """What an expensive call gives, one at a time."""
        return await self.timed(self._in(self._slow, call, *arguments))

    async def kept(self, name: str, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """What an expensive call gives: made once for each state of the gallery, one at a time."""
        generation = await self.read(lambda: self.gallery.store.generation)
        key = (name, *arguments, *sorted(named.items()))
        found = self._kept.get(key)
        if found is None or found[0] != generation or (found[1].done() and _failed(found[1])):
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            found = self._kept[key] = (generation, self._in(self._slow, call, *arguments, **named))
        result: R = await self.timed(asyncio.shield(found[1]))
        return result

    async def timed(self, work: Awaitable[R]) -> R:
        """What is waited for, or a problem if it takes too long; work that has not begun is then dropped."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await work
        except TimeoutError:
            raise Problem("timed-out", "The answer was not ready in time: try again later.") from None

    def row(self, numbers: list[float]) -> np.ndarray:
        """Numbers as one row float32 (1, d)."""
        if len(numbers) != self.dimension:
            raise Problem(
                "invalid-request",
                f"A vector must have {self.dimension} numbers, not {len(numbers)}.",
            )
        with np.errstate(over="ignore"):
            row = np.asarray(numbers, np.float64).astype(np.float32)[None]
        if not np.isfinite(row).all():
            raise Problem("invalid-request", "A vector must hold finite numbers of at most 3.4e38.")
        return row

    async def examples(self, images: list[bytes] | None, vectors: list[list[float]] | None) -> Any:
        """What `Gallery.add` takes: images that were looked at, or vectors (n, d)."""
        self._check_kind(images is not None)
        if images is None:
            return np.concatenate([self.row(numbers) for numbers in vectors or []])
        for image in images:
            await self.read(self._check_item, image)
        return images

    def _check_kind(self, by_image: bool) -> None:
        takes_images = self.kind != "vector"
        if by_image == takes_images:
            return
        expected, given = ("an image", "a vector") if takes_images else ("a vector", "an image")
        raise Problem("invalid-request", f"This gallery takes {expected}, not {given}.")

    def _check_item(self, raw: bytes) -> None:
        if self.kind == "audio":
            check_recording(raw, self.settings.max_samples)
        else:
            check_image(raw, self.settings.max_pixels)

    def _prepare(self, raw: bytes) -> Any:
        self._check_item(raw)
        try:
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
        return [_cut(match, count) for match, (_, count) in zip(found, queries, strict=True)]

    def _in(self, pool: ThreadPoolExecutor, call: Callable[..., R], *arguments: Any, **named: Any) -> asyncio.Future[R]:
        return asyncio.get_running_loop().run_in_executor(pool, lambda: call(*arguments, **named))

    async def _watch(self) -> None:
        """Look now and then whether others have changed the gallery."""
        while True:
            self._calibrate_if_due()
            await asyncio.sleep(_WATCH_SECONDS)

    def _calibrate_if_due(self) -> None:
        """Learn anew in the background; what was learned before answers meanwhile."""
        if not self.stopping and not self._asked_to_calibrate:
            self._asked_to_calibrate = True
            self._slow.submit(self._calibrate)

    def _calibrate(self) -> None:
        self._asked_to_calibrate = False
        try:
            generation = self.gallery.store.generation
            if generation != self._calibrated_at and self.gallery.calibration_due:
                self._calibrated_at = generation
                self.gallery.recalibrate()
                self.metrics.calibrations.labels("done").inc()
        except (DataError, StorageError) as error:
            self.metrics.calibrations.labels("failed").inc()
            _LOGGER.warning("the gallery was not recalibrated: %s", error)
        except Exception:
            self.metrics.calibrations.labels("failed").inc()
            _LOGGER.exception("the gallery was not recalibrated")


def _cut(match: Match, count: int) -> Match:
    if len(match.neighbours) <= count:
        return match
    return Match(match.label, match.probability, match.known, match.neighbours[:count], match.candidates, match.reason)


def _failed(task: asyncio.Future[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def as_problem(error: NearkinError) -> Problem:
    """How one of our errors is told to a client; what it says of the server stays here."""
    if isinstance(error, UnreadableError):
        return Problem("unreadable-item", _DAMAGED)
    if isinstance(error, DataError):
        return Problem("invalid-request", str(error))
    if isinstance(error, StorageError):
        _LOGGER.warning("storage: %s", error)
        return Problem("storage", "The gallery is being written by another process, or its disk is full.")
    _LOGGER.error("unexpected: %s", error, exc_info=error)
    return Problem("internal")
