import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.errors import DataError
from nearkin.models.bulk import shard_rows
from nearkin.models.bulk.shards import MAX_SHARDS, parsed_part, part_name


@given(items=st.integers(0, 400), shards=st.integers(1, 60))
def test_shards_cover_every_row_once_in_order_and_are_equal(items, shards):
    runs = [shard_rows(shard, shards, items) for shard in range(shards)]
    assert [row for run in runs for row in run] == list(range(items))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


@pytest.mark.parametrize(("shard", "shards"), [(3, 3), (-1, 3), (0, 0), (0, -1), (0, MAX_SHARDS + 1)])
def test_shards_that_cannot_be_are_refused(shard, shards):
    with pytest.raises(DataError, match="shard"):
        shard_rows(shard, shards, 10)


@given(st.integers(1, MAX_SHARDS).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_names_tell_the_shard_and_sort_as_it(part):
    name = part_name(*part)
    assert parsed_part(name) == part
    assert parsed_part(f".{name}.ab.tmp") is None
    assert sorted([part_name(9, 100_000), part_name(10, 100_000)]) == [part_name(9, 100_000), part_name(10, 100_000)]
