from hypothesis import given
from hypothesis import strategies as st

from inflight.compare.groups import group
from inflight.workload.item import WorkItem


@given(st.lists(st.integers(1, 500), min_size=1, max_size=200))
def test_short_and_long_do_not_meet(lengths: list[int]) -> None:
    items = [WorkItem(str(index), (1,), length) for index, length in enumerate(lengths)]
    groups = group(items)
    short, long = groups.members["short"], groups.members["long"]
    assert not short & long
    assert len(short) * 2 >= len(items)
    for item in items:
        assert (item.item_id in short) == (item.max_tokens <= groups.short_up_to)
        assert (item.item_id in long) == (item.max_tokens >= groups.long_from)
    if max(lengths) > groups.short_up_to:  # there is something above the median
        num_above = sum(length > groups.short_up_to for length in lengths)
        assert len(long) >= min(len(items) // 10, num_above)


def test_the_bounds_of_a_mix() -> None:
    items = [WorkItem(str(index), (1,), 30 if index % 10 else 200) for index in range(100)]
    groups = group(items)
    assert (groups.short_up_to, groups.long_from) == (30, 31)
    assert (len(groups.members["short"]), len(groups.members["long"])) == (90, 10)
