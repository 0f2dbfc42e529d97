import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.samplers import BalancedBatchSampler
from nearkin.errors import DataError


@st.composite
def samplers(draw):
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    # Gaps between the ids and a shuffled order: nothing may depend on ids being 0..C-1 or items being grouped.
    ids = np.repeat(np.arange(len(sizes)) * 3 + 1, sizes)
    ids = np.random.default_rng(draw(st.integers(0, 99))).permutation(ids)
    classes_per_batch = draw(st.integers(1, len(sizes)))
    return ids, BalancedBatchSampler(ids, classes_per_batch, draw(st.integers(1, 6)), seed=draw(st.integers(-5, 2**70)))


def grouped(sampler, plan):
    return plan.reshape(len(plan), -1, sampler.per_class)


@given(samplers(), st.integers(0, 1000))
def test_batches_hold_distinct_classes_with_m_items_each(made, epoch):
    ids, sampler = made
    plan = sampler.plan(epoch)
    assert plan.shape == (sampler.batches_per_epoch, sampler.classes_per_batch * sampler.per_class)
    assert plan.dtype == np.int64
    classes = ids[grouped(sampler, plan)]
    assert (classes == classes[..., :1]).all()
    for batch in classes[..., 0]:
        assert len(set(batch)) == sampler.classes_per_batch


@given(samplers(), st.integers(0, 1000))
def test_every_class_is_visited_each_epoch(made, epoch):
    ids, sampler = made
    plan = sampler.plan(epoch)
    assert set(ids[plan].ravel()) == set(ids)
    assert len(plan) == -(-len(set(ids)) // sampler.classes_per_batch)


@given(samplers(), st.integers(0, 1000))
def test_an_item_repeats_in_a_visit_only_after_all_others(made, epoch):
    ids, sampler = made
    for visit in grouped(sampler, sampler.plan(epoch)).reshape(-1, sampler.per_class):
        size = (ids == ids[visit[0]]).sum()
        _, counts = np.unique(visit, return_counts=True)
        assert len(counts) == min(size, sampler.per_class)
        assert counts.max() - counts.min() <= 1


@given(samplers(), st.integers(0, 50))
def test_a_lap_of_epochs_uses_every_item_of_a_class(made, lap):
    ids, sampler = made
    for name in set(ids):
        items = np.flatnonzero(ids == name)
        visits = -(-len(items) // sampler.per_class)
        used = np.concatenate([sampler.plan(epoch).ravel() for epoch in range(lap * visits, (lap + 1) * visits)])
        assert set(items) <= set(used)


@given(samplers(), st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_batches_are_at_random_access(made, steps):
    ids, sampler = made
    for step in steps:
        epoch, position = divmod(step, sampler.batches_per_epoch)
        fresh = BalancedBatchSampler(ids, sampler.classes_per_batch, sampler.per_class, seed=sampler.seed)
        np.testing.assert_array_equal(sampler.batch(step), fresh.plan(epoch)[position])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 30), st.integers(0, 20))
def test_the_ranks_together_hold_the_batch_of_one_process(world_size, share, extra, epoch):
    ids = np.random.default_rng(extra).permutation(np.repeat(np.arange(world_size * share + extra), 3))
    whole = BalancedBatchSampler(ids, world_size * share, 2, seed=7).plan(epoch)
    ranks = [
        BalancedBatchSampler(ids, world_size * share, 2, seed=7, rank=rank, world_size=world_size).plan(epoch)
        for rank in range(world_size)
    ]
    np.testing.assert_array_equal(np.concatenate(ranks, axis=1), whole)
    for one in ranks:
        assert one.shape[1] == share * 2


def test_epochs_and_seeds_differ():
    ids = np.repeat(np.arange(20), 10)
    plans = [BalancedBatchSampler(ids, 5, 2, seed=seed).plan(epoch).tobytes() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(plans)) == 4


def test_the_filled_up_classes_show_other_items_than_before():
    ids = np.repeat(np.arange(5), 200)
    plan = BalancedBatchSampler(ids, 4, 4, seed=1).plan(0).ravel()
    assert len(set(plan)) > len(plan) - 4


def test_items_and_orders_are_uniform():
    ids = np.repeat(np.arange(3), 5)
    first_class, first_item = np.zeros(3), np.zeros(15)
    for seed in range(3000):
        plan = BalancedBatchSampler(ids, 1, 1, seed=seed).plan(0).ravel()
        first_class[ids[plan[0]]] += 1
        first_item[plan] += 1
    assert np.abs(first_class / 1000 - 1).max() < 0.12  # four standard deviations
    assert np.abs(first_item / 600 - 1).max() < 0.16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes_per_batch": 5}, r"data\.classes_per_batch"),
        ({"classes_per_batch": 0}, "positive"),
        ({"per_class": 0}, "positive"),
        ({"classes_per_batch": 3, "world_size": 2}, "multiple"),
        ({"rank": 1}, "(?i)rank"),
    ],
)
def test_impossible_batches_say_what_to_change(arguments, message):
    with pytest.raises(DataError, match=message):
        BalancedBatchSampler(np.repeat(np.arange(4), 3), **{"classes_per_batch": 2, "per_class": 2, **arguments})


def test_no_items_is_an_error():
    with pytest.raises(DataError, match="classes"):
        BalancedBatchSampler(np.array([], dtype=np.int64), 2, 2)


def test_a_large_data_set_is_planned_at_once():
    ids = np.concatenate([np.arange(11_000), np.random.default_rng(0).integers(0, 11_000, 49_000)])
    sampler = BalancedBatchSampler(ids, 32, 4)
    begin = time.perf_counter()
    sampler.plan(3)
    assert time.perf_counter() - begin < 0.5


def test_a_long_tail_is_levelled():
    """1 to 200 items a class: every class is shown as often, and a large one shows all its items."""
    counts = np.unique(np.geomspace(1, 200, 40).astype(int))
    class_ids = np.repeat(np.arange(len(counts)), counts)
    sampler = BalancedBatchSampler(class_ids, 8, 4, seed=3)
    steps = 100 * -(-len(counts) // 8)
    drawn = np.concatenate([sampler.batch(step) for step in range(steps)])
    shown = np.bincount(class_ids[drawn], minlength=len(counts))
    assert shown.min() >= 100 * 4
    assert shown.max() <= 1.3 * shown.min()
    assert set(drawn) == set(range(len(class_ids)))
