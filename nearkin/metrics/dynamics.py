"""Training dynamics: what one update did to the points of an episode, and two runs compared by it.

Is the distance learning, or only growing? What one update did to the points of an episode.
With X0 and X1 the points of an episode before and after an update, each centred over its samples:
`alpha = <X0, X1> / |X0|^2` is the scale that explains X1 best, `norm ratio = |X1 - alpha X0| / |X1 - X0|`, and
`psi = d_after / d_before` of a query and a class; psi_con and psi_div are the geometric means over queries with their
own and with the other classes. Reference: Kim 2023, article II, appendix C.

Two runs compared by their training dynamics: geometric means, properly learned checkpoints, and two tests.
Reference: Kim 2023, article II, appendix C.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data.samplers import whole_numbers
from nearkin.errors import DataError
from nearkin.metrics.checks import as_plain
from nearkin.search import as_scorer
from nearkin.spaces import Space, distance_ratio_scores
from nearkin.spaces.space import Representation

DYNAMICS = ("norm_ratio", "con_alpha", "div_alpha", "con_div")
"""The measures that runs are compared by (`dynamics_comparison`)."""


@torch.no_grad()
def episode_dynamics(
    space: Any, before: Any, after: Any, *, way: int, shot: int, representation: Representation = "mean"
) -> dict[str, float]:
    """What an update did to the points of one episode.

    Prototypes are computed anew on each side, so that a pure rescaling of Euclidean points gives norm ratio 0 and
    con-alpha = div-alpha = 1. With the nearest support point in place of the mean, a class keeps the point that was
    nearest before. Distances are taken as `sqrt(d^2 + 1e-10)`.

    A value that is not defined is nan: the norm ratio if nothing moved but by rounding or a translation; all that is
    divided by alpha if the points before lie in one place, or if alpha is not positive, for then X1 is no scaled X0;
    what compares with other classes if there is one class; everything if a point is not finite.

    Args:
        space: where the points lie, a space or its name.
        before: points (way * (shot + query), d), array or tensor, class by class, the first `shot` of each class its
            support.
        after: the same samples after the update, of the same shape.
        way: classes of the episode.
        shot: support points of each class.
        representation: what stands for a class: the mean of its support or the nearest point of it.

    Returns:
        `norm_ratio` in [0, 1] (0: all change was scale), `alpha`, `con_alpha` = psi_con / alpha (below 1: queries
        approach their class), `div_alpha` = psi_div / alpha (above 1: they leave the others), and
        `con_div` = psi_con / psi_div (below 1).

    Raises:
        DataError: if the points are no episode of this many classes with at least one query each.
    """
    space, before, after = _space(space), _points(before), _points(after)
    way, shot = whole_numbers(way=way, shot=shot)
    if representation not in ("mean", "nearest"):
        raise DataError(f"The representation must be 'mean' or 'nearest', not '{representation}'.")
    if before.ndim != 2 or before.shape != after.shape:
        raise DataError(
            "The dynamics of an episode need the same points (n, d) before and after, "
            f"not {tuple(before.shape)} and {tuple(after.shape)}."
        )
    if way < 1 or shot < 1 or len(before) % way or len(before) // way <= shot:
        raise DataError(
            f"{len(before)} points are no episode of {way} classes with {shot} support points and at least one query "
            "each: give way * (shot + query) points, class by class."
        )
    eps = torch.finfo(before.dtype).eps if before.is_floating_point() else 0.0
    before, after = before.double(), after.double()
    if not (before.norm() + after.norm()).isfinite():
        return dict.fromkeys(("norm_ratio", "alpha", "con_alpha", "div_alpha", "con_div"), math.nan)
    ratio, alpha = _scale_change(before, after, eps)
    con, div = _approach(space, before, after, way, shot, representation)
    scale = alpha if alpha > 0 else math.nan
    return {
        "norm_ratio": ratio,
        "alpha": alpha,
        "con_alpha": float(con.exp()) / scale,
        "div_alpha": float(div.exp()) / scale,
        "con_div": float((con - div).exp()),
    }


def _space(given: Any) -> Space:
    space = as_scorer(given)
    if not isinstance(space, Space):
        raise DataError(
            f"Training dynamics need a space, with a mean and distances from 0 on, which {type(space).__name__} is "
            "not: give that of the model, or its name."
        )
    return space


def _points(given: Any) -> Tensor:
    """A tensor of what was given; points need not be finite here."""
    if isinstance(given, Tensor):
        return given
    try:
        return torch.from_numpy(np.array(given))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"The dynamics of an episode need points (n, d) as an array or tensor of numbers, not a "
            f"{type(given).__name__} that is none."
        ) from error


def _scale_change(before: Tensor, after: Tensor, eps: float) -> tuple[float, float]:
    """Norm ratio and alpha of points (n, d); eps is the precision in which they were given."""
    rounding = eps * float(before.norm())
    before, after = before - before.mean(dim=0), after - after.mean(dim=0)
    change = after - before
    spread, moved = float(before.norm()), float(change.norm())
    if spread <= rounding:
        return math.nan, math.nan
    # alpha - 1 from the change itself: steps are small, and what did not move gives exactly 1.
    growth = float((before / spread * (change / spread)).sum())
    # What moved no further than rounding may has no direction to speak of.
    ratio = min(1.0, float((change - growth * before).norm()) / moved) if moved > rounding else math.nan
    return ratio, 1 + growth


def _approach(
    space: Space, before: Tensor, after: Tensor, way: int, shot: int, representation: Representation
) -> tuple[Tensor, Tensor]:
    """Logarithms of psi_con and psi_div, scalars: mean log ratios of distances to the own class, and to the others."""
    distances = []
    nearest: Tensor | None = None  # the support point of each class that was nearest before
    for points in (before, after):
        support, query = points.unflatten(0, (way, -1)).split([shot, len(points) // way - shot], dim=1)
        if representation == "mean":
            distances.append(space.distance(query.flatten(0, 1), space.mean(support)))
            continue
        each = space.distance(query.flatten(0, 1), support.flatten(0, 1)).unflatten(-1, (way, shot))
        nearest = each.argmin(dim=-1, keepdim=True) if nearest is None else nearest
        distances.append(each.gather(-1, nearest).squeeze(-1))
    # Scores with rho = 1 are -ln d, kept finite at d = 0.
    growth = distance_ratio_scores(distances[0], 1.0) - distance_ratio_scores(distances[1], 1.0)
    own = torch.eye(way, dtype=torch.bool, device=growth.device).repeat_interleave(len(growth) // way, dim=0)
    return growth[own].mean(), growth[~own].mean()


_PROPER = {"con_alpha": "below 1", "div_alpha": "above 1", "con_div": "below 1"}
"""Where a measure lies at a checkpoint that learned properly; of the norm ratio nothing is asked."""


@dataclass(frozen=True)
class MeasureComparison:
    """One measure in two runs; pairs hold the first run's value, then the second's.

    Attributes:
        geometric_mean: of the checkpoints with a defined value; nan if there is none.
        proportion: share of those that learned properly (con-alpha < 1, div-alpha > 1, con-div < 1); nan for the norm
            ratio, of which nothing is asked.
        checkpoints: how many have a defined value; only these count.
        undefined: how many do not.
        mann_whitney_p: two-sided p of the Mann-Whitney U test between the values; nan if a run has none.
        fisher_p: two-sided p of Fisher's exact test between the counts behind the proportions; nan without those.
    """

    geometric_mean: tuple[float, float]
    proportion: tuple[float, float]
    checkpoints: tuple[int, int]
    undefined: tuple[int, int]
    mann_whitney_p: float
    fisher_p: float


@dataclass(frozen=True)
class DynamicsComparison:
    """The training dynamics of two runs side by side.

    Attributes:
        names: what to call the runs.
        steps: of each run the steps of its first and its last checkpoint that was taken; nan where rows tell no step.
        measures: measure to its comparison, in the order of `DYNAMICS`.
    """

    names: tuple[str, str]
    steps: tuple[tuple[float, float], tuple[float, float]]
    measures: dict[str, MeasureComparison]

    def notes(self) -> list[str]:
        """What a reader must know: what is counted and left out, steps that differ, how far the tests reach."""
        first, second = self.names
        one = self.measures[DYNAMICS[0]]
        counts = np.add(one.checkpoints, one.undefined)
        said = [
            f"Geometric means over {counts[0]:,} checkpoints of {first} and {counts[1]:,} of {second}, and the share "
            "of checkpoints on the side of 1 where queries approach their own class and leave the others.",
        ]
        said += [
            f"{_title(name)}: the value is not defined at {found.undefined[0]:,} checkpoints of {first} and "
            f"{found.undefined[1]:,} of {second}, which were left out."
            for name, found in self.measures.items()
            if any(found.undefined)
        ]
        if self.steps[0] != self.steps[1] and np.isfinite(self.steps).all():
            said.append(
                f"The checkpoints of {first} lie at steps {_span_text(self.steps[0])}, those of {second} at "
                f"{_span_text(self.steps[1])}: measures change as training goes on, so compare the same steps of both."
            )
        said.append(
            "Checkpoints of one training follow one another and are no independent samples: a small p says that these "
            "two trainings went differently, not that other trainings by the same recipes would."
        )
        return said

    def headings(self) -> list[str]:
        """The columns of the table."""
        return ["measure", *self.names, "Mann-Whitney p", "Fisher p"]

    def rows(self) -> list[list[list[str]]]:
        """The table: one row a measure, and of each cell its lines of text."""
        return [
            [
                [_title(name)],
                *(
                    [_text(mean), *([] if math.isnan(share) else [f"{100 * share:.1f} % {_PROPER[name]}"])]
                    for mean, share in zip(found.geometric_mean, found.proportion, strict=True)
                ),
                [_p_text(found.mann_whitney_p)],
                [_p_text(found.fisher_p)],
            ]
            for name, found in self.measures.items()
        ]

    def to_markdown(self) -> str:
        """The table and its notes."""
        cells = [[", ".join(lines) for lines in row] for row in self.rows()]
        headings = [_one_line(heading) for heading in self.headings()]
        table = [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *cells)]
        return "\n".join([*table, "", *(f"- {_one_line(note)}" for note in self.notes())]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; what is not defined is None."""
        return as_plain(asdict(self) | {"notes": self.notes()})


def compare_dynamics(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    *,
    names: tuple[str, str] = ("first", "second"),
    steps: tuple[float | None, float | None] = (None, None),
) -> DynamicsComparison:
    """Compare the training dynamics of two runs, measure by measure.

    A value that is not defined counts nowhere, and the result says how many there were: missing, None, not finite, a
    norm ratio below 0, another measure that is not positive.

    Args:
        first: the rows of a training log (`Run.history()`); those without any of `DYNAMICS` are passed over.
        second: those of the other run.
        names: what to call the two.
        steps: the first and the last step to count, either None for no limit.

    Raises:
        DataError: if a log has no such row among these steps, or a value that is no number, or is no log.
    """
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != 2:
        raise DataError(f"names must be two names, such as ('first', 'second'), not {names!r}.")
    low, high = steps
    if low is not None and high is not None and low > high:
        raise DataError(f"The first step, {low:,}, is after the last, {high:,}: swap them.")
    found = [_checkpoints(log, name, steps) for log, name in zip((first, second), names, strict=True)]
    spans = [(float(at.min()), float(at.max())) for at, _ in found]
    return DynamicsComparison(
        names=(names[0], names[1]),
        steps=(spans[0], spans[1]),
        measures={
            measure: _compare(measure, found[0][1][:, place], found[1][1][:, place])
            for place, measure in enumerate(DYNAMICS)
        },
    )


def _checkpoints(
    log: Sequence[Mapping[str, Any]], name: str, steps: tuple[float | None, float | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Steps (n,), nan where a row has none, and values (n, 4) of the rows that have some of the measures."""
    if not isinstance(log, Sequence) or not all(isinstance(row, Mapping) for row in log):
        raise DataError(
            f"The log of {name} must be a list of rows, each a mapping of names to numbers, as Run(...).history() "
            f"returns, not a {type(log).__name__}."
        )
    rows = [row for row in log if any(key in row for key in DYNAMICS)]
    if not rows:
        raise DataError(
            f"The log of {name} has no training dynamics: train with training.schedule set to episodic and "
            "training.episodic.record_every to fewer episodes than there are."
        )
    at = _numbers([[row.get("step")] for row in rows], name)[:, 0]
    values = _numbers([[row.get(key) for key in DYNAMICS] for row in rows], name)
    first, last = steps
    kept = (first is None or at >= first) & (last is None or at <= last) & np.ones(len(at), dtype=bool)
    if not kept.any():
        ends = [f"from step {first:,.0f} on"] if first is not None else []
        ends += [f"up to step {last:,.0f}"] if last is not None else []
        raise DataError(
            f"The log of {name} has no checkpoint {' and '.join(ends)}: "
            + (f"its {len(at):,} lie at steps {_span_text(at)}." if np.isfinite(at).all() else "its rows have no step.")
        )
    return at[kept], values[kept]


def _one_line(text: str) -> str:
    """Text that a table of Markdown can hold."""
    return " ".join(text.split()).replace("|", "\\|")


def _span_text(at: np.ndarray | tuple[float, float]) -> str:
    return f"{min(at):,.0f} to {max(at):,.0f}"


def _numbers(rows: Sequence[Sequence[Any]], name: str) -> np.ndarray:
    try:
        return np.array([[math.nan if value is None else float(value) for value in row] for row in rows])
    except (TypeError, ValueError) as error:
        raise DataError(f"The log of {name} has a training-dynamics value that is not a number: {error}.") from error


def _compare(measure: str, first: np.ndarray, second: np.ndarray) -> MeasureComparison:
    """One measure of checkpoints (n,) and (m,)."""
    from scipy.stats import fisher_exact, mannwhitneyu

    nothing = measure == "norm_ratio"  # only that may be 0, of what did nothing but grow
    both = [values[np.isfinite(values) & ((values > 0) | (nothing & (values == 0)))] for values in (first, second)]
    counts = len(both[0]), len(both[1])
    sides = [values > 1 if _PROPER.get(measure) == "above 1" else values < 1 for values in both]
    table = [[int(side.sum()), int((~side).sum())] for side in sides]
    tested, asked = all(counts), measure in _PROPER
    shares = [row[0] / sum(row) if sum(row) and asked else math.nan for row in table]
    return MeasureComparison(
        geometric_mean=(_geometric_mean(both[0]), _geometric_mean(both[1])),
        proportion=(shares[0], shares[1]),
        checkpoints=counts,
        undefined=(len(first) - counts[0], len(second) - counts[1]),
        mann_whitney_p=float(mannwhitneyu(*both).pvalue) if tested else math.nan,
        fisher_p=float(fisher_exact(table)[1]) if tested and asked else math.nan,
    )


def _geometric_mean(values: np.ndarray) -> float:
    """0 if any value is 0, nan if there is none."""
    if not len(values):
        return math.nan
    return float(np.exp(np.log(values).mean())) if values.all() else 0.0


def _title(measure: str) -> str:
    return "Norm ratio" if measure == "norm_ratio" else f"{measure.replace('_', '-').capitalize()} ratio"


def _text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.5f}"


def _p_text(p: float) -> str:
    """Five decimals, or the power of ten below which p lies."""
    if 0 < p < 1e-5:
        return f"< 1e-{math.floor(-math.log10(p))}"
    return "< 1e-300" if p == 0 else _text(p)
