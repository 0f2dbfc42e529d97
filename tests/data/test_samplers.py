import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from nearkin.data.samplers import BalancedBatchSampler, EpisodeBatchSampler, EpisodeSampler
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


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=15),
    way=st.integers(2, 6),
    shot=st.integers(1, 5),
    query=st.integers(1, 5),
    seed=st.integers(0, 99),
    index=st.integers(0, 10**6),
)
def test_an_episode_is_what_it_says(sizes, way, shot, query, seed, index):
    ids = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 2 + 5, sizes))
    eligible = {2 * one + 5 for one, size in enumerate(sizes) if size >= shot + query}
    if len(eligible) < way:
        with pytest.raises(DataError, match=str(len(eligible))):
            EpisodeSampler(ids, way, shot, query, seed)
        return
    episode = EpisodeSampler(ids, way, shot, query, seed).episode(index)
    assert episode.support.shape == (way, shot)
    assert episode.query.shape == (way, query)
    assert episode.support.dtype == episode.query.dtype == np.int64
    assert set(episode.classes) <= eligible
    assert len(set(episode.classes)) == way
    assert (ids[episode.support] == episode.classes[:, None]).all()
    assert (ids[episode.query] == episode.classes[:, None]).all()
    drawn = np.concatenate([episode.support, episode.query], axis=1)
    assert len(set(drawn.ravel())) == way * (shot + query)


def test_episodes_are_at_random_access_and_differ():
    ids = np.repeat(np.arange(30), 10)
    forward = EpisodeSampler(ids, 5, 1, 3, seed=4)
    backward = EpisodeSampler(ids, 5, 1, 3, seed=4)
    ahead = [forward.episode(index) for index in range(5)]
    back = [backward.episode(index) for index in reversed(range(5))][::-1]
    for one, other in zip(ahead, back, strict=True):
        np.testing.assert_array_equal(one.support, other.support)
        np.testing.assert_array_equal(one.query, other.query)
    assert len({one.support.tobytes() for one in ahead}) == 5
    assert EpisodeSampler(ids, 5, 1, 3, seed=5).episode(0).support.tobytes() != ahead[0].support.tobytes()


def test_every_item_gets_its_turn_in_both_parts():
    ids = np.repeat(np.arange(3), 4)
    sampler = EpisodeSampler(ids, 2, 1, 2)
    episodes = [sampler.episode(index) for index in range(200)]
    assert set(np.concatenate([one.support.ravel() for one in episodes])) == set(range(12))
    assert set(np.concatenate([one.query.ravel() for one in episodes])) == set(range(12))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 0, 1), (2, 1, 0)])
def test_empty_episodes_are_refused(shape):
    with pytest.raises(DataError, match="2"):
        EpisodeSampler(np.repeat(np.arange(4), 3), *shape)


@given(
    way=st.integers(2, 5),
    shot=st.integers(1, 3),
    query=st.integers(1, 4),
    seed=st.integers(-5, 2**70),
    first=st.integers(0, 10**9),
    count=st.integers(1, 9),
)
def test_many_episodes_are_the_single_ones_stacked(way, shot, query, seed, first, count):
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(7), np.arange(7, 14)))
    sampler = EpisodeSampler(ids, way, shot, query, seed)
    many = sampler.episodes(first, count)
    assert many.support.shape == (count, way, shot)
    assert many.query.shape == (count, way, query)
    for row in range(count):
        one = sampler.episode(first + row)
        np.testing.assert_array_equal(many.support[row], one.support)
        np.testing.assert_array_equal(many.query[row], one.query)
        np.testing.assert_array_equal(many.classes[row], one.classes)


def _uniform(counts: np.ndarray) -> bool:
    """Whether counts (n,) could be those of a fair die: a chi-square beyond the bound comes once in 10^5 draws."""
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum()) < chi2.isf(1e-5, len(counts) - 1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classes_places_and_items_are_uniform(seed):
    sizes = np.array([6, 7, 9, 20])
    ids = np.repeat(np.arange(4), sizes)
    drawn = EpisodeSampler(ids, 3, 2, 4, seed).episodes(0, 20_000)
    for place in range(3):
        assert _uniform(np.bincount(drawn.classes[:, place], minlength=4))
    orders = np.unique(drawn.classes, axis=0, return_counts=True)[1]
    assert len(orders) == 24
    assert _uniform(orders)
    everything = np.concatenate([drawn.support, drawn.query], axis=-1)
    for one, start in enumerate(np.cumsum(sizes) - sizes):
        rows = everything[drawn.classes == one] - start
        for place in range(6):
            assert _uniform(np.bincount(rows[:, place], minlength=sizes[one]))
        assert _uniform(
            np.bincount(rows[:, 0] * sizes[one] + rows[:, 3], minlength=sizes[one] ** 2)[_unequal(sizes[one])]
        )


def _unequal(size: int) -> np.ndarray:
    """Which pairs of places (size^2,) are two places."""
    return np.flatnonzero(~np.eye(size, dtype=bool))


def test_a_class_that_is_used_up_comes_in_every_order():
    drawn = EpisodeSampler(np.repeat([0, 1], 3), 2, 1, 2).episodes(0, 6000)
    orders = np.concatenate([drawn.support, drawn.query], axis=-1).reshape(-1, 3) % 3
    kinds, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(kinds) == 6
    assert _uniform(counts)


def test_episodes_do_not_repeat_nor_follow_each_other():
    drawn = EpisodeSampler(np.repeat(np.arange(20), 20), 5, 1, 5).episodes(0, 5000)
    assert len(np.unique(drawn.support.reshape(5000, -1), axis=0)) == 5000
    same = (drawn.classes[:-1, 0] == drawn.classes[1:, 0]).mean()
    assert same == pytest.approx(1 / 20, abs=0.015)


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0)])
def test_episodes_before_the_first_or_none_are_refused(first, count):
    with pytest.raises(DataError, match="first"):
        EpisodeSampler(np.repeat(np.arange(4), 3), 2, 1, 1).episodes(first, count)


def test_a_batch_is_an_episode_class_by_class_support_first():
    ids = np.repeat(np.arange(9), 8)
    batches = EpisodeBatchSampler(ids, 4, 2, 3, seed=7)
    assert (batches.classes_per_batch, batches.per_class) == (4, 5)
    for step in (0, 1, 500):
        episode = EpisodeSampler(ids, 4, 2, 3, seed=7).episode(step)
        rows = batches.batch(step).reshape(4, 5)
        assert rows.dtype == np.int64
        np.testing.assert_array_equal(rows[:, :2], episode.support)
        np.testing.assert_array_equal(rows[:, 2:], episode.query)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_share_an_episode_by_whole_classes(world_size):
    ids = np.repeat(np.arange(9), 8)
    slices = [EpisodeBatchSampler(ids, 6, 1, 3, 5, rank, world_size).batch(11) for rank in range(world_size)]
    np.testing.assert_array_equal(np.concatenate(slices), EpisodeBatchSampler(ids, 6, 1, 3, 5).batch(11))
    assert {len(one) for one in slices} == {24 // world_size}


def test_episodes_that_ranks_cannot_share_are_refused():
    ids = np.repeat(np.arange(9), 8)
    with pytest.raises(DataError, match=r"training\.episodic\.way"):
        EpisodeBatchSampler(ids, 5, 1, 3, world_size=2)
    with pytest.raises(DataError, match=r"(?i)rank"):
        EpisodeBatchSampler(ids, 4, 1, 3, rank=2, world_size=2)
    with pytest.raises(DataError, match="9"):
        EpisodeBatchSampler(ids, 10, 1, 3)


@pytest.mark.parametrize("name", ["way", "shot", "query", "seed"])
@pytest.mark.parametrize("bad", [2.0, "2", None, True])
def test_what_is_no_whole_number_is_refused(name, bad):
    given = {"way": 2, "shot": 1, "query": 1, "seed": 0} | {name: bad}
    for sampler in (EpisodeSampler, EpisodeBatchSampler):
        with pytest.raises(DataError, match=name):
            sampler(np.repeat(np.arange(4), 3), **given)


def test_ranks_and_places_are_whole_numbers():
    ids = np.repeat(np.arange(4), 3)
    with pytest.raises(DataError, match="world_size"):
        EpisodeBatchSampler(ids, 2, 1, 1, world_size=1.5)
    with pytest.raises(DataError, match=r"0\.5"):
        EpisodeSampler(ids, 2, 1, 1).episode(0.5)


def test_too_few_training_classes_are_told_by_the_settings_of_a_recipe():
    ids = np.repeat(np.arange(4), 3)
    with pytest.raises(DataError, match=r"training\.episodic\.way"):
        EpisodeBatchSampler(ids, 5, 1, 1)
