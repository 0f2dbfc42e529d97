"""The gallery behind the routes: threads decode, encode, search and write, so the event loop never blocks.

Expensive answers are cached for each state of the gallery, and calibration runs in the background.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nearkin.allocator import trim_memory
from nearkin.data.decode import UnreadableRecordingError
from nearkin.data.stores import UnreadableError
from nearkin.errors import DataError, ModelError, NearkinError, StorageError
from nearkin.gallery.values import Match
from nearkin.serve.metrics import Metrics
from nearkin.serve.problems import Problem
from nearkin.serve.request import Bounds
from nearkin.serve.security import AuditLog
from nearkin.serve.settings import ServeSettings
from nearkin.serve.uploads import check_image, check_recording, most_text
from nearkin.serve.workers import Batcher, Job, Workers

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery


R = TypeVar("R")

_MOST_KEPT = 32


@dataclass
class _CachedAnswer:
    """An answer for one state of the gallery, and how many requests are waiting for it."""

    state: Any
    job: Job[Any]
    waiting: int = 0

    @property
    def failed(self) -> bool:
        answer = self.job.answer
        return answer.done() and (answer.cancelled() or answer.exception() is not None)


class AnswerCache:
    """Cached answers by name; one that no request is waiting for any more is not begun.

    Args:
        timed: awaits with a timeout.
    """

    def __init__(self, timed: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._timed = timed
        self._kept: dict[tuple[Any, ...], _CachedAnswer] = {}

    async def get(self, key: tuple[Any, ...], state: Any, workers: Workers, call: Callable[[], R]) -> R:
        """The result of a call, cached for this state of the gallery.

        Raises:
            Problem: if the workers are busy or the call times out; once begun, its result is still cached.
        """
        found = self._kept.get(key)
        if found is None or found.state != state or found.failed:
            made = _CachedAnswer(state, workers.submit(call))
            while len(self._kept) >= _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            found = self._kept[key] = made
        found.waiting += 1
        try:
            result: R = await self._timed(asyncio.shield(found.job.answer))
            return result
        finally:
            found.waiting -= 1
            if not found.waiting:
                found.job.withdraw()


_LOGGER = logging.getLogger("nearkin.serve")


class BackgroundCalibration:
    """Recalibrates a gallery when a tenth of its items has changed, or the first time; meanwhile the old one serves.

    Args:
        gallery: the gallery to calibrate.
        workers: threads to do it in.
        metrics: count the calibrations.
    """

    def __init__(self, gallery: Gallery, workers: Workers, metrics: Metrics) -> None:
        self._gallery = gallery
        self._workers = workers
        self._metrics = metrics
        self._asked = False
        self._learned_at: int | None = None

    def wake(self) -> None:
        """Recalibrate if that is due, in a worker; called in the event loop."""
        if not self._asked:
            # Set before submitting: the worker may finish before this thread continues.
            self._asked = True
            try:
                self._workers.submit(self._learn)
            except Problem:
                self._asked = False  # busy: the next call will do

    def _learn(self) -> None:
        self._asked = False
        try:
            generation = self._gallery.store.generation
            if generation != self._learned_at and self._gallery.calibration_due:
                self._gallery.recalibrate()
                self._learned_at = generation
                self._metrics.calibrations.labels("done").inc()
        except (DataError, StorageError) as error:
            self._metrics.calibrations.labels("failed").inc()
            _LOGGER.warning("recalibration failed: %s", error)
        except Exception:
            self._metrics.calibrations.labels("failed").inc()
            _LOGGER.exception("recalibration failed")


_DAMAGED = "The image or recording is truncated or damaged."
_READERS = 4
_MOST_SLOW = 32
_MOST_SEARCHED = 64
_WATCH_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 10.0
_LARGE = 16_000_000
"""Larger images (pixels) and recordings (samples) are decoded one at a time: several would take gigabytes."""
_MOST_UNTRIMMED = 8_000_000
"""Pixels, samples and bytes of files after which freed memory is given back, as the allocator keeps all of it."""


class Service:
    """The gallery as the routes use it.

    Args:
        gallery: an open gallery; the caller closes it.
        settings: limits and sizes.
    """

    def __init__(self, gallery: Gallery, settings: ServeSettings) -> None:
        if gallery.settings.kind != "vector" and gallery.encoder is None:
            raise ModelError("The gallery does not store its model: open it with model=.")
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
        self._keeper = AnswerCache(self.timed)
        self._learner = BackgroundCalibration(gallery, self._slow, self.metrics)
        self._seen: int | None = None
        self._looked: tuple[float, Job[Any]] | None = None
        self._large = threading.Lock()
        self._untrimmed = 0
        self._encodes: Batcher[bytes, np.ndarray] = Batcher(
            lambda samples: self._encoder.run(samples),
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
        self.metrics.watch("nearkin_queue_length", "Images waiting to be embedded.", lambda: self._encodes.waiting)
        self.metrics.watch(
            "nearkin_audit_failures", "Writes that could not be logged to the audit file.", lambda: self.audit.failures
        )
        self.metrics.watch("nearkin_items", "Items in the gallery.", lambda: len(gallery))

    async def start(self) -> None:
        """Start the threads, and calibrate the gallery if that is due."""
        self.gallery.auto_recalibrate = False
        self._loop = asyncio.get_running_loop()
        for part in self._parts():
            part.start()
        self._watching = asyncio.create_task(self._watch())
        self.ready = True

    async def stop(self) -> None:
        """Finish the accepted requests, then end the threads; calls that take too long are abandoned."""
        self.stopping = True
        self.ready = False
        self._watching.cancel()
        self._slow.drop()
        until = self._loop.time() + _STOP_SECONDS
        for part in self._parts():
            if not await asyncio.to_thread(part.close, max(0.0, until - self._loop.time())):
                _LOGGER.warning("a thread did not finish in time and was abandoned")
        self.audit.close()

    def _parts(self) -> tuple[Batcher[Any, Any] | Workers, ...]:
        return (self._encodes, self._matches, self._writer, self._readers, self._slow)

    async def vector(self, image: bytes | None, numbers: list[float] | None) -> np.ndarray:
        """The vector (d,) of a query: an image if the gallery has a model, else numbers."""
        self._check_kind(image is not None)
        if image is not None:
            return await self.timed(self._encodes.submit(image))
        points: np.ndarray = await self.read(lambda: self.gallery.embed(self._rows([numbers or []])))
        return points[0]

    async def identify(self, vector: np.ndarray, neighbours: int) -> Match:
        """Identify a vector (d,)."""
        return await self.timed(self._matches.submit((vector, neighbours)))

    async def read(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """The result of a call on the gallery, made in a thread, with a timeout."""
        return await self.timed(self._readers.submit(lambda: call(*arguments, **named)).answer)

    async def write(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """The result of a call that changes the gallery; never cancelled, even if the client disconnects."""
        result = await asyncio.shield(self._writer.submit(lambda: self._trimmed(0, call, *arguments, **named)).answer)
        self._learner.wake()
        return result

    async def slowly(self, call: Callable[..., R], *arguments: Any) -> R:
        """The result of an expensive call; these run one at a time."""
        return await self.timed(self._slow.submit(lambda: call(*arguments)).answer)

    async def kept(self, name: str, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """The result of an expensive call, cached for each state of the gallery; these run one at a time."""
        key = (name, *arguments, *sorted(named.items()))
        return await self._keeper.get(key, await self.read(self._state), self._slow, lambda: call(*arguments, **named))

    async def kept_apart(self, name: str, call: Callable[[], R]) -> R:
        """The result of a call, cached for each state of the gallery, without waiting for expensive ones."""
        return await self._keeper.get((name,), await self.read(self._state), self._readers, call)

    async def look(self) -> None:
        """Check that the store can be reached, at most once a second.

        Raises:
            Problem: if it times out.
            StorageError, OSError: if it cannot be reached.
        """
        now = self._loop.time()
        if self._looked is None or now - self._looked[0] > _LOOK_SECONDS:
            self._looked = (now, self._readers.submit(self.gallery.store.size))
        await self.timed(asyncio.shield(self._looked[1].answer))

    async def timed(self, work: Awaitable[R]) -> R:
        """Await with a timeout; work that has not begun by then is cancelled."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await work
        except TimeoutError:
            raise Problem("timed-out", "The answer was not ready in time: try again later.") from None
        finally:
            del work  # an error in it holds this frame: the two would keep each other

    @property
    def _encoder(self) -> Any:
        return self.gallery.encoder  # looked up each time: another process may have rebuilt the gallery

    @property
    def bounds(self) -> Bounds:
        """Limits of request bodies."""
        most = self.settings.max_images
        return Bounds(most, most * self.dimension if self.kind == "vector" else 0)

    async def examples(self, images: list[bytes] | None, vectors: list[list[float]] | None) -> Any:
        """What `Gallery.add` takes: checked images, or vectors (n, d)."""
        self._check_kind(images is not None)
        if images is None:
            return await self.read(self._rows, vectors or [])

        def check() -> None:
            most = self.settings.max_call_pixels if self.kind == "image" else inf
            if sum(self._check_item(image) for image in images) > most:
                raise Problem("item-too-large", f"The images of a request may have at most {most} pixels in total.")

        await self.read(check)
        return images

    def _tie(self) -> None:
        """Remember kind and dimension: the event loop must not wait for the store."""
        settings = self.gallery.settings
        self.kind, self.dimension = settings.kind, settings.dimension

    def _state(self) -> tuple[int, Any]:
        """What answers depend on: the items and the calibration."""
        self._tie()
        fitted = self.gallery.calibration
        return self.gallery.store.generation, None if fitted is None else fitted.key

    def _rows(self, vectors: list[list[float]]) -> np.ndarray:
        """Lists of numbers as float32 rows (n, d)."""
        self._tie()
        for numbers in vectors:
            if len(numbers) != self.dimension:
                raise Problem("invalid-request", f"A vector must have {self.dimension} numbers, not {len(numbers)}.")
        with np.errstate(over="ignore"):
            rows = np.asarray(vectors, np.float64).astype(np.float32)
        if not np.isfinite(rows).all():
            raise Problem("invalid-request", "The numbers of a vector must be finite and at most 3.4e38.")
        return rows

    def _check_kind(self, by_image: bool) -> None:
        takes_images = self.kind != "vector"
        if by_image == takes_images:
            return
        expected, given = ("an image", "a vector") if takes_images else ("a vector", "an image")
        raise Problem("invalid-request", f"This gallery takes {expected}, not {given}.")

    def _check_item(self, raw: bytes) -> int:
        """Number of pixels of an image; of samples of a recording."""
        if self.kind == "audio":
            size = check_recording(raw, self.settings.max_samples)
        else:
            size = check_image(raw, self.settings.max_pixels)
        self._untrimmed += size + len(raw) + most_text(raw)
        return size

    def _trimmed(self, size: int, call: Callable[..., R], /, *arguments: Any, **named: Any) -> R:
        """The result of a call; what much decoding, `size` of it here, has taken and freed goes back to the system."""
        try:
            return call(*arguments, **named)
        finally:
            self._untrimmed += size  # only now: another call may have trimmed while this one waited or decoded
            if self._untrimmed > _MOST_UNTRIMMED:
                self._untrimmed = 0
                trim_memory()

    def _prepare(self, raw: bytes) -> Any:
        size = self._check_item(raw)
        try:
            with self._large if size > _LARGE else nullcontext():
                return self._trimmed(size, self._encoder.prepare, raw)
        except DataError as error:
            raise _unreadable(error) from error

    def _identified(self, queries: list[tuple[np.ndarray, int]]) -> list[Match]:
        """Identify vectors at once, for the largest number of neighbours; the others get fewer of them."""
        most = max(count for _, count in queries)
        found = self.gallery.identify_vectors(np.stack([vector for vector, _ in queries]), neighbours=most)
        generation = self.gallery.store.generation
        if generation != self._seen:  # another process may have written, or replaced the vectors
            self._seen = generation
            self._loop.call_soon_threadsafe(self._learner.wake)
        return [
            replace(match, neighbours=match.neighbours[:count]) if len(match.neighbours) > count else match
            for match, (_, count) in zip(found, queries, strict=True)
        ]

    async def _watch(self) -> None:
        """Check now and then whether another process has changed the gallery, and give freed memory back."""
        while True:
            self._learner.wake()
            await asyncio.to_thread(trim_memory)
            await asyncio.sleep(_WATCH_SECONDS)


def _unreadable(error: NearkinError | OSError) -> Problem:
    """What is wrong with a recording; of an image only that something is, since its decoder may say anything."""
    cause = error if isinstance(error, UnreadableError) else error.__cause__
    told = f"The recording {cause.reason}." if isinstance(cause, UnreadableRecordingError) else _DAMAGED
    return Problem("unreadable-item", told)


def as_problem(error: NearkinError | OSError) -> Problem:
    """One of our errors as a problem; what it says about the server is only logged."""
    if isinstance(error, UnreadableError) or isinstance(error.__cause__, UnreadableError):
        return _unreadable(error)
    if isinstance(error, DataError):
        return Problem("invalid-request", str(error))
    if isinstance(error, StorageError | OSError):
        _LOGGER.warning("storage: %s", error)
        return Problem("storage", "Another process is writing the gallery, its disk is full, or its files are gone.")
    _LOGGER.error("unexpected: %s", error, exc_info=error)
    return Problem("internal")
