"""Attacks on a subject: on every inference that names the classes of sampled queries, on neighbours and in cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.attacks import (
    Classifier,
    Goal,
    PixelEmbedder,
    PullTo,
    PushAway,
    attack,
    attack_classifier,
    class_codes,
    classifier_of_estimator,
    classifier_of_scores,
    classifier_of_similarity,
)
from nearkin.attacks.library import SQUARE, published_attack
from nearkin.attacks.norms import Norm
from nearkin.attacks.region import Unit
from nearkin.attacks.voronoi import RobustnessCurves, adversarial_accuracy
from nearkin.audits.calibration import OURS, divided, draw_rows, fit_estimators, tables_of
from nearkin.audits.learned_similarity import DOL, SIM
from nearkin.audits.subject import Subject
from nearkin.confidence import Estimator
from nearkin.errors import DataError
from nearkin.metrics.calibration import accuracy_and_ece, class_table, mean_intervals
from nearkin.metrics.labels import label_codes
from nearkin.progress import Progress
from nearkin.recipe import AuditSection

PROTOTYPES = "prototypes (softmax)"
SOFTMAX = "softmax"
_EMBED_BATCH = 64


@dataclass(frozen=True, eq=False)
class Scene:
    """Queries to attack and who answers them.

    Attributes:
        rows: the attacked queries, as rows of the subject (q,).
        others: all other items of the same classes, support and queries, as rows.
        support: rows of the items that the estimators were fitted to.
        pixels: of the attacked queries (q, C, H, W).
        truth: their labels (q,).
        fitted: estimators by name, fitted to the support.
        targets: classifiers by name, each attacked for itself.
        embed: pixels to points of the model's space.
        unit: of the epsilons.
    """

    rows: np.ndarray
    others: np.ndarray
    support: np.ndarray
    pixels: Tensor
    truth: np.ndarray
    fitted: dict[str, Estimator]
    targets: dict[str, Classifier]
    embed: PixelEmbedder
    unit: Unit

    def codes(self, target: str) -> Tensor:
        """True classes (q,) as the columns of a target."""
        return class_codes(self.targets[target].classes, self.truth)

    def smoothed(self, section: AuditSection) -> np.ndarray:
        """Places of the queries that smoothing certifies, drawn from all of them."""
        return draw_rows(np.arange(len(self.rows)), section.smoothed_queries, section.seed)

    @torch.no_grad()
    def embedded(self, pixels: Tensor) -> np.ndarray:
        """Embeddings (n, d) of pixels (n, C, H, W)."""
        return torch.cat([self.embed(part) for part in pixels.split(_EMBED_BATCH)]).numpy()


def make_scene(subject: Subject, section: AuditSection) -> Scene:
    """Choose queries and fit who answers them; refuse what has no pixels to change."""
    if subject.model is None or subject.pixels is None:
        raise DataError(
            "The robustness suite changes images and embeds them again, so it needs a model and image data, not "
            "embeddings or audio."
        )
    support, queries = divided(subject, section.seed)
    queries = queries[np.isin(subject.labels[queries], subject.labels[support])]
    rows = draw_rows(queries, section.attacked_queries, section.seed)
    fitted = fit_estimators(subject.embeddings[support], subject.labels[support], subject.space)
    embed = PixelEmbedder(subject.model)
    targets = {
        name: classifier_of_estimator(embed, fitted[name], name) for name in (OURS, PROTOTYPES) if name in fitted
    }
    truth = subject.labels[rows]
    named = set(truth.tolist())
    learned = subject.learned
    if learned is not None and named <= set(learned.classes):
        targets[SIM] = classifier_of_similarity(embed, "sim")
        if learned.dense is not None:
            targets[DOL] = classifier_of_similarity(embed, "dol")
    elif subject.class_scores is not None and named <= set(subject.class_scores.names):
        own = subject.class_scores
        targets[SOFTMAX] = classifier_of_scores(embed, own.scores, own.names, SOFTMAX)
    return Scene(
        rows,
        np.setdiff1d(np.flatnonzero(np.isin(subject.labels, subject.labels[support])), rows),
        support,
        subject.pixels(rows),
        truth,
        fitted,
        targets,
        embed,
        Unit.of(section.attack_unit, subject.model.spec),
    )


_NUMBERS = 2**25
"""Of all items together, at the most: 256 MB in float64."""
_SHARES = (0.25, 0.5, 1.0)
"""Of the median distance to the nearest other item, as further epsilons: where cells begin to matter."""
_BATCH = 32


def attack_cells(
    subject: Subject, scene: Scene, section: AuditSection, known: Sequence[torch.Tensor] = ()
) -> RobustnessCurves | None:
    """Attack NED on the attacked queries, among the cells of these and of other items; None if not asked for."""
    if section.voronoi_items < 2:
        return None
    assert subject.pixels is not None
    size = scene.pixels[0].numel()
    room = max(len(scene.rows), min(section.voronoi_items, _NUMBERS // size))
    more = np.random.default_rng(section.seed).permutation(scene.others)[: room - len(scene.rows)]
    pixels = torch.cat([scene.pixels, subject.pixels(more)]) if len(more) else scene.pixels
    # In pixels, measured by the unit: what is checked is then what the model sees.
    norm = scene.unit.measured(section.attack_norm, tuple(pixels.shape[1:]))
    gap = _typical_gap(pixels, norm)
    return adversarial_accuracy(
        scene.targets[OURS],
        pixels,
        np.concatenate([scene.truth, subject.labels[more]]),
        [*section.attack_epsilons, *(share * gap for share in _SHARES if gap < torch.inf)],
        norm=norm,
        attacked=np.arange(len(scene.rows)),
        candidates=known,
        steps=section.attack_steps,
        seed=section.seed,
        batch_size=_BATCH,
        progress=subject.progress,
    )


def _typical_gap(pixels: torch.Tensor, norm: Norm) -> float:
    """The median distance of an item to the nearest other one that differs from it; inf if all are the same."""
    flat = pixels.flatten(1)
    distances = norm.distances(flat, flat)
    nearest = distances.masked_fill(distances == 0, torch.inf).amin(dim=1)
    return float(nearest.median())


_RESTARTS, _QUERIES, _MORE = 3, 300, 4
"""Of the checks: random starts, questions of Square, and how many times more steps."""

VOTES = ("1NN", "kNN", "WkNN (Dudani)", "WkNN (Gou)")
"""What NED is compared with: they meet what it was attacked with."""
AttackCell = tuple[str, float]
"""An attack and an epsilon."""


@dataclass(eq=False)
class AttackedClasses:
    """What attacks left.

    Attributes:
        clean: name to its class table (C, bins, 3) on the queries as they are.
        tables: name to the tables under each attack and epsilon; those of votes are of what NED was attacked with.
        pixels: what each target was attacked with (q, C, H, W), under the last attack at each epsilon.
        checks: accuracy of NED under the strongest attack listed, first, and under attacks that would get through
            masked gradients, at one epsilon.
        checked_eps: that epsilon.
    """

    clean: dict[str, np.ndarray]
    tables: dict[str, dict[AttackCell, np.ndarray]] = field(default_factory=dict)
    pixels: dict[str, dict[float, Tensor]] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    checked_eps: float = 0.0

    def accuracy(self, name: str, cell: AttackCell) -> float:
        """The share of queries that are still named rightly."""
        return accuracy_of(self.tables[name][cell])


def attack_classes(scene: Scene, section: AuditSection, progress: bool) -> AttackedClasses:
    """Attack every target by every attack at every epsilon, and NED by some more at one epsilon."""
    votes = {name: scene.fitted[name] for name in VOTES if name in scene.fitted}
    found = AttackedClasses(_tables(scene, scene.pixels, votes))
    cells = [(attack, eps) for attack in section.attacks for eps in section.attack_epsilons]
    found.tables = {name: {} for name in (*scene.targets, *votes)}
    with Progress("Attacking", len(cells) * len(scene.targets) * len(scene.rows), progress) as bar:
        for name in scene.targets:
            found.pixels[name] = {}
            for attack, eps in cells:
                pixels = _published(scene, name, attack, eps, section, bar.advance)
                found.tables[name][attack, eps] = _table(scene, name, pixels)
                if attack == section.attacks[-1]:
                    found.pixels[name][eps] = pixels
                if name == OURS:
                    for vote, table in tables_of(votes, scene.embedded(pixels), scene.truth).items():
                        found.tables[vote][attack, eps] = table
    with Progress("Checking for masked gradients", 1, progress) as bar:
        _check(found, scene, section)
        bar.advance()
    return found


def accuracy_of(table: np.ndarray) -> float:
    """The share of right answers in a class table (C, bins, 3)."""
    return float(accuracy_and_ece(table.sum(axis=0))[0])


def _published(
    scene: Scene, name: str, attack: str, eps: float, section: AuditSection, advance: Callable[[int], None]
) -> Tensor:
    """What an attack makes of the queries (q, C, H, W)."""
    steps = section.attack_steps if attack == "pgd" else None
    return published_attack(
        attack,
        scene.targets[name],
        scene.pixels,
        scene.codes(name),
        eps,
        norm=section.attack_norm,
        unit=scene.unit,
        steps=steps,
        seed=section.seed,
        batch_size=_BATCH,
        advance=advance,
    ).pixels


def _check(found: AttackedClasses, scene: Scene, section: AuditSection) -> None:
    """Look for what gradients may have hidden: another loss, restarts, more steps, no gradient, another's points."""

    def strongest(eps: float) -> str:
        return min(section.attacks, key=lambda attack: found.accuracy(OURS, (attack, eps)))

    # The smallest epsilon may break everything already; where something holds, there is something to check.
    held = [eps for eps in section.attack_epsilons if found.accuracy(OURS, (strongest(eps), eps)) > 0]
    eps = held[-1] if held else section.attack_epsilons[0]
    target, codes = scene.targets[OURS], scene.codes(OURS)
    ours = partial(
        attack_classifier,
        target,
        scene.pixels,
        codes,
        eps,
        norm=scene.unit.measured(section.attack_norm, tuple(scene.pixels.shape[1:])),
        seed=section.seed,
        batch_size=_BATCH,
    )
    steps, last = section.attack_steps, section.attacks[-1]
    found.checked_eps = eps
    found.checks[f"{strongest(eps)}, as above"] = found.accuracy(OURS, (strongest(eps), eps))
    found.checks[f"PGD on the margin, {_RESTARTS} restarts"] = _held(
        ours(raised="margin", steps=steps, restarts=_RESTARTS).reached
    )
    found.checks[f"PGD, {_MORE} times the steps"] = _held(ours(steps=_MORE * steps).reached)
    if section.attack_norm == "linf":
        square = published_attack(
            SQUARE, target, scene.pixels, codes, eps, unit=scene.unit, steps=_QUERIES, seed=section.seed
        )
        found.checks[f"Square, {_QUERIES} queries, no gradient"] = _held(square.wrong)
    for name, pixels in found.pixels.items():
        if name != OURS:
            found.checks[f"{last} on {name}, transferred"] = accuracy_of(_table(scene, OURS, pixels[eps]))


def _held(wrong: Tensor) -> float:
    return float((~wrong).double().mean())


def _tables(scene: Scene, pixels: Tensor, votes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    own = {name: _table(scene, name, pixels) for name in scene.targets}
    return own | tables_of(votes, scene.embedded(pixels), scene.truth)


@torch.no_grad()
def _table(scene: Scene, name: str, pixels: Tensor) -> np.ndarray:
    """How sure and how right a target is of pixels (q, C, H, W), as a class table (C, bins, 3)."""
    target = scene.targets[name]
    best = torch.cat([target(part) for part in pixels.split(_BATCH)]).max(dim=1)
    (codes,) = label_codes(scene.truth)
    return class_table(best.values.exp().float().numpy(), (best.indices == scene.codes(name)).numpy(), codes)


def interval_of(table: np.ndarray, section: AuditSection) -> dict[str, tuple[float, tuple[float, float]]]:
    """Accuracy and ECE of a class table, each with its interval over classes."""
    return mean_intervals(table[None], resamples=section.resamples, seed=section.seed)


@dataclass(frozen=True, eq=False)
class AttackedNeighbours:
    """What attacks on retrieval did, by epsilon.

    Attributes:
        right: whether the nearest neighbour of a query is of its class (q,), unattacked.
        pushed: the same once it was pushed away from its class.
        pulled: whether the chosen item became the nearest (q,).
    """

    right: np.ndarray
    pushed: dict[float, np.ndarray]
    pulled: dict[float, np.ndarray]


def attack_neighbours(subject: Subject, scene: Scene, section: AuditSection) -> AttackedNeighbours:
    """Push each query away from its class, and pull it to a random support item of another class."""
    gallery = torch.from_numpy(np.ascontiguousarray(subject.embeddings[scene.support]))
    codes, own = (torch.from_numpy(part) for part in label_codes(subject.labels[scene.support], scene.truth))
    shape = tuple(scene.pixels.shape[1:])
    norm = scene.unit.measured(section.attack_norm, shape)
    push = PushAway(scene.embed, gallery, codes, own, subject.space, shape)
    pull = PullTo(scene.embed, gallery, _strangers(codes, own, section.seed), subject.space, shape)
    right = ~attack(push, scene.pixels, 0.0, norm=norm, steps=1, batch_size=_BATCH).reached
    pushed, pulled = {}, {}
    reached: dict[Goal, Tensor] = {goal: torch.zeros(len(scene.rows), dtype=torch.bool) for goal in (push, pull)}
    with Progress("Attacking neighbours", 2 * len(section.attack_epsilons), subject.progress) as bar:
        for eps in section.attack_epsilons:
            for goal in (push, pull):
                found = attack(
                    goal,
                    scene.pixels,
                    eps,
                    norm=norm,
                    steps=section.attack_steps,
                    seed=section.seed,
                    batch_size=_BATCH,
                )
                reached[goal] = reached[goal] | found.reached  # what a smaller ball holds, a larger one does
                bar.advance()
            pushed[eps], pulled[eps] = ~reached[push].numpy(), reached[pull].numpy()
    return AttackedNeighbours(right.numpy(), pushed, pulled)


def _strangers(codes: Tensor, own: Tensor, seed: int) -> Tensor:
    """A random gallery item of another class for each query (q,)."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(len(own), len(codes), generator=generator)
    return draws.masked_fill(own.unsqueeze(1) == codes, -1.0).argmax(dim=1)
