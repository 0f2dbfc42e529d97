"""Attacks on a subject: on every inference that names the classes of sampled queries, on neighbours and in cells."""

from __future__ import annotations

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
from nearkin.attacks.norms import norm_of_inputs
from nearkin.attacks.region import Unit
from nearkin.attacks.voronoi import RobustnessCurves, adversarial_accuracy
from nearkin.audits.calibration import OURS, divided, fit_estimators, tables_of
from nearkin.audits.learned_similarity import DOL, SIM
from nearkin.audits.result import resampling
from nearkin.audits.subject import Subject, draw_rows
from nearkin.errors import DataError
from nearkin.metrics.calibration import accuracy_and_ece, class_table, mean_intervals
from nearkin.metrics.labels import label_codes
from nearkin.progress import Progress
from nearkin.recipe import AuditSection

PROTOTYPES = "prototypes (softmax)"
SOFTMAX = "softmax"
VOTES = ("1NN", "kNN", "WkNN (Dudani)", "WkNN (Gou)")
"""What NED is compared with: they meet what it was attacked with."""

_BATCH, _EMBED_BATCH = 32, 64
_NUMBERS = 2**25
"""Of all items together, at the most: 256 MB in float64."""
_SHARES = (0.25, 0.5, 1.0)
"""Of the median distance to the nearest other item, as further epsilons: where cells begin to matter."""
_RESTARTS, _QUERIES, _MORE = 3, 300, 4
"""Of the checks: random starts, questions of Square, and how many times more steps."""

AttackCell = tuple[str, float]
"""An attack and an epsilon."""


class Scene:
    """Queries to attack and who answers them; refuses what has no pixels to change.

    Args:
        subject: what is audited.
        section: how.

    Attributes:
        rows: the attacked queries, as rows of the subject (q,).
        others: all other items of the same classes, support and queries, as rows.
        support: rows of the items that the estimators were fitted to.
        pixels: of the attacked queries (q, C, H, W).
        truth: their labels (q,).
        fitted: estimators by name, fitted to the support.
        votes: those of them that have no gradient.
        targets: classifiers by name, each attacked for itself.
        embed: pixels to points of the model's space.
        unit: of the epsilons.
        ball_norm: of the perturbations, in that unit.
        norm: the same of pixels: what is checked is then what the model sees.
    """

    def __init__(self, subject: Subject, section: AuditSection) -> None:
        if subject.model is None or subject.pixels is None:
            raise DataError(
                "The robustness suite changes images and embeds them again, so it needs a model and image data, not "
                "embeddings or audio."
            )
        self.subject, self.section = subject, section
        self.support, queries = divided(subject, section.seed)
        known = np.isin(subject.labels, subject.labels[self.support])
        self.rows = draw_rows(queries[known[queries]], section.attacked_queries, section.seed)
        self.others = np.setdiff1d(np.flatnonzero(known), self.rows)
        self.pixels, self.truth = subject.pixels(self.rows), subject.labels[self.rows]
        self.fitted = fit_estimators(subject.embeddings[self.support], subject.labels[self.support], subject.space)
        self.votes = {name: self.fitted[name] for name in VOTES if name in self.fitted}
        self.embed = PixelEmbedder(subject.model)
        self.targets = self._targets(subject)
        self.unit = Unit.of(section.attack_unit, subject.model.spec)
        shape = tuple(self.pixels.shape[1:])
        self.ball_norm = norm_of_inputs(section.attack_norm, self.pixels[0].numel(), section.attack_l1_ratio)
        self.norm = self.unit.measured(self.ball_norm, shape)

    def _targets(self, subject: Subject) -> dict[str, Classifier]:
        embed, named = self.embed, set(self.truth.tolist())
        targets = {
            name: classifier_of_estimator(embed, self.fitted[name], name)
            for name in (OURS, PROTOTYPES)
            if name in self.fitted
        }
        learned = subject.learned
        if learned is not None and named <= set(learned.classes):
            targets[SIM] = classifier_of_similarity(embed, "sim")
            if learned.dense is not None:
                targets[DOL] = classifier_of_similarity(embed, "dol")
        elif subject.class_scores is not None and named <= set(subject.class_scores.names):
            own = subject.class_scores
            targets[SOFTMAX] = classifier_of_scores(embed, own.scores, own.names, SOFTMAX)
        return targets

    def codes(self, target: str) -> Tensor:
        """True classes (q,) as the columns of a target."""
        return class_codes(self.targets[target].classes, self.truth)

    @property
    def smoothed(self) -> np.ndarray:
        """Places of the queries that smoothing certifies, drawn from all of them."""
        return draw_rows(np.arange(len(self.rows)), self.section.smoothed_queries, self.section.seed)

    @torch.no_grad()
    def embedded(self, pixels: Tensor) -> np.ndarray:
        """Embeddings (n, d) of pixels (n, C, H, W)."""
        return torch.cat([self.embed(part) for part in pixels.split(_EMBED_BATCH)]).numpy()

    @torch.no_grad()
    def table(self, name: str, pixels: Tensor) -> np.ndarray:
        """How sure and how right a target is of pixels (q, C, H, W), as a class table (C, bins, 3)."""
        best = torch.cat([self.targets[name](part) for part in pixels.split(_BATCH)]).max(dim=1)
        (codes,) = label_codes(self.truth)
        return class_table(best.values.exp().float().numpy(), (best.indices == self.codes(name)).numpy(), codes)

    def vote_tables(self, pixels: Tensor) -> dict[str, np.ndarray]:
        """Likewise of the votes."""
        return tables_of(self.votes, self.embedded(pixels), self.truth)


def attack_cells(scene: Scene, known: list[Tensor]) -> RobustnessCurves | None:
    """Attack NED on the attacked queries, among the cells of these and of other items; None if not asked for."""
    subject, section = scene.subject, scene.section
    if section.voronoi_items < 2:
        return None
    assert subject.pixels is not None
    room = max(len(scene.rows), min(section.voronoi_items, _NUMBERS // scene.pixels[0].numel()))
    more = np.random.default_rng(section.seed).permutation(scene.others)[: room - len(scene.rows)]
    pixels = torch.cat([scene.pixels, subject.pixels(more)]) if len(more) else scene.pixels
    # The median distance of an item to the nearest other one that differs from it; inf if all are the same.
    distances = scene.norm.distances(pixels.flatten(1), pixels.flatten(1))
    gap = float(distances.masked_fill(distances == 0, torch.inf).amin(dim=1).median())
    return adversarial_accuracy(
        scene.targets[OURS],
        pixels,
        np.concatenate([scene.truth, subject.labels[more]]),
        [*section.attack_epsilons, *(share * gap for share in _SHARES if gap < torch.inf)],
        norm=scene.norm,
        attacked=np.arange(len(scene.rows)),
        candidates=known,
        steps=section.attack_steps,
        whole_cells=section.voronoi_whole_cells,
        seed=section.seed,
        batch_size=_BATCH,
        progress=subject.progress,
    )


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


def attack_classes(scene: Scene) -> AttackedClasses:
    """Attack every target by every attack at every epsilon, and NED by some more at one epsilon."""
    section, progress = scene.section, scene.subject.progress
    clean = {name: scene.table(name, scene.pixels) for name in scene.targets}
    found = AttackedClasses(clean | scene.vote_tables(scene.pixels))
    cells = [(attack, eps) for attack in section.attacks for eps in section.attack_epsilons]
    found.tables = {name: {} for name in found.clean}
    with Progress("Attacking", len(cells) * len(scene.targets) * len(scene.rows), progress) as bar:
        for name, target in scene.targets.items():
            found.pixels[name] = {}
            for attack, eps in cells:
                pixels = published_attack(
                    attack,
                    target,
                    scene.pixels,
                    scene.codes(name),
                    eps,
                    norm=scene.ball_norm,
                    unit=scene.unit,
                    steps=section.attack_steps if attack == "pgd" else None,
                    seed=section.seed,
                    batch_size=_BATCH,
                    advance=bar.advance,
                ).pixels
                found.tables[name][attack, eps] = scene.table(name, pixels)
                if attack == section.attacks[-1]:
                    found.pixels[name][eps] = pixels
                if name == OURS:
                    for vote, table in scene.vote_tables(pixels).items():
                        found.tables[vote][attack, eps] = table
    with Progress("Checking for masked gradients", 1, progress) as bar:
        _check(found, scene)
        bar.advance()
    return found


def attack_towards(scene: Scene) -> dict[float, np.ndarray]:
    """By epsilon whether each query (q,) is named as a class that was drawn for it, by NED under a targeted attack."""
    section, target, codes = scene.section, scene.targets[OURS], scene.codes(OURS)
    count = len(target.classes)
    if not section.targeted or count < 2:
        return {}
    generator = torch.Generator().manual_seed(section.seed)
    others = (codes + torch.randint(1, count, codes.shape, generator=generator)) % count
    options: dict[str, Any] = {"norm": scene.norm, "steps": section.attack_steps, "seed": section.seed}
    named, found = torch.zeros(len(codes), dtype=torch.bool), {}
    with Progress("Attacking towards a class", len(section.attack_epsilons), scene.subject.progress) as bar:
        for eps in section.attack_epsilons:
            # What a smaller ball holds, a larger one does.
            named |= attack_classifier(
                target, scene.pixels, codes, eps, targets=others, batch_size=_BATCH, **options
            ).reached
            found[eps] = named.numpy().copy()
            bar.advance()
    return found


def accuracy_of(table: np.ndarray) -> float:
    """The share of right answers in a class table (C, bins, 3)."""
    return float(accuracy_and_ece(table.sum(axis=0))[0])


def _check(found: AttackedClasses, scene: Scene) -> None:
    """Look for what gradients may have hidden: another loss, restarts, more steps, no gradient, another's points."""
    section, target, codes = scene.section, scene.targets[OURS], scene.codes(OURS)

    def strongest(eps: float) -> str:
        return min(section.attacks, key=lambda attack: found.accuracy(OURS, (attack, eps)))

    def held(wrong: Tensor) -> float:
        return float((~wrong).double().mean())

    # The smallest epsilon may break everything already; where something holds, there is something to check.
    hard = [eps for eps in section.attack_epsilons if found.accuracy(OURS, (strongest(eps), eps)) > 0]
    eps = hard[-1] if hard else section.attack_epsilons[0]
    options: dict[str, Any] = {"norm": scene.norm, "seed": section.seed, "batch_size": _BATCH}
    ours = partial(attack_classifier, target, scene.pixels, codes, eps, **options)
    steps, last = section.attack_steps, section.attacks[-1]
    margin = ours(raised="margin", steps=steps, restarts=_RESTARTS)
    found.checked_eps = eps
    found.checks = {
        f"{strongest(eps)}, as above": found.accuracy(OURS, (strongest(eps), eps)),
        f"PGD on the margin, {_RESTARTS} restarts": held(margin.reached),
        f"PGD, {_MORE} times the steps": held(ours(steps=_MORE * steps).reached),
    }
    if section.attack_norm == "linf":
        square = published_attack(
            SQUARE, target, scene.pixels, codes, eps, unit=scene.unit, steps=_QUERIES, seed=section.seed
        )
        found.checks[f"Square, {_QUERIES} queries, no gradient"] = held(square.wrong)
    for name, pixels in found.pixels.items():
        if name != OURS:
            found.checks[f"{last} on {name}, transferred"] = accuracy_of(scene.table(OURS, pixels[eps]))


def interval_of(table: np.ndarray, section: AuditSection) -> dict[str, tuple[float, tuple[float, float]]]:
    """Accuracy and ECE of a class table, each with its interval over classes."""
    return mean_intervals(table[None], **resampling(section))


def attack_neighbours(scene: Scene) -> tuple[np.ndarray, dict[float, np.ndarray], dict[float, np.ndarray]]:
    """Push each query away from its class, and pull it to a random support item of another class.

    Returns:
        Whether the nearest neighbour of a query is of its class (q,), the same by epsilon once it was pushed away, and
        by epsilon whether the chosen item became the nearest (q,).
    """
    subject, section = scene.subject, scene.section
    gallery = torch.from_numpy(np.ascontiguousarray(subject.embeddings[scene.support]))
    codes, own = (torch.from_numpy(part) for part in label_codes(subject.labels[scene.support], scene.truth))
    shape = tuple(scene.pixels.shape[1:])
    # A random item of another class for each query.
    draws = torch.rand(len(own), len(codes), generator=torch.Generator().manual_seed(section.seed))
    strangers = draws.masked_fill(own.unsqueeze(1) == codes, -1.0).argmax(dim=1)
    push = PushAway(scene.embed, gallery, codes, own, subject.space, shape)
    pull = PullTo(scene.embed, gallery, strangers, subject.space, shape)
    options: dict[str, Any] = {"norm": scene.norm, "batch_size": _BATCH}
    right = ~attack(push, scene.pixels, 0.0, steps=1, **options).reached
    options |= {"steps": section.attack_steps, "seed": section.seed}
    pushed, pulled = {}, {}
    reached: dict[Goal, Tensor] = {goal: torch.zeros(len(scene.rows), dtype=torch.bool) for goal in (push, pull)}
    with Progress("Attacking neighbours", 2 * len(section.attack_epsilons), subject.progress) as bar:
        for eps in section.attack_epsilons:
            for goal in (push, pull):
                # What a smaller ball holds, a larger one does.
                reached[goal] = reached[goal] | attack(goal, scene.pixels, eps, **options).reached
                bar.advance()
            pushed[eps], pulled[eps] = ~reached[push].numpy(), reached[pull].numpy()
    return right.numpy(), pushed, pulled
