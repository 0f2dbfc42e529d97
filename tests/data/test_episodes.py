import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.episodes import EpisodeSampler
from nearkin.errors import DataError


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
        with pytest.raises(DataError, match=f"the data has {len(eligible)}"):
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
    with pytest.raises(DataError, match="at least 2 classes"):
        EpisodeSampler(np.repeat(np.arange(4), 3), *shape)
