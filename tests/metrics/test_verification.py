"""Verification metrics against naive loops in float64, scikit-learn, and each other: held, binned, sampled."""

import json
import re
from fractions import Fraction
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from nearkin.errors import DataError
from nearkin.metrics import VerificationResult, verification_from_scores, verification_metrics
from nearkin.metrics.pairs import Pairs, _distinct
from nearkin.metrics.trade_off import BinnedDistances, HeldDistances
from nearkin.spaces import Euclidean, LipschitzBall, PoincareBall, Sphere

FPRS = (0.25, 0.5, 1.0)
COSTS = ((0.01, 1.0, 1.0), (0.5, 1.0, 1.0), (0.3, 10.0, 2.0))


def pair_list(x, labels, gallery=None, gallery_labels=None):
    """Euclidean distances in float64 and whether the pair is genuine, one pair at a time."""
    if gallery is None:
        some = [(x[i], x[j], labels[i] == labels[j]) for i, j in combinations(range(len(x)), 2)]
    else:
        some = [
            (x[i], gallery[j], labels[i] == gallery_labels[j]) for i, j in product(range(len(x)), range(len(gallery)))
        ]
    distances = [sum((float(a) - float(b)) ** 2 for a, b in zip(p, q, strict=True)) ** 0.5 for p, q, _ in some]
    return np.array(distances), np.array([bool(same) for *_, same in some])


def naive(distances, same, p_target=0.01, cost_miss=1.0, cost_false=1.0, fprs=FPRS):
    """Every threshold in turn, in fractions: the values, and the two thresholds between which the errors are equal."""
    genuine, impostors = distances[same].tolist(), distances[~same].tolist()
    points = [(Fraction(0), Fraction(1), None)]
    for t in sorted(set(distances.tolist())):
        false = Fraction(sum(d <= t for d in impostors), len(impostors))
        miss = Fraction(sum(d > t for d in genuine), len(genuine))
        points.append((false, miss, t))
    wins = sum((g < i) + Fraction(g == i, 2) for g in genuine for i in impostors)
    values = {"ROC-AUC": wins / (len(genuine) * len(impostors))}
    for (f0, m0, low), (f1, m1, high) in pairwise(points):
        if m0 > f0 and m1 <= f1:
            values["EER"] = f0 + (m0 - f0) / ((m0 - f0) + (f1 - m1)) * (f1 - f0)
            between = (high if low is None else low, high)
            if m1 == f1:
                later = [t for *_, t in points[1:] if t > high]
                between = (high, later[0] if later else high)
    for x in fprs:
        values[f"TPR@FPR={x:g}"] = max(1 - miss for false, miss, _ in points if false <= x)
    cost = min(cost_miss * miss * p_target + cost_false * false * (1 - p_target) for false, miss, _ in points)
    values["minDCF"] = cost / min(cost_miss * p_target, cost_false * (1 - p_target))
    return {name: float(value) for name, value in values.items()}, between


def assert_same(result, distances, same, **options):
    expected, (low, high) = naive(distances, same, **options)
    assert list(result.values) == list(expected)
    for name, value in result.values.items():
        assert value == pytest.approx(expected[name], rel=1e-12, abs=1e-12), name
        assert 0 <= value <= 1
    assert low - 1e-6 <= result.threshold <= high + 1e-6
    assert (result.genuine, result.impostors) == (same.sum(), (~same).sum())


def cloud(seed, n, d, classes, whole):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, 2, (n, d)) if whole else rng.normal(size=(n, d))
    return x.astype(np.float32), rng.integers(0, classes, n)


def blobs(classes=12, items=25, noise=0.8, d=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), items)
    return (rng.normal(size=(classes, d))[labels] + noise * rng.normal(size=(len(labels), d))).astype(
        np.float32
    ), labels


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 12),
    d=st.integers(1, 3),
    classes=st.integers(1, 5),
    whole=st.booleans(),
    costs=st.sampled_from(COSTS),
)
def test_all_pairs_match_naive_loops(seed, n, d, classes, whole, costs):
    """Random points, and whole numbers full of ties and copies; one kind of pairs alone is refused."""
    x, labels = cloud(seed, n, d, classes, whole)
    distances, same = pair_list(x, labels)
    options = dict(zip(("p_target", "cost_miss", "cost_false"), costs, strict=True))
    fprs = [x for x in FPRS if x * (~same).sum() >= 1] or [1.0]
    if same.any() and not same.all():
        # Normal numbers tie in float32 as rarely as in float64, and whole ones exactly as often.
        result = verification_metrics(x, labels, space=Euclidean(), fpr=fprs, **options)
        assert_same(result, distances, same, fprs=fprs, **options)
    else:
        with pytest.raises(DataError, match="impostor" if same.all() and len(same) and same.any() else "genuine"):
            verification_metrics(x, labels, space=Euclidean())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), m=st.integers(1, 12), whole=st.booleans())
def test_gallery_pairs_match_naive_loops(seed, n, m, whole):
    x, labels = cloud(seed, n, 2, 3, whole)
    y, others = cloud(seed + 1, m, 2, 4, whole)
    distances, same = pair_list(x, labels, y, others)
    if same.any() and not same.all():
        fprs = [x for x in FPRS if x * (~same).sum() >= 1]
        result = verification_metrics(x, labels, gallery=y, gallery_labels=others, space=Euclidean(), fpr=fprs)
        assert_same(result, distances, same, fprs=fprs)
    else:
        with pytest.raises(DataError, match=r"genuine|impostor"):
            verification_metrics(x, labels, gallery=y, gallery_labels=others, space=Euclidean())


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.integers(-3, 3).map(lambda s: s / 2), min_size=2, max_size=40),
    bits=st.integers(0, 2**40 - 1),
    costs=st.sampled_from(COSTS),
)
def test_given_scores_match_naive_loops(scores, bits, costs):
    same = np.array([bits >> place & 1 for place in range(len(scores))], bool)
    options = dict(zip(("p_target", "cost_miss", "cost_false"), costs, strict=True))
    if same.all() or not same.any():
        with pytest.raises(DataError, match=r"genuine|impostor"):
            verification_from_scores(scores, same)
        return
    result = verification_from_scores(scores, same.astype(int), fpr=[1.0], **options)
    expected, (low, high) = naive(-np.array(scores), same, fprs=[1.0], **options)
    assert result.values == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert -high <= result.threshold <= -low


@pytest.mark.parametrize("space", [Sphere(), Sphere("angle"), Euclidean(), LipschitzBall(), PoincareBall(0.5)])
def test_matches_scikit_learn_in_every_space(space):
    x, labels = blobs(noise=0.5)
    points = space.project(torch.from_numpy(x))
    rows, columns = np.triu_indices(len(x), 1)
    distances = space.distance(points, points).numpy()[rows, columns]
    same = labels[rows] == labels[columns]
    fpr, tpr, thresholds = roc_curve(same, -distances, drop_intermediate=False)
    result = verification_metrics(points, labels, space=space, fpr=(1e-3, 0.0123, 0.2), memory_mb=64)
    assert result.values["ROC-AUC"] == pytest.approx(roc_auc_score(same, -distances), abs=1e-9)
    for x in (1e-3, 0.0123, 0.2):
        assert result.values[f"TPR@FPR={x:g}"] == pytest.approx(tpr[fpr <= x].max(), abs=1e-9)
    place = np.argmin(np.abs(1 - tpr - fpr))
    assert result.values["EER"] == pytest.approx((1 - tpr + fpr)[place] / 2, abs=1e-3)
    assert result.threshold == pytest.approx(-thresholds[place], abs=1e-3)
    cost = (0.01 * (1 - tpr) + 0.99 * fpr).min() / 0.01
    assert result.values["minDCF"] == pytest.approx(cost, abs=1e-9)
    # The curve is that of scikit-learn, at fewer points, from one corner to the other.
    assert len(result.det[0]) <= 1000
    known = set(zip(fpr.round(9), (1 - tpr).round(9), strict=True))
    assert set(zip(result.det[0].round(9), result.det[1].round(9), strict=True)) <= known
    assert (result.det[0][0], result.det[1][0], result.det[0][-1], result.det[1][-1]) == (0, 1, 1, 0)
    assert (np.diff(result.det[0]) >= 0).all()
    assert (np.diff(result.det[1]) <= 0).all()


@pytest.mark.parametrize("name", ["cosine", "inner-product", "euclidean"])
def test_a_space_may_be_named_and_distances_may_be_negative(name):
    x, labels = blobs(noise=0.5)
    rows, columns = np.triu_indices(len(x), 1)
    same = labels[rows] == labels[columns]
    y = x.astype(np.float64)
    similarity = {
        "inner-product": y @ y.T,
        "cosine": y @ y.T / np.outer(*2 * [np.linalg.norm(y, axis=1)]),
        "euclidean": -np.linalg.norm(y[:, None] - y, axis=2),
    }[name][rows, columns]
    area = roc_auc_score(same, similarity)
    assert verification_metrics(x, labels, space=name).values["ROC-AUC"] == pytest.approx(area, abs=1e-6)
    assert verification_metrics(x, labels, space=name, memory_mb=1).values["ROC-AUC"] == pytest.approx(area, abs=1e-5)
    part = verification_metrics(x, labels, space=name, pairs=20_000)
    assert part.values["ROC-AUC"] == pytest.approx(area, abs=0.01)


def test_the_thinned_curve_keeps_its_shape():
    """Between neighbouring points neither error jumps by more than the curve itself does on normal-deviate axes."""
    from scipy.special import ndtri

    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(2, 1, 20_000), rng.normal(0, 1, 200_000)])
    fpr, fnr = verification_from_scores(scores, np.arange(220_000) < 20_000).det
    assert 500 < len(fpr) <= 1000
    inside = (fpr > 1e-4) & (fnr > 1e-3)
    np.testing.assert_allclose(ndtri(fnr[inside]) + ndtri(fpr[inside]), -2, atol=0.3)
    assert np.abs(np.diff(ndtri(fpr[inside]))).max() < 0.1


def test_separable_pairs_and_opposite_ones():
    perfect = verification_from_scores([9.0, 8, 7, 3, 2, 1], [1, 1, 1, 0, 0, 0], fpr=[0.5])
    assert perfect.values == {"ROC-AUC": 1, "EER": 0, "TPR@FPR=0.5": 1, "minDCF": 0}
    assert perfect.threshold == 5  # half-way between the worst genuine and the best impostor pair
    worst = verification_from_scores([1.0, 2, 8, 9], [1, 1, 0, 0], fpr=[0.5])
    assert worst.values == {"ROC-AUC": 0, "EER": 1, "TPR@FPR=0.5": 0, "minDCF": 1}
    tied = verification_from_scores([4.0] * 6, [1, 1, 0, 0, 0, 0], fpr=[0.5])
    assert tied.values == {"ROC-AUC": 0.5, "EER": 0.5, "TPR@FPR=0.5": 0, "minDCF": 1}
    assert tied.threshold == 4


def test_an_item_is_never_paired_with_itself_but_its_copies_count():
    x = np.array([[0.0], [0.0], [5.0], [5.0], [5.0]])
    result = verification_metrics(x, ["a", "a", "a", "b", "b"], space=Euclidean(), fpr=[0.5])
    # a-a: 0, 5, 5; b-b: 0; a-b: 5, 5, 5, 5, 0, 0
    assert (result.genuine, result.impostors) == (4, 6)
    assert_same(
        result,
        np.array([0, 5, 5, 0, 5, 5, 5, 5, 0, 0.0]),
        np.array([True] * 4 + [False] * 6),
        fprs=[0.5],
    )


@pytest.mark.parametrize(
    "rename",
    [
        lambda c: f"Türkçe {c}",
        lambda c: 2**24 + c,
        lambda c: 2**60 + c,
        lambda c: c if c % 2 else str(c),
        lambda c: (c, "x"),
    ],
    ids=["strings", "beyond-float32", "beyond-float64", "mixed", "tuples"],
)
def test_labels_may_be_anything(rename):
    x, labels = blobs(4, 6)
    named = [rename(int(c)) for c in labels]
    assert verification_metrics(x, named).values == verification_metrics(x, labels).values
    result = verification_metrics(x[::2], named[::2], gallery=x[1::2], gallery_labels=named[1::2])
    assert (result.genuine, result.impostors) == (4 * 9, 12 * 12 - 4 * 9)


def test_results_do_not_depend_on_the_tiles():
    x, labels = blobs(10, 13)
    whole = verification_metrics(x, labels)
    small = verification_metrics(torch.from_numpy(x).double(), labels, memory_mb=1)  # 90 rows at a time
    assert small.values == pytest.approx(whole.values, abs=1e-4)
    same = verification_metrics(x, labels, memory_mb=1)
    assert same.to_dict() == whole.to_dict()


@pytest.mark.parametrize("gallery", [False, True])
def test_bins_come_as_close_as_they_say(gallery):
    """44,850 pairs at 24 bytes do not fit 1 MB, so they are counted in bins there."""
    x, labels = blobs(12, 25)
    options = {"gallery": x[::-1].copy() + 0.01, "gallery_labels": labels[::-1]} if gallery else {}
    exact = verification_metrics(x, labels, **options)
    binned = verification_metrics(x, labels, memory_mb=1, **options)
    assert exact.notes == ()
    (note,) = binned.notes
    width, bound = map(float, re.findall(r"\d\.\de[+-]\d\d", note))
    assert 2 / 2**20 * 0.9 <= width <= 4 / 2**20
    assert 0 < bound < 0.01
    assert exact.values != binned.values
    for name, value in exact.values.items():
        assert binned.values[name] == pytest.approx(value, abs=1.1 * bound), name
    assert binned.threshold == pytest.approx(exact.threshold, abs=2 * width)
    assert (binned.genuine, binned.impostors) == (exact.genuine, exact.impostors)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.integers(-30, 30),
    shift=st.sampled_from([0.0, 0.0, -1.5, 1000.0]),
    parts=st.integers(1, 5),
)
def test_bins_cover_any_range_in_any_order(seed, scale, shift, parts):
    rng = np.random.default_rng(seed)
    groups = [((rng.gamma(k, size=200) + shift) * 2.0**scale).astype(np.float32) for k in (2, 4)]
    held, binned = HeldDistances(200, 200), BinnedDistances()
    for block in zip(*(np.array_split(group, parts) for group in groups), strict=True):
        held.add(*block)
        binned.add(*block)
    everything = BinnedDistances()
    everything.add(*groups)
    np.testing.assert_array_equal(binned._counts, everything._counts)  # whatever came first
    spread = np.ptp(np.concatenate(groups))
    assert spread / 2**20 <= 2.0**-binned._power <= spread / 2**19 * 1.0001 or shift == 1000
    exact, close = held.trade_off(), binned.trade_off()
    assert close.genuine[-1] == close.impostors[-1] == 200
    assert abs(exact.auc() - close.auc()) <= binned.error()
    assert abs(exact.equal_error()[0] - close.equal_error()[0]) <= binned.error() + 1e-12


def test_bins_of_equal_distances_are_exact():
    binned = BinnedDistances()
    binned.add(np.zeros(3, np.float32), np.zeros(0, np.float32))
    binned.add(np.zeros(0, np.float32), np.full(2, 7.0, np.float32))
    binned.add(np.zeros(0, np.float32), np.zeros(0, np.float32))
    assert binned.error() == 0
    assert binned.trade_off().auc() == 1


def all_numbers(population):
    rows, columns = population.pairs(np.arange(population.total))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 15), m=st.integers(0, 15), classes=st.integers(1, 6))
def test_the_sampled_populations_are_all_pairs_once(seed, n, m, classes):
    rng = np.random.default_rng(seed)
    codes, others = rng.integers(0, classes, n), rng.integers(0, classes, m)
    x = torch.zeros(n, 1)
    pairs = Pairs(x, codes, torch.zeros(m, 1) if m else None, others if m else None, Euclidean(), 1)
    if m:
        every = set(product(range(n), range(m)))
        genuine = {(i, j) for i, j in every if codes[i] == others[j]}
    else:
        every = set(combinations(range(n), 2))
        genuine = {(i, j) for i, j in every if codes[i] == codes[j]}
    for population, expected in zip(pairs._populations, (genuine, every - genuine), strict=True):
        found = all_numbers(population)
        assert len(found) == len(expected) == population.total
        assert {pair if m else tuple(sorted(pair)) for pair in found} == expected


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(1, 200), share=st.floats(0, 1))
def test_distinct_numbers(seed, total, share):
    count = round(share * total)
    numbers = _distinct(total, count, np.random.default_rng(seed))
    assert len(numbers) == len(set(numbers.tolist())) == count
    assert all(0 <= number < total for number in numbers)


@pytest.mark.parametrize("count", [2, 5])
def test_every_number_is_drawn_as_often_as_any_other(count):
    rng = np.random.default_rng(0)
    drawn = np.bincount(np.concatenate([_distinct(7, count, rng) for _ in range(7000)]), minlength=7)
    np.testing.assert_allclose(drawn / 7000, count / 7, atol=0.03)


def test_a_sample_comes_close_to_all_pairs_and_says_what_it_is():
    x, labels = blobs(20, 20)
    whole = verification_metrics(x, labels)
    part = verification_metrics(x, labels, pairs=5000, seed=1)
    assert not whole.sampled
    assert part.sampled
    assert (part.genuine, part.impostors) == (20 * 190, 5000)  # genuine pairs are few enough to take all
    assert ["76,000" in note for note in part.notes] == [True]
    for name in ("ROC-AUC", "EER", "TPR@FPR=0.1"):
        assert part.values[name] == pytest.approx(whole.values[name], abs=0.03)
        assert part.values[name] != whole.values[name]
    again = verification_metrics(x, labels, pairs=5000, seed=1)
    assert again.to_dict() == part.to_dict()
    assert verification_metrics(x, labels, pairs=5000, seed=2).values != part.values


@pytest.mark.parametrize("space", [Sphere("angle"), Euclidean(), PoincareBall()])
@pytest.mark.parametrize("gallery", [False, True])
def test_pairs_drawn_one_by_one_have_the_distances_of_the_tiles(space, gallery):
    """A sample that leaves out one impostor pair has the other distances, as a set."""
    x, labels = blobs(4, 5, d=3)
    x = space.project(torch.from_numpy(x))
    codes = labels.astype(np.int64)
    other = (x[:7].flip(1), codes[:7][::-1].copy()) if gallery else (None, None)
    pairs = Pairs(x, codes, *other, space, 1)
    whole = [np.sort(np.concatenate(group)) for group in zip(*pairs.all(), strict=True)]
    every = pairs.sample(10**6, np.random.default_rng(0))
    np.testing.assert_allclose(np.sort(np.concatenate(next(iter(every)))), whole[0], rtol=1e-6)
    genuine, impostors = zip(*pairs.sample(pairs.totals[1] - 1, np.random.default_rng(0)), strict=True)
    np.testing.assert_allclose(np.sort(np.concatenate(genuine)), whole[0], rtol=1e-6)
    found = np.concatenate(impostors)
    assert len(found) == pairs.totals[1] - 1
    assert np.isclose(found[:, None], whole[1], rtol=1e-6).any(axis=1).all()


def test_enough_pairs_is_all_pairs():
    x, labels = blobs(5, 6)
    assert verification_metrics(x, labels, pairs=10**6).to_dict() == verification_metrics(x, labels).to_dict()


def test_an_fpr_the_pairs_cannot_resolve():
    x, labels = blobs(3, 4)  # 48 impostor pairs
    result = verification_metrics(x, labels)
    assert [name for name in result.values if "FPR" in name] == ["TPR@FPR=0.1"]
    (note,) = result.notes
    assert "TPR@FPR=0.001" in note
    assert "TPR@FPR=0.01" in note
    with pytest.raises(DataError, match="TPR@FPR=1e-05"):
        verification_metrics(x, labels, fpr=[0.1, 1e-5])
    with pytest.raises(DataError, match="10"):
        verification_metrics(x, labels, fpr=(1e-3, 1e-2, 1e-1), pairs=10)  # of the sample
    assert "TPR@FPR=0.0208333" in verification_metrics(x, labels, fpr=[1 / 48]).values


@pytest.mark.parametrize("total", [100, 300, 700, 1000])
@pytest.mark.parametrize("allowed", [2, 3, 7, 29, 57])
def test_an_fpr_is_met_exactly(total, allowed):
    """29 of 100 is an FPR of 0.29, although 0.29 * 100 is less than 29 in floating point; a hair less is not."""
    scores = np.append(np.arange(total, 0, -1.0), total - allowed + 0.5)  # a genuine pair behind `allowed` impostors
    same = np.arange(total + 1) == total
    for fpr, expected in ((allowed / total, 1.0), (np.nextafter(allowed / total, 0), 0.0)):
        assert verification_from_scores(scores, same, fpr=[fpr]).values[f"TPR@FPR={fpr:g}"] == expected


def test_tiles_are_as_small_as_the_memory_asks():
    shapes = []

    class Spy:
        def distance(self, x, y):
            shapes.append((len(x), len(y)))
            return torch.cdist(x, y)

    x, labels = blobs(20, 20)
    verification_metrics(x, labels, space=Spy(), memory_mb=1)
    assert len(shapes) > 10
    assert max(64 * rows * columns for rows, columns in shapes) <= 2**20
    assert sum(rows * columns for rows, columns in shapes) < 0.7 * len(x) ** 2  # each pair once, not twice


def test_the_result_is_plain_and_names_its_directions():
    result = verification_metrics(*blobs(4, 6))
    assert isinstance(result, VerificationResult)
    assert (result.primary, result.higher_is_better) == ("EER", False)
    assert set(result.lower_is_better) <= set(result.values)
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["values"] == result.values
    assert len(plain["det"]["fpr"]) == len(plain["det"]["fnr"]) == len(result.det[0])
    assert "det" not in repr(result)


GOOD = blobs(3, 3)


@pytest.mark.parametrize(
    ("x", "labels", "options", "message"),
    [
        (GOOD[0], ["a"] * 9, {}, "impostor"),
        (GOOD[0], range(9), {}, "genuine"),
        (GOOD[0][:0], [], {}, "genuine"),
        (GOOD[0], GOOD[1], {"gallery": GOOD[0][:3], "gallery_labels": list("xyz")}, "gallery"),
        (GOOD[0], GOOD[1], {"gallery": GOOD[0][:3]}, "gallery"),
        (GOOD[0], GOOD[1][1:], {}, "labels"),
        (np.full((3, 1), np.nan), [0, 0, 1], {}, "NaN"),
        (np.array([[-3e38], [3e38], [0.0]], np.float32), [0, 0, 1], {"space": Euclidean()}, "finite"),
        (GOOD[0], GOOD[1], {"fpr": [0.0]}, "FPR"),
        (GOOD[0], GOOD[1], {"fpr": [1.5]}, "FPR"),
        (GOOD[0], GOOD[1], {"p_target": 1.0}, "genuine"),
        (GOOD[0], GOOD[1], {"cost_miss": 0.0}, "cost"),
        (GOOD[0], GOOD[1], {"pairs": 0}, "pairs"),
        (GOOD[0], GOOD[1], {"space": "cosin"}, "cosine"),
        (GOOD[0], GOOD[1], {"memory_mb": 0}, "memory"),
    ],
)
def test_bad_input(x, labels, options, message):
    with pytest.raises(DataError, match=message):
        verification_metrics(x, list(labels), **options)


@pytest.mark.parametrize(
    ("scores", "same", "message"),
    [
        ([0.1, np.nan], [1, 0], "finite"),
        ([[0.1, 0.2]], [1, 0], "dimensional"),
        (["a", "b"], [1, 0], "numbers"),
        ([0.1, 0.2], [1], "same"),
        ([0.1, 0.2], [1, 2], "True"),
        ([0.1, 0.2], [1, 1], "impostor"),
        ([], [], "scores"),
    ],
)
def test_bad_scores(scores, same, message):
    with pytest.raises(DataError, match=message):
        verification_from_scores(scores, same)


def test_scores_may_be_tensors():
    scores, same = torch.tensor([0.9, 0.1, 0.5], requires_grad=True), torch.tensor([True, False, False])
    assert verification_from_scores(scores, same, fpr=[0.5]).values["ROC-AUC"] == 1


def test_the_examples_of_the_guide_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "guide" / "verification.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert 0 < names["result"].values["EER"] < 0.5
