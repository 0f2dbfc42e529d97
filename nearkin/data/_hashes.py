"""Random numbers at random access: a hash of what they are for, so that any of them can be made alone."""

from __future__ import annotations

import numpy as np


def keys(items: np.ndarray, seed: int, turn: int | np.ndarray, stream: int) -> np.ndarray:
    """Random 64-bit numbers, a hash of (seed, stream, turn, item); `items` and `turn` broadcast against each other.

    Args:
        items: what each number is for, integers from 0.
        seed: of all streams.
        turn: which visit, lap or episode, integers from 0.
        stream: keeps apart the uses of one seed.
    """
    state = _mixed(_mixed(np.full(1, seed % 2**64, dtype=np.uint64)) + np.uint64(stream))
    state = _mixed(state ^ _mixed(np.atleast_1d(np.asarray(turn)).astype(np.uint64)))
    return _mixed(state + _mixed(items.astype(np.uint64)))


def _mixed(state: np.ndarray) -> np.ndarray:
    """One step of SplitMix64 (Steele, Lea and Flood 2014) on uint64."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
