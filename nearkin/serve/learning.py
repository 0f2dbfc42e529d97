"""Learning in the background: the gallery's probabilities and thresholds, when they are due."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nearkin.errors import DataError, StorageError
from nearkin.serve.metrics import Metrics
from nearkin.serve.problems import Problem
from nearkin.serve.workers import Workers

if TYPE_CHECKING:
    from nearkin.gallery.gallery import Gallery

_LOGGER = logging.getLogger("nearkin.serve")


class Learner:
    """Learns anew when a tenth of the items has changed, or nothing was learned yet; the old answers meanwhile.

    Args:
        gallery: what to learn from.
        workers: who does it.
        metrics: where it is counted.
    """

    def __init__(self, gallery: Gallery, workers: Workers, metrics: Metrics) -> None:
        self._gallery = gallery
        self._workers = workers
        self._metrics = metrics
        self._asked = False
        self._learned_at: int | None = None

    def wake(self) -> None:
        """Look whether it is due, in the workers' threads; to be called in the event loop."""
        if not self._asked:
            # Said before it is asked for: the thread may be done before this one goes on.
            self._asked = True
            try:
                self._workers.submit(self._learn)
            except Problem:
                self._asked = False  # they are busy: the next look is soon enough

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
            _LOGGER.warning("the gallery was not recalibrated: %s", error)
        except Exception:
            self._metrics.calibrations.labels("failed").inc()
            _LOGGER.exception("the gallery was not recalibrated")
