"""What training had to do with the domains of a model's data: which trained, which were held out, and their items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.domain_splits import COLUMN
from nearkin.data.splits import Split

HELD_OUT, TRAINED, NOT_TRAINED, UNKNOWN = "held out", "trained on", "not trained on", "training unknown"


@dataclass(frozen=True, eq=False)
class DomainPart:
    """Items that are not under audit themselves: those that trained, or those that validated.

    Args:
        labels: (m,).
        domains: (m,).
        embeddings: gives (m, d).
        baseline: gives what one would have without training, (m, F), or None.
    """

    labels: np.ndarray
    domains: np.ndarray
    embeddings: Callable[[], np.ndarray] = field(repr=False)
    baseline: Callable[[], np.ndarray | None] = field(repr=False)


@dataclass(frozen=True, eq=False)
class TrainedDomains:
    """How a model was trained on domains.

    Args:
        trained: the domains that training items are of; none if nothing was trained (0 steps).
        held_out: the domains that were left out on purpose, if the audit is of these.
        train: the training items, of a model with held-out domains.
        validation: likewise those that chose its weights.
    """

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    train: DomainPart | None = None
    validation: DomainPart | None = None

    def role(self, domain: str) -> str:
        """What training had to do with a domain: "held out", "trained on" or "not trained on"."""
        if domain in self.held_out:
            return HELD_OUT
        return TRAINED if domain in self.trained else NOT_TRAINED


def trained_domains(
    card: dict[str, Any],
    dataset: Dataset,
    divided: Split | None,
    embed: Callable[[Dataset], np.ndarray],
    untrained: Callable[[Dataset], np.ndarray | None],
) -> TrainedDomains | None:
    """How a model was trained on domains; None if its card does not say.

    Args:
        card: of the model.
        dataset: all the data of the audit.
        divided: how the items of this data were divided, of a model of seen classes on its own data.
        embed: gives embeddings of items.
        untrained: gives what one would have without training.
    """
    known = card.get("domains")
    if known is None:
        return None
    trained = tuple(known["train"]) if card.get("steps", 1) else ()
    if divided is None or card["recipe"]["data"]["split"] != "domains":
        return TrainedDomains(trained)

    def part(rows: np.ndarray) -> DomainPart:
        items = dataset.select(rows)
        domains = items.manifest.column(COLUMN)
        return DomainPart(items.labels, domains, lambda: embed(items), lambda: untrained(items))

    return TrainedDomains(trained, tuple(known["test"]), part(divided.train), part(divided.val))
