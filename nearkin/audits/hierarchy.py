"""The hierarchy suite: do classes that a tree puts together lie together, and how bad are mistakes by the tree?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from nearkin.audits.class_tree import References, draw_distances, draw_trees, references
from nearkin.audits.result import resampling
from nearkin.audits.subject import TREE_FACT, Subject
from nearkin.audits.suites import SuiteResult, suites
from nearkin.data.dataset import Dataset
from nearkin.data.hierarchy import Hierarchy
from nearkin.errors import DataError
from nearkin.metrics.hierarchy import (
    SEVERITY,
    HierarchicalResult,
    class_distance_matrix,
    class_prototypes,
    hierarchical_similarity,
    mean_correlation,
    ranking_metrics,
)
from nearkin.metrics.labels import class_names, label_codes
from nearkin.models import Embedder
from nearkin.models.build import assemble
from nearkin.models.embedder import ClassScores
from nearkin.progress import track
from nearkin.recipe import AuditSection
from nearkin.report.values import value_text
from nearkin.search import exact
from nearkin.spaces import Euclidean, Space, Sphere

INPUT, NORMALISED = "input space", "normalised input space"
_PIXEL_SIDE = 32
_FEWEST = 3
"""Classes that a mean correlation needs: with two, each has one other."""


class Untrained:
    """Views of reference items that no training had a part in.

    Args:
        embedder: the model under audit, whose architecture the random network takes.
        dataset: the reference items: those that a model of seen classes was trained on, else the audited ones.
        baseline: gives the untrained features (n, F) of all reference items, or None; called at most once.
        progress: whether to show bars.
    """

    def __init__(
        self,
        embedder: Embedder,
        dataset: Dataset,
        baseline: Callable[[], np.ndarray | None],
        progress: bool = True,
    ) -> None:
        self.labels = dataset.labels
        self.baseline = baseline
        self._embedder = embedder
        self._dataset = dataset
        self._progress = progress

    @property
    def has_pixels(self) -> bool:
        """Whether the items are images."""
        return self._dataset.kind == "image"

    def pixel_prototypes(self, groups: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The mean image of each class, (C, 3072), and the mean direction of its images, by the name of the space.

        Args:
            groups: rows of each class; images are 32 x 32 RGB, from 0 to 1.
        """
        means: dict[str, list[torch.Tensor]] = {INPUT: [], NORMALISED: []}
        # Class by class: the pixels of all items together may not fit in memory.
        for rows in track(groups, "Averaging pixels", len(groups), self._progress):
            images = [self._dataset.image(int(row)).convert("RGB").resize((_PIXEL_SIDE, _PIXEL_SIDE)) for row in rows]
            pixels = torch.from_numpy(np.stack([np.asarray(image, np.float32).ravel() / 255.0 for image in images]))
            means[INPUT].append(Euclidean().mean(pixels))
            means[NORMALISED].append(Sphere().mean(pixels))
        return {name: torch.stack(found).numpy() for name, found in means.items()}

    def random_network(self, rows: np.ndarray, seed: int) -> np.ndarray:
        """Embeddings (r, d) of items by the model's architecture with weights drawn by a seed."""
        network = assemble(self._embedder.architecture(), pretrained=False, seed=seed)
        return network.eval().encode(self._dataset.select(rows), progress=self._progress)


_PROTOTYPES, _PROXIES, _SCORES = "prototypes", "proxies", "class scores"
_RANKED = 5
"""Classes that are ranked for an item: the k of top-5, AHD@5 and HP@5."""
_AT_ONCE = 4096
"""Items whose class scores are taken at once."""


@suites.register("hierarchy")
def hierarchy_suite(subject: Subject, section: AuditSection) -> SuiteResult:
    """Mean correlations with the tree, top-k, AHD@k, HP@5 and severity of the nearest prototype, HS@k and AHS@k.

    A prototype is the mean of a class's references: the training items of a model of seen classes, else the published
    gallery, else half of each class. Where the run has proxies of all these classes, they are measured likewise.
    """
    hierarchy = needed_tree(subject.hierarchy)
    known = references(subject, section.seed)
    findings = _Findings(hierarchy, known, section)
    space, asked = subject.space, subject.embeddings[known.asked]
    points = {_PROTOTYPES: known.prototypes(known.embeddings, space)}
    names, proxies = ((), None) if subject.proxies is None else subject.proxies
    if proxies is not None and set(names) >= set(known.names):
        points[_PROXIES] = proxies[[names.index(name) for name in known.names]]
    learned = {name: class_distance_matrix(vectors, space) for name, vectors in points.items()}
    for name, matrix in learned.items():
        findings.correlate(name, matrix)
    findings.correlate_untrained(subject)
    if _PROXIES in points:
        findings.notes.append(
            "figures that end in proxies are by the nearest proxy, which is not how a linear classifier (softmax) "
            "decides."
        )
    for name, vectors in points.items():
        findings.rank(asked, vectors, space, "" if name == _PROTOTYPES else f", {name}")
    own = subject.class_scores
    if own is not None and set(own.names) >= set(known.names):
        findings.rank_by(_ranked_by_scores(own, asked, known.names), f", {_SCORES}")
        findings.notes.append(
            f"figures that end in {_SCORES} are by how the loss itself scores the classes it trained."
        )
    findings.similar(subject, subject.embeddings, space)
    found = findings.found
    tree_name = subject.facts.get(TREE_FACT, "")
    found.notes.append(
        f"Hierarchy: {len(known.asked):,} items are given to the nearest of {len(known.names):,} prototypes, the means "
        f"of {len(known.rows):,} references ({known.told}). The tree is {tree_name or 'without a name'}, its distance "
        f"{section.tree_distance}; the diagonal (a class's distance to itself) "
        f"{'counts' if section.diagonal else 'does not count'} in MC."
    )
    if known.dropped:
        found.notes.append(f"Hierarchy: {known.dropped:,} items are of classes without references and not asked.")
    found.notes += [f"Hierarchy: {note}" for note in dict.fromkeys(findings.notes)]
    correlations = [name for name in found.values if name.startswith(("MC, ", "MC of "))]
    found.lower_is_better = tuple(name for name in found.values if name.startswith(("AHD@", SEVERITY)))
    found.numbers = (*found.lower_is_better, *correlations)
    found.primary = next(iter([*correlations, *found.values]))
    found.details["hierarchy"] = {
        "tree name": tree_name,
        "tree": findings.tree.to_newick(),
        "tree distance": section.tree_distance,
        "diagonal": section.diagonal,
        "references": known.told,
    }
    found.baseline = _baseline(subject, known, section, set(found.values))
    titles = {name: f"MC {value_text(found.values.get(f'MC, {name}', math.nan), False)}" for name in learned}
    found.drawings.append(partial(draw_distances, findings.tree, findings.distances, known.names, learned, titles))
    found.drawings.append(partial(draw_trees, findings.tree, known.names, learned))
    return found


@torch.no_grad()
def _ranked_by_scores(own: ClassScores, points: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The likeliest of the classes `names` for each of points (q, d), as places among these, likeliest first."""
    columns = torch.tensor([own.names.index(name) for name in names])
    count = min(_RANKED, len(names))
    parts = torch.from_numpy(np.ascontiguousarray(points)).split(_AT_ONCE)
    return torch.cat([own.scores(part)[:, columns].topk(count, dim=1).indices for part in parts]).numpy()


def needed_tree(hierarchy: Hierarchy | None) -> Hierarchy:
    """The tree, or an error that says how to give one."""
    if hierarchy is None:
        raise DataError(
            "The hierarchy suite needs a tree of the classes: pass one with --tree FILE, or tree= in Python."
        )
    return hierarchy


def _baseline(subject: Subject, known: References, section: AuditSection, wanted: set[str]) -> dict[str, float]:
    """The same of the baseline: its own prototypes, of the same references."""
    if subject.baseline is None or subject.hierarchy is None:
        return {}
    features: np.ndarray | None = subject.baseline
    if subject.known is not None:
        features = None if subject.untrained is None else subject.untrained.baseline()
    if features is None:
        return {}
    findings = _Findings(subject.hierarchy, known, section)
    space = Sphere()
    prototypes = known.prototypes(features, space)
    findings.correlate(_PROTOTYPES, class_distance_matrix(prototypes, space))
    findings.rank(subject.baseline[known.asked], prototypes, space, "")
    findings.similar(subject, subject.baseline, space)
    return {name: value for name, value in findings.found.values.items() if name in wanted}


class _Findings:
    """What was measured so far, and what a reader must know of it.

    Args:
        hierarchy: the tree.
        known: the classes.
        section: how to measure.
    """

    def __init__(self, hierarchy: Hierarchy, known: References, section: AuditSection) -> None:
        self.hierarchy, self.known, self.section = hierarchy, known, section
        self.found = SuiteResult()
        self.notes: list[str] = []
        self.tree = hierarchy.restricted(known.names)
        self.distances = hierarchy.distances(known.names, section.tree_distance)

    def correlate(self, name: str, learned: np.ndarray) -> None:
        """The mean correlation of the tree with distances (C, C) between what stands for the classes."""
        self._correlate(f"MC, {name}", learned, np.arange(len(self.known.names)))
        if (wanted := self.section.correlation_classes) is None:
            return
        places = np.flatnonzero(np.isin(self.known.names, wanted))
        if len(places) < _FEWEST:
            raise DataError(
                f"Of audit.correlation_classes, {len(places)} are among the {len(self.known.names)} audited classes, "
                f"and a correlation needs {_FEWEST}: name more, or set it to null."
            )
        self._correlate(f"MC of {len(places)} classes, {name}", learned, places)

    def _correlate(self, metric: str, learned: np.ndarray, places: np.ndarray) -> None:
        """Of the classes at some places only, among themselves."""
        chosen = np.ix_(places, places)
        names = [self.known.names[place] for place in places]
        found = mean_correlation(self.distances[chosen], learned[chosen], diagonal=self.section.diagonal)
        if math.isnan(found.value):
            self.notes.append(f"{metric} is left out, as no class has others at different distances.")
            return
        rows = list(zip(names, found.per_class.tolist(), strict=True))
        self.found.add(metric, found.value, per_class={name: value for name, value in rows if not math.isnan(value)})
        if found.extreme:
            agree = "class agrees" if found.extreme == 1 else "classes agree"
            decide = "decides" if found.extreme == 1 else "decide"
            self.notes.append(
                f"{found.extreme:,} of {len(rows):,} {agree} fully with the tree (or oppose it) in {metric} and "
                f"{decide} the mean."
            )
        if found.dropped:
            are, them = ("class is", "it") if found.dropped == 1 else ("classes are", "them")
            self.notes.append(f"{found.dropped:,} {are} not in {metric}, as all others are equally far from {them}.")

    def correlate_untrained(self, subject: Subject) -> None:
        """The same of pixels and of a random network, by some references of each class."""
        most, untrained = self.section.untrained_items, subject.untrained
        if untrained is None or not most:
            return
        rows = self.known.drawn(most, self.section.seed)
        if untrained.has_pixels:
            for name, means in untrained.pixel_prototypes(rows).items():
                self.correlate(name, class_distance_matrix(means, Euclidean() if name == INPUT else Sphere()))
        features = untrained.random_network(np.concatenate(rows), self.section.seed)
        codes = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
        means = class_prototypes(features, codes, subject.space).vectors
        self.correlate("random network", class_distance_matrix(means, subject.space))
        self.notes.append(
            f"the mean correlations of pixels (32 x 32) and of a network of the same kind with random weights are of "
            f"up to {most} references a class."
        )

    def rank(self, asked: np.ndarray, vectors: np.ndarray, space: Space, suffix: str) -> None:
        """Top-k, AHD@k, HP@k and severity when items (q, d) are given to the nearest of vectors (C, d)."""
        self.rank_by(exact(asked, vectors, min(_RANKED, len(vectors)), space=space)[1].numpy(), suffix)

    def rank_by(self, ranking: np.ndarray, suffix: str) -> None:
        """The same of a ranking of classes (q, k), the first the one that an item is given to."""
        names = self.known.names
        self._add(ranking_metrics(ranking, self.known.truth, self.distances), names, suffix)
        if len(names) < _RANKED:
            return
        # Whether the neighbourhood of every asked class that has as many classes as are ranked has all of them.
        distances = self.distances[np.unique(self.known.truth)]
        at_rank = np.partition(distances, _RANKED - 1, axis=1)[:, _RANKED - 1]
        if np.isclose(at_rank, distances.max(axis=1)).all():
            self.notes.append(
                f"HP@{_RANKED} is 100 % whatever the model does: in this tree the {_RANKED} classes nearest to any "
                f"are, with ties, all {len(names):,}."
            )

    def similar(self, subject: Subject, embeddings: np.ndarray, space: Space) -> None:
        """HS@k and AHS@k of all audited items (n, d) among themselves."""
        at, others = self.section.hierarchy_similarity_at, len(embeddings) - 1
        if others < at[0]:
            self.notes.append(f"HS@k and AHS@k are left out, as an item has only {others:,} others to find.")
            return
        (codes,) = label_codes(subject.labels)
        names = class_names(subject.labels, codes)
        distances = self.hierarchy.distances(names, self.section.tree_distance)
        result = hierarchical_similarity(embeddings, codes, distances, at=at, area=at[-1], space=space)
        self._add(result, names, "")

    def _add(self, result: HierarchicalResult, names: Sequence[str], suffix: str) -> None:
        if any(math.isnan(value) for value in result.values.values()):
            self.notes.append(f"there is no {SEVERITY}{suffix}, as no item was given to a wrong class.")
        intervals = result.intervals(**resampling(self.section))
        sizes = np.bincount(result.labels)
        for name, value in result.values.items():
            if not math.isnan(value):
                self.found.add(f"{name}{suffix}", value, intervals.get(name))
        for name, values in result.per_query.items():
            sums = np.bincount(result.labels, weights=values)
            self.found.per_class[f"{name}{suffix}"] = {
                names[code]: float(sums[code] / sizes[code]) for code in np.flatnonzero(sizes).tolist()
            }
        self.notes += [f"{note[0].lower()}{note[1:]}" for note in result.notes]
