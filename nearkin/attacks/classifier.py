"""Any inference as a classifier that can be attacked or certified: pixels to differentiable log-probabilities.

NED with a slope everywhere: its answers are those of the deployed k neighbours, its gradient that of all support.
Where all of the k nearest are of one class, the probability is 1 and its gradient exactly 0: an attack would stand
still, and the classifier look robust. The kernels of the whole support always slope.

Randomised smoothing: the class that noisy copies of an input are mostly taken for, and how far that is certain.
`g(x) = argmax_c P(f(x + noise) = c)`, noise ~ N(0, sigma^2). If the class has at least the share p > 1/2, no change of
the input below `sigma * Phi^-1(p)` in L2 changes g. The share is bounded from below by samples, with a confidence.
Reference: Cohen, Rosenfeld, Kolter 2019, Certified adversarial robustness via randomized smoothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.attacks.norms import Norm, as_norm
from nearkin.checks import check_whole
from nearkin.confidence import Estimator, KNNVote
from nearkin.confidence.ned import NED
from nearkin.errors import DataError
from nearkin.metrics.calibration import FLOOR
from nearkin.models import Embedder, SimilarityModel
from nearkin.models.similarity_model import Classifier as Inference
from nearkin.models.speed import as_channels_last, inference_copy


def as_inputs(given: Any) -> Tensor:
    """Inputs (B, ...) as a tensor of floats, all finite; arrays are taken too."""
    inputs = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
        kind = f"{inputs.dtype} of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(given).__name__
        raise DataError(f"Inputs to attack must be a float tensor (n, ...), one row per input, not {kind}.")
    if not bool(torch.isfinite(inputs).all()):
        raise DataError("Some inputs contain NaN or infinite values: remove them.")
    return inputs


def as_codes(given: Any, inputs: Tensor) -> Tensor:
    """Classes of inputs as int64 (B,), places among the classes; arrays and lists are taken too."""
    codes = torch.as_tensor(given)
    if codes.shape != inputs.shape[:1] or codes.is_floating_point() or codes.dtype == torch.bool:
        raise DataError(
            f"Each of the {len(inputs)} inputs needs its class as a whole number (see class_codes), not {codes.dtype} "
            f"of shape {tuple(codes.shape)}."
        )
    return codes.to(torch.int64)


def check_size(eps: float) -> None:
    """Refuse what is no size of a perturbation."""
    if isinstance(eps, bool) or not isinstance(eps, int | float | np.number) or not 0 <= float(eps) < math.inf:
        raise DataError(f"eps must be a number of at least 0, not {eps!r}.")


def check_counts(least: int = 1, **counts: int | None) -> None:
    """Refuse counts, given by name, that are no whole numbers from `least` on; None passes."""
    for name, count in counts.items():
        if count is not None:
            check_whole(count, name, least)


def check_scores(scores: Any, codes: Tensor | None = None) -> None:
    """Refuse what is no table of finite scores (b, C), or has no column for some of the classes (b,)."""
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise DataError("The classifier must return scores (b, C), one row per input and one column per class.")
    if not bool(torch.isfinite(scores.detach()).all()):
        raise DataError("The classifier returns scores that are NaN or infinite: check the model.")
    if codes is not None and len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < scores.shape[1]:
        raise DataError(
            f"The classifier has {scores.shape[1]} classes, but the inputs have the classes "
            f"{int(codes.min())} to {int(codes.max())}, counted from 0: pass indices of its classes."
        )


@contextmanager
def in_eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Inside the block nothing drops out or moves a running statistic; then each part is in its own mode."""
    parts = {part: part.training for module in modules for part in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, mode in parts.items():
            part.training = mode


@contextmanager
def at_rest(classifier: Callable[..., Any]) -> Iterator[None]:
    """Inside the block a module is in eval mode and its weights take no gradients; any other function is as it is."""
    modules = [classifier] if isinstance(classifier, nn.Module) else []
    learned = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    with in_eval_mode(*modules):
        for parameter in learned:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in learned:
                parameter.requires_grad_(True)


class NeighbourScores:
    """Log-probabilities of NED as it is deployed, with the gradient of NED over its whole support.

    Classes without a neighbour among the k are ordered by what the whole support says of them, below all that have one.

    Args:
        estimator: fitted.
    """

    def __init__(self, estimator: NED) -> None:
        self.estimator = estimator
        self.whole = copy.copy(estimator)
        self.whole.k = "all"

    def __call__(self, points: Tensor) -> Tensor:
        """Log-probabilities (B, C) of points (B, d)."""
        with torch.no_grad():
            deployed = self.estimator.log_proba(points.detach())
        slope = self.whole.log_proba(points)
        floor = deployed.amin(dim=1, keepdim=True)
        absent = (deployed <= floor) & (floor <= math.log(FLOOR))
        values = torch.where(absent, floor + slope.detach() - slope.detach().amax(dim=1, keepdim=True), deployed)
        return values + (slope - slope.detach())


class Classifier(nn.Module):
    """What is attacked: inputs to log-probabilities of classes, with a gradient down to the inputs.

    Called with pixels (B, C, H, W) in [0, 1], it gives (B, C'). Any module with the same contract and a `classes`
    may take its place.

    Args:
        embed: inputs to points of a space (B, d).
        log_probabilities: points to log-probabilities (B, C'), or to scores of which these are the softmax.
        classes: names of the C' classes.
        name: what to call it in tables.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        log_probabilities: Callable[[Tensor], Tensor],
        classes: Sequence[Any],
        name: str,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.log_probabilities = log_probabilities
        self.classes = tuple(classes)
        self.name = name

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities (B, C') of inputs."""
        return torch.log_softmax(self.log_probabilities(self.embed(inputs)), dim=1)


class PixelEmbedder(nn.Module):
    """A model made for attacks: a copy in eval mode, tuned for speed, from pixels in [0, 1] to points of its space.

    Args:
        embedder: the model, which is not touched.
    """

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        if embedder.spec.kind != "image":
            raise DataError(
                f"Attacks change pixels, and this model takes {embedder.spec.kind}: give a model of images, or attack "
                "a module of your own."
            )
        if embedder.size_feature is not None:
            raise DataError(
                "Attacks change pixels, and this model also takes the sizes of images (model.size_feature): attack one "
                "without."
            )
        self.model = inference_copy(embedder)

    def forward(self, pixels: Tensor) -> Tensor:
        """Points of the space (B, d) of pixels (B, C, H, W) in [0, 1], with gradients down to these."""
        return self.model.embed(as_channels_last(self.model.normalise(pixels)))


def classifier_of_estimator(
    model: Embedder | PixelEmbedder, estimator: Estimator, name: str | None = None
) -> Classifier:
    """Classify by neighbours or prototypes, as a fitted estimator does: NED over a gallery, nearest prototype.

    NED answers as deployed and slopes as its whole support does (`NeighbourScores`). Plain votes have no gradient:
    attack NED over the same support and see what the votes make of what it finds.

    Args:
        model: what embeds.
        estimator: fitted to embeddings of the same model.
        name: what to call it; None: the estimator's class.
    """
    if isinstance(estimator, KNNVote):
        raise DataError(
            "A vote has no gradient to attack by: attack NED over the same support, and ask the vote what it makes of "
            "what was found."
        )
    classes = estimator.classes_.tolist()
    scores = NeighbourScores(estimator) if isinstance(estimator, NED) else estimator.log_proba
    return Classifier(_embedder(model), scores, classes, name or type(estimator).__name__)


def classifier_of_similarity(model: SimilarityModel | PixelEmbedder, by: Inference = "sim") -> Classifier:
    """Classify by a model's own prototypes and learned similarity ("sim"), or by its dense layer ("dol")."""
    copied = _embedder(model)
    twin = copied.model
    if not isinstance(twin, SimilarityModel):
        raise DataError("This model has no learned similarity to classify by: attack an estimator over a support.")
    twin.class_scores(twin.prototypes.points[:1], by)  # a way that the model has not is refused here, not later
    return Classifier(copied, lambda points: twin.class_scores(points, by), twin.classes, by.upper())


def classifier_of_scores(
    model: Embedder | PixelEmbedder, scores: Callable[[Tensor], Tensor], classes: Sequence[Any], name: str = "softmax"
) -> Classifier:
    """Classify by the softmax of scores (B, C') of points (B, d), such as `class_scores` of a loss with proxies."""
    return Classifier(_embedder(model), scores, classes, name)


def class_codes(classes: Sequence[Any], labels: Any) -> Tensor:
    """Labels (n,) as places among the classes, int64.

    Raises:
        DataError: a label is none of the classes.
    """
    book = {name: code for code, name in enumerate(classes)}
    named = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    unknown = [label for label in named if label not in book]
    if unknown:
        raise DataError(
            f"The label {unknown[0]!r} is not among the {len(book)} classes of this classifier: attack items of its "
            "classes."
        )
    return torch.tensor([book[label] for label in named], dtype=torch.int64)


def _embedder(model: Embedder | PixelEmbedder) -> PixelEmbedder:
    return model if isinstance(model, PixelEmbedder) else PixelEmbedder(model)


class NearestPoint(nn.Module):
    """1-NN on inputs: the score of a class is minus the distance to its nearest point, so the nearest one wins.

    Distances are measured by the spread of the points: probabilities of small numbers differ as those of large ones do.
    Computes in float64. On its own data, every point of an open Voronoi cell is of the class of the cell.

    Args:
        points: inputs (n, ...).
        labels: their classes (n,).
        norm: "l2", "linf", or a `Norm`.
    """

    points: Tensor
    codes: Tensor

    def __init__(self, points: Tensor, labels: Sequence[Any], norm: str | Norm = "l2") -> None:
        super().__init__()
        named = labels.tolist() if hasattr(labels, "tolist") else list(labels)
        self.classes = tuple(sorted(set(named)))
        self.norm = as_norm(norm)
        self.name = "1-NN of inputs"
        self.register_buffer("points", points.detach().double().flatten(1))
        self.spread = float((self.points.amax(dim=0) - self.points.amin(dim=0)).amax()) or 1.0
        self.register_buffer("codes", class_codes(self.classes, named))

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities (B, C), the softmax of minus distances over the spread, of inputs (B, ...)."""
        x = inputs.double().flatten(1)
        with torch.no_grad():
            distances = self.norm.distances(x, self.points)
            nearest = [
                distances.masked_fill(self.codes != code, torch.inf).argmin(dim=1) for code in range(len(self.classes))
            ]
        gaps = x.unsqueeze(1) - self.points[torch.stack(nearest, dim=1)]
        return torch.log_softmax(-self.norm.length(gaps) / self.spread, dim=1)


_BATCH = 128


@dataclass(frozen=True, eq=False)
class Certified:
    """What smoothing says of inputs.

    Attributes:
        codes: the class of each (B,), -1 where it abstains.
        radii: L2 radius (B,) within which that class is certain; 0 where it abstains.
        sigma: of the noise.
        alpha: how likely a wrong certificate is, for each input, at the most.
        samples: noisy copies of each input.
        counts: how many of them were taken for the class that was guessed (B,).
    """

    codes: np.ndarray
    radii: np.ndarray
    sigma: float
    alpha: float
    samples: int
    counts: np.ndarray = field(repr=False)

    def certified_accuracy(self, truth: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """The share of inputs (r,) that are named rightly for certain within each of some radii (r,)."""
        right = (self.codes == np.asarray(truth)) & (self.codes >= 0)
        return np.array([float((right & (self.radii >= radius)).mean()) for radius in radii])


def certify(
    classifier: Callable[[Tensor], Tensor],
    inputs: Tensor,
    *,
    sigma: float = 0.25,
    samples: int = 1000,
    guesses: int = 100,
    alpha: float = 0.001,
    seed: int = 0,
    batch_size: int = _BATCH,
    advance: Callable[[int], None] | None = None,
) -> Certified:
    """Classify inputs (B, ...) by the smoothed classifier, each with a radius that is certain.

    Noise is added to the inputs as they are and not cut to any bounds, as the proof wants it.

    Args:
        classifier: inputs to scores (b, C); any will do, it needs no gradient.
        inputs: (B, ...).
        sigma: standard deviation of the noise, in the unit of the inputs.
        samples: noisy copies that bound the share of the class; 1,000 allow radii up to about 2.5 sigma.
        guesses: other noisy copies that choose the class.
        alpha: how likely a certificate may be wrong.
        seed: of the noise.
        batch_size: copies that are classified together.
        advance: told how many inputs are done.
    """
    inputs = as_inputs(inputs)
    check_counts(batch_size=batch_size)
    if not 0 < sigma < math.inf or not 0 < alpha < 1 or samples < 1 or guesses < 1:
        raise DataError(
            f"Smoothing needs sigma above 0, alpha between 0 and 1, and at least one sample and guess, not "
            f"sigma={sigma}, alpha={alpha}, samples={samples}, guesses={guesses}."
        )
    from scipy.stats import norm

    codes, radii, counts = [], [], []
    for number, x in enumerate(inputs):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        with at_rest(classifier):
            guess = int(_votes(classifier, x, sigma, guesses, generator, batch_size).argmax())
            votes = _votes(classifier, x, sigma, samples, generator, batch_size)
        count = int(votes[guess]) if guess < len(votes) else 0
        share = share_bound(count, samples, alpha)
        codes.append(guess if share > 0.5 else -1)
        radii.append(sigma * float(norm.ppf(share)) if share > 0.5 else 0.0)
        counts.append(count)
        if advance is not None:
            advance(1)
    return Certified(
        np.array(codes, dtype=np.int64), np.array(radii), sigma, alpha, samples, np.array(counts, dtype=np.int64)
    )


def share_bound(count: int, samples: int, alpha: float) -> float:
    """What a share is at least, with confidence 1 - alpha, if so many of the samples had it (Clopper and Pearson)."""
    from scipy.stats import beta

    return 0.0 if count == 0 else float(beta.ppf(alpha, count, samples - count + 1))


@torch.no_grad()
def _votes(
    classifier: Callable[[Tensor], Tensor], x: Tensor, sigma: float, copies: int, generator: torch.Generator, size: int
) -> np.ndarray:
    """How many noisy copies are taken for each class."""
    votes = np.zeros(0, dtype=np.int64)
    for start in range(0, copies, size):
        shape = (min(size, copies - start), *x.shape)
        scores = classifier(x + sigma * torch.empty(shape, dtype=x.dtype).normal_(generator=generator))
        check_scores(scores)
        found = np.bincount(scores.argmax(dim=1).numpy(), minlength=scores.shape[1])
        votes = found if not len(votes) else votes + found
    return votes
