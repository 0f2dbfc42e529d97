"""Training dynamics: the measures of an update against naive loops and closed forms, and the comparison of two logs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import fisher_exact, gmean, mannwhitneyu

from nearkin.errors import DataError
from nearkin.metrics.dynamics import DYNAMICS, compare_dynamics, episode_dynamics
from nearkin.spaces import make_space

EUCLIDEAN = make_space("euclidean")
SPACES = [EUCLIDEAN, make_space("sphere"), make_space("sphere", metric="angle"), make_space("poincare-ball")]
KEYS = {"norm_ratio", "alpha", "con_alpha", "div_alpha", "con_div"}


def episode(way=3, shot=2, query=4, d=5, step=0.1, seed=0):
    """Points of an episode before and after a step (way * (shot + query), d)."""
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(way * (shot + query), d, generator=generator, dtype=torch.float64)
    return before, before + step * torch.randn(before.shape, generator=generator, dtype=torch.float64)


def in_loops(space, before, after, way, shot, representation):
    """The definitions of article II, appendix C, word by word."""
    each = len(before) // way
    x0, x1 = (points - points.mean(dim=0) for points in (before, after))
    alpha = float((x0 * x1).sum() / (x0 * x0).sum())
    con, div = [], []
    for own in range(way):
        for item in range(own * each + shot, (own + 1) * each):
            for other in range(way):
                support = slice(other * each, other * each + shot)
                chosen = [
                    float(space.distance(before[item : item + 1], before[place : place + 1]))
                    for place in range(support.start, support.stop)
                ]
                lengths = []
                for points in (before, after):
                    if representation == "mean":
                        stands = space.mean(points[support])
                    else:
                        stands = points[support.start + int(np.argmin(chosen))]
                    distance = float(space.distance(points[item : item + 1], stands[None]))
                    lengths.append(math.sqrt(distance**2 + 1e-10))
                (con if other == own else div).append(lengths[1] / lengths[0])
    return {
        "norm_ratio": float((x1 - alpha * x0).norm() / (x1 - x0).norm()),
        "alpha": alpha,
        "con_alpha": gmean(con) / alpha,
        "div_alpha": gmean(div) / alpha,
        "con_div": gmean(con) / gmean(div),
    }


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("representation", ["mean", "nearest"])
@pytest.mark.parametrize(("way", "shot", "query"), [(3, 1, 2), (2, 3, 4), (4, 5, 1)])
def test_measures_are_those_of_the_loops(space, representation, way, shot, query):
    # A large step, so that another support point is the nearest one afterwards.
    before, after = (space.project(0.3 * points) for points in episode(way, shot, query, step=0.9))
    found = episode_dynamics(space, before, after, way=way, shot=shot, representation=representation)
    assert set(found) == KEYS
    assert all(type(value) is float for value in found.values())
    assert found == pytest.approx(in_loops(space, before, after, way, shot, representation), rel=1e-9)


def test_the_support_point_that_was_nearest_is_kept():
    """The point at 2 would be nearest afterwards, at distance 1; the one at 0 was, and is now 3 away."""
    before = torch.tensor([[0.0], [2.0], [0.5], [10.0], [11.0], [10.5]])
    after = torch.tensor([[0.0], [2.0], [3.0], [10.0], [11.0], [10.5]])
    options = {"way": 2, "shot": 2, "representation": "nearest"}
    found = episode_dynamics(EUCLIDEAN, before, after, **options)
    con = math.sqrt((3 / 0.5) * 1)
    assert found["con_alpha"] * found["alpha"] == pytest.approx(con, rel=1e-6)
    div = math.sqrt((7 / 9.5) * 1)
    assert found["con_div"] == pytest.approx(con / div, rel=1e-6)


@pytest.mark.parametrize("scale", [0.2, 0.999, 1.5, 40.0])
@pytest.mark.parametrize("representation", ["mean", "nearest"])
def test_a_pure_rescaling_is_no_learning(scale, representation):
    before, _ = episode()
    found = episode_dynamics(EUCLIDEAN, before, scale * before + 3.0, way=3, shot=2, representation=representation)
    assert found["norm_ratio"] == pytest.approx(0, abs=1e-9)
    assert found["alpha"] == pytest.approx(scale)
    assert [found[key] for key in ("con_alpha", "div_alpha", "con_div")] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("angle", [0.01, 0.5, 1.2])
def test_a_rotation_keeps_distances_and_has_the_ratio_of_its_angle(angle):
    """In the plane <X0, R X0> = cos a |X0|^2, so phi = sin a / (2 sin(a / 2)) = cos(a / 2)."""
    before, _ = episode(d=2)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    found = episode_dynamics(EUCLIDEAN, before, before @ turn, way=3, shot=2)
    assert found["alpha"] == pytest.approx(math.cos(angle))
    assert found["norm_ratio"] == pytest.approx(math.cos(angle / 2))
    assert found["con_alpha"] == pytest.approx(1 / math.cos(angle))
    assert found["con_div"] == pytest.approx(1)


def test_alpha_is_the_scale_that_fits_best():
    before, after = episode(step=0.7)
    x0, x1 = ((points - points.mean(dim=0)).numpy() for points in (before, after))
    best = minimize_scalar(lambda alpha: np.linalg.norm(x1 - alpha * x0))
    found = episode_dynamics(EUCLIDEAN, before, after, way=3, shot=2)
    assert found["alpha"] == pytest.approx(best.x, abs=1e-6)
    assert found["norm_ratio"] == pytest.approx(best.fun / np.linalg.norm(x1 - x0))


def test_queries_that_move_to_their_class_learn_properly():
    before, _ = episode(way=4, shot=1, query=6)
    points = before.unflatten(0, (4, 7)).clone()
    points[:, 1:] += 0.2 * (points[:, :1] - points[:, 1:])
    found = episode_dynamics(EUCLIDEAN, before, points.flatten(0, 1), way=4, shot=1)
    assert found["con_alpha"] < 1
    assert found["con_div"] < 1
    # Every query goes a fifth of its way, so psi_con is 0.8 exactly.
    assert found["con_alpha"] * found["alpha"] == pytest.approx(0.8)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    step=st.floats(1e-4, 5),
    way=st.integers(2, 4),
    shot=st.integers(1, 3),
    shift=st.lists(st.floats(-20, 20), min_size=6, max_size=6),
    representation=st.sampled_from(["mean", "nearest"]),
)
def test_the_norm_ratio_is_a_share_and_places_do_not_matter(seed, step, way, shot, shift, representation):
    before, after = episode(way, shot, 2, d=3, step=step, seed=seed)
    options = {"way": way, "shot": shot, "representation": representation}
    found = episode_dynamics(EUCLIDEAN, before, after, **options)
    assert 0 <= found["norm_ratio"] <= 1
    moves = torch.tensor(shift, dtype=torch.float64)
    moved = episode_dynamics(EUCLIDEAN, before + moves[:3], after + moves[3:], **options)
    assert moved == pytest.approx(found, rel=1e-6, nan_ok=True)


@given(factor=st.floats(0.01, 100), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_unit_of_length_does_not_matter(factor, seed):
    before, after = episode(seed=seed)
    found = episode_dynamics(EUCLIDEAN, before, after, way=3, shot=2)
    # Not exactly: distances have a floor of 1e-5.
    assert episode_dynamics(EUCLIDEAN, factor * before, factor * after, way=3, shot=2) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_did_not_move_has_no_norm_ratio(dtype):
    before = episode()[0].to(dtype)
    found = episode_dynamics(EUCLIDEAN, before, before.clone(), way=3, shot=2)
    assert math.isnan(found.pop("norm_ratio"))
    assert found == {"alpha": 1.0, "con_alpha": 1.0, "div_alpha": 1.0, "con_div": 1.0}


def test_movement_by_rounding_alone_is_none():
    before = episode()[0].float()
    found = episode_dynamics(EUCLIDEAN, before, (before + 100) - 100, way=3, shot=2)
    assert 0 < found["norm_ratio"] <= 1  # rounded at 100, this is movement
    found = episode_dynamics(EUCLIDEAN, before, torch.nextafter(before, torch.tensor(9.0)), way=3, shot=2)
    assert math.isnan(found["norm_ratio"])


def test_points_in_one_place_have_no_scale():
    _, after = episode()
    found = episode_dynamics(EUCLIDEAN, torch.full_like(after, 0.1), after, way=3, shot=2)
    assert all(math.isnan(found[key]) for key in ("norm_ratio", "alpha", "con_alpha", "div_alpha"))
    assert math.isfinite(found["con_div"])


def test_points_that_turned_round_are_no_scaled_points():
    before, _ = episode()
    found = episode_dynamics(EUCLIDEAN, before, -before, way=3, shot=2)
    assert found["alpha"] == pytest.approx(-1)
    assert math.isnan(found["con_alpha"])
    assert math.isnan(found["div_alpha"])
    assert found["con_div"] == pytest.approx(1)


def test_queries_on_their_prototype_have_a_distance():
    before = torch.tensor([[0.0], [0.0], [4.0], [4.0]])
    after = torch.tensor([[0.0], [1.0], [4.0], [4.0]])
    found = episode_dynamics(EUCLIDEAN, before, after, way=2, shot=1)
    assert found["con_alpha"] * found["alpha"] == pytest.approx(math.sqrt(1 / 1e-5), rel=1e-6)
    back = episode_dynamics(EUCLIDEAN, after, before, way=2, shot=1)
    assert back["con_alpha"] * back["alpha"] == pytest.approx(math.sqrt(1e-5), rel=1e-6)


def test_one_class_has_no_others():
    before, after = episode(way=1, shot=1, query=1)
    found = episode_dynamics(EUCLIDEAN, before, after, way=1, shot=1)
    assert math.isnan(found["div_alpha"])
    assert math.isnan(found["con_div"])
    assert math.isfinite(found["con_alpha"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("side", [0, 1])
def test_points_that_are_not_finite_give_nan(bad, side):
    points = list(episode())
    points[side] = points[side].clone()
    points[side][4, 2] = bad
    found = episode_dynamics(EUCLIDEAN, *points, way=3, shot=2)
    assert set(found) == KEYS
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize(
    ("shape", "way", "shot", "words"),
    [
        ((10, 3), 3, 1, "10"),
        ((9, 3), 3, 3, "query"),
        ((1, 3), 1, 1, "episode"),
        ((9, 3), 0, 1, "episode"),
        ((9, 3), 3, 0, "support"),
        ((9,), 3, 1, r"\(9,\)"),
    ],
)
def test_what_is_no_episode_is_refused(shape, way, shot, words):
    points = torch.zeros(shape)
    with pytest.raises(DataError, match=words):
        episode_dynamics(EUCLIDEAN, points, points, way=way, shot=shot)


def test_sides_that_differ_and_unknown_representations_are_refused():
    with pytest.raises(DataError, match=r"\(4, 3\)"):
        episode_dynamics(EUCLIDEAN, torch.zeros(4, 2), torch.zeros(4, 3), way=2, shot=1)
    with pytest.raises(DataError, match="median"):
        episode_dynamics(EUCLIDEAN, torch.zeros(4, 2), torch.zeros(4, 2), way=2, shot=1, representation="median")


def test_arrays_and_names_of_spaces_will_do():
    before, after = episode()
    found = episode_dynamics("sphere", before.numpy(), after.tolist(), way=np.int64(3), shot=2)
    assert found == episode_dynamics(make_space("sphere"), before, after, way=3, shot=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"way": 3.0}, "way"),
        ({"shot": "2"}, "shot"),
        ({"space": "spher"}, "spher"),
        ({"space": "cosine"}, "(?i)cosine"),
        ({"space": 3}, "space"),
        ({"before": None}, "NoneType"),
        ({"after": [["a"]]}, "list"),
        ({"after": [[1.0], [1.0, 2.0]]}, "list"),
    ],
)
def test_what_is_no_space_point_or_number_is_refused(change, words):
    before, after = episode()
    with pytest.raises(DataError, match=words):
        episode_dynamics(**({"space": "euclidean", "before": before, "after": after, "way": 3, "shot": 2} | change))


def test_no_gradient_is_kept():
    before, after = (points.requires_grad_() for points in episode())
    assert math.isfinite(episode_dynamics(EUCLIDEAN, before, after, way=3, shot=2)["alpha"])
    assert before.grad is None


def log(count=40, seed=0, shift=0.0, every=100):
    """A training log: dynamics at every `every`-th step among rows of other things."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(every, every * count + 1, every):
        con, div = np.exp(rng.normal([-0.002 - shift, 0.001 + shift], 0.004))
        ratio = float(rng.uniform(0.9, 1.0))
        rows.append({"step": step - 50, "loss": 1.0, "accuracy": 0.5})
        rows.append(
            {"step": step, "norm_ratio": ratio, "alpha": 1.0, "con_alpha": con, "div_alpha": div, "con_div": con / div}
        )
    return rows


def column(rows, key):
    return np.array([row[key] for row in rows if key in row])


def test_the_comparison_is_that_of_scipy():
    first, second = log(60, seed=1), log(45, seed=2, shift=0.001)
    found = compare_dynamics(first, second)
    assert tuple(found.measures) == DYNAMICS
    for key, measure in found.measures.items():
        a, b = column(first, key), column(second, key)
        assert measure.checkpoints == (60, 45)
        assert measure.undefined == (0, 0)
        assert measure.geometric_mean == pytest.approx((gmean(a), gmean(b)))
        assert measure.mann_whitney_p == pytest.approx(mannwhitneyu(a, b, alternative="two-sided").pvalue)
        if key == "norm_ratio":
            assert np.isnan([*measure.proportion, measure.fisher_p]).all()
            continue
        good = [(values > 1) if key == "div_alpha" else (values < 1) for values in (a, b)]
        assert measure.proportion == pytest.approx(tuple(one.mean() for one in good))
        table = [[int(one.sum()), int((~one).sum())] for one in good]
        assert measure.fisher_p == pytest.approx(fisher_exact(table)[1])


def test_the_order_of_the_runs_does_not_change_the_tests():
    first, second = log(30, seed=1), log(30, seed=2, shift=0.002)
    forth, back = compare_dynamics(first, second), compare_dynamics(second, first)
    for key in DYNAMICS:
        assert forth.measures[key].geometric_mean == back.measures[key].geometric_mean[::-1]
        assert forth.measures[key].mann_whitney_p == pytest.approx(back.measures[key].mann_whitney_p)


def test_a_log_does_not_differ_from_itself():
    found = compare_dynamics(log(), log())
    for measure in found.measures.values():
        assert measure.mann_whitney_p == pytest.approx(1, abs=0.02)
        assert math.isnan(measure.fisher_p) or measure.fisher_p == pytest.approx(1)


@pytest.mark.parametrize("bad", [math.nan, None, math.inf, -0.5, 0.0])
def test_undefined_values_count_nowhere_and_are_told(bad):
    first, second = log(30, seed=1), log(30, seed=2)
    spoiled = [dict(row, con_alpha=bad) if row.get("step") in (300, 700) else row for row in first]
    found = compare_dynamics(spoiled, second, names=("s", "dr"))
    kept = [row for row in first if row["step"] not in (300, 700)]
    measure = found.measures["con_alpha"]
    assert measure.checkpoints == (28, 30)
    assert measure.undefined == (2, 0)
    expected = compare_dynamics(kept, second).measures["con_alpha"]
    assert measure.geometric_mean == expected.geometric_mean
    assert measure.proportion == expected.proportion
    assert measure.fisher_p == expected.fisher_p
    assert found.measures["con_div"].checkpoints == (30, 30)
    told = [note for note in found.notes() if "not defined" in note]
    assert told == ["Con-alpha ratio: the value is not defined at 2 checkpoints of s and 0 of dr, which were left out."]


def test_a_norm_ratio_of_zero_is_a_value():
    first = log(20)
    first[1]["norm_ratio"] = 0.0
    measure = compare_dynamics(first, log(20, seed=3)).measures["norm_ratio"]
    assert measure.checkpoints == (20, 20)
    assert measure.geometric_mean[0] == 0


def test_a_measure_without_any_value_is_told_and_not_tested():
    first = [dict(row, con_alpha=None) if "con_alpha" in row else row for row in log(5)]
    found = compare_dynamics(first, log(5, seed=1))
    measure = found.measures["con_alpha"]
    assert math.isnan(measure.geometric_mean[0])
    assert math.isnan(measure.mann_whitney_p)
    assert math.isnan(measure.fisher_p)
    assert measure.checkpoints == (0, 5)
    assert "| Con-alpha ratio | – |" in found.to_markdown()


def test_a_range_of_steps_is_that_part_of_the_logs():
    first, second = log(40, seed=1), log(40, seed=2)
    found = compare_dynamics(first, second, steps=(1000, 2000))
    parts = [[row for row in rows if 1000 <= row["step"] <= 2000] for rows in (first, second)]
    assert found.to_dict() == compare_dynamics(*parts).to_dict()
    assert found.measures["con_div"].checkpoints == (11, 11)
    assert found.steps == ((1000, 2000), (1000, 2000))
    assert compare_dynamics(first, second, steps=(None, 300)).measures["con_div"].checkpoints == (3, 3)
    assert compare_dynamics(first, second, steps=(3900, None)).measures["con_div"].checkpoints == (2, 2)


def test_runs_of_different_length_are_told():
    notes = compare_dynamics(log(40), log(10), names=("long", "short")).notes()
    assert any("4,000" in note for note in notes)
    assert not any("1,000" in note for note in compare_dynamics(log(10), log(10, seed=1)).notes())


def test_the_limits_of_the_tests_are_always_told():
    assert "independent" in compare_dynamics(log(3), log(3)).notes()[-1]


@pytest.mark.parametrize(
    ("first", "second", "options", "words"),
    [
        ([], log(3), {}, r"training\.schedule"),
        (log(3), [{"step": 1, "loss": 2.0}], {}, "second"),
        (log(3), [{"step": 1, "alpha": 1.0}], {}, "second"),
        (
            log(3),
            log(9),
            {"steps": (500, None)},
            "500",
        ),
        (log(3), log(3), {"steps": (110, 120)}, "120"),
        (log(3), log(3), {"steps": (None, 20)}, "20"),
        (log(3), log(3), {"steps": (9, 8)}, "step"),
        ([dict.fromkeys(DYNAMICS, "high")], log(3), {}, "number"),
        ([{key: [1.0] for key in DYNAMICS}], log(3), {}, "number"),
        ([dict.fromkeys(DYNAMICS, 1.0)], log(3), {"steps": (1, 2)}, "step"),
        (None, log(3), {}, "NoneType"),
        (log(3), [3, None], {}, "second"),
        (log(3), "con_div", {}, "second"),
        (log(3), log(3), {"names": ("a",)}, "names"),
        (log(3), log(3), {"names": "ab"}, "names"),
        (log(3), log(3), {"names": None}, "names"),
    ],
)
def test_logs_that_cannot_be_compared_are_refused(first, second, options, words):
    with pytest.raises(DataError, match=words):
        compare_dynamics(first, second, **options)


def test_rows_need_no_step():
    bare = [{key: row[key] for key in DYNAMICS} for row in log(5) if "con_div" in row]
    found = compare_dynamics(bare, log(5, seed=1))
    assert found.measures["con_div"].checkpoints == (5, 5)
    assert np.isnan(found.steps[0]).all()
    assert found.to_dict()["steps"] == [[None, None], [100.0, 500.0]]


def test_the_result_is_plain_json():
    told = compare_dynamics(log(5), log(5, seed=1)).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["measures"]["norm_ratio"]["proportion"] == [None, None]
    assert told["names"] == ["first", "second"]


def test_the_table_has_a_line_for_each_measure():
    found = compare_dynamics(log(200, seed=1), log(200, seed=2, shift=0.02), names=("a|b", "dr"))
    lines = found.to_markdown().splitlines()
    assert lines[0] == r"| measure | a\|b | dr | Mann-Whitney p | Fisher p |"
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert [line.split(" | ")[0] for line in lines[2:6]] == [
        "| Norm ratio",
        "| Con-alpha ratio",
        "| Div-alpha ratio",
        "| Con-div ratio",
    ]
    measure = found.measures["div_alpha"]
    p = mannwhitneyu(column(log(200, seed=1), "div_alpha"), column(log(200, seed=2, shift=0.02), "div_alpha")).pvalue
    power = math.floor(-math.log10(p))
    assert lines[4].split(" | ")[1:4] == [
        f"{measure.geometric_mean[0]:.5f}, {100 * measure.proportion[0]:.1f} % above 1",
        f"{measure.geometric_mean[1]:.5f}, {100 * measure.proportion[1]:.1f} % above 1",
        f"< 1e-{power}",
    ]
    assert 10.0**-power > p > 10.0 ** -(power + 1)
    assert lines[2].endswith("| – |")
    assert lines[7:] == ["- " + note.replace("|", "\\|") for note in found.notes()]
    broken = compare_dynamics(log(3), log(4), names=("a\nb", "c\n\n| d"))
    assert len(broken.to_markdown().splitlines()) == 7 + len(broken.notes())
    assert r"| a b | c \| d |" in broken.to_markdown()
    assert all("|" not in line.replace("\\|", "") for line in broken.to_markdown().splitlines()[7:])


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.tuples(st.floats(0, 1), *[st.floats(allow_nan=True, allow_infinity=True)] * 3), min_size=1, max_size=12
    )
)
def test_any_log_gives_shares_and_probabilities(values):
    rows = [dict(zip(DYNAMICS, row, strict=True)) | {"step": step} for step, row in enumerate(values)]
    for measure in compare_dynamics(rows, log(4)).measures.values():
        assert measure.checkpoints[0] + measure.undefined[0] == len(values)
        for share in (*measure.proportion, measure.mann_whitney_p, measure.fisher_p):
            assert math.isnan(share) or 0 <= share <= 1 + 1e-9
