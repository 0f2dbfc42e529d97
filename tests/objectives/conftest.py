"""What the tests of objectives share."""

from __future__ import annotations

import pytest

from nearkin.objectives.proxy import loss
from nearkin.spaces.mds import multidimensional_scaling


@pytest.fixture(scope="session", autouse=True)
def layouts_are_made_once():
    """A thousand steps for each loss that is built by a tree would be most of the time here: keep what they gave."""
    kept = {}

    def scaled(targets, dimension, *, space, seed):
        key = (targets.tobytes(), dimension, repr(space), seed)
        if key not in kept:
            kept[key] = multidimensional_scaling(targets, dimension, space=space, seed=seed)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "multidimensional_scaling", scaled)
        yield
