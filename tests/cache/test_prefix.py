"""Both indices of prefixes: what follows on a block is given up before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inflight.cache.prefix import PrefixIndex
from inflight.cache.prefix_hash import HashPrefixIndex
from inflight.cache.prefix_radix import RadixPrefixIndex
from inflight.core.errors import InvariantViolation
from inflight.core.request import Request, SamplingParams
from inflight.core.sequence import Sequence

INDICES = {"hash": lambda: HashPrefixIndex(2, b"key"), "radix": lambda: RadixPrefixIndex(2)}


def a_sequence(*token_ids: int) -> Sequence:
    request = Request(request_id=str(token_ids), prompt_token_ids=token_ids, sampling=SamplingParams(max_tokens=1))
    return Sequence(request, 0, (0.0, 0), len(token_ids) + 1)


FIRST, OTHER = a_sequence(0, 1, 2, 3, 4, 5, 6, 7), a_sequence(0, 1, 2, 3, 8, 9, 10)
FOLLOWERS = {0: {1, 2, 3, 4}, 1: {2, 3, 4}, 2: {3}, 3: set(), 4: set()}


def knowing(make_index: Callable[[], PrefixIndex], forgotten: tuple[int, ...]) -> PrefixIndex:
    """Blocks 0 and 1 begin both sequences, which go on with 2 and 3, and with 4."""
    index = make_index()
    assert index.publish(FIRST, (0, 1, 2, 3), 0) == (0, 1, 2, 3)
    assert index.publish(OTHER, (0, 1, 4), 2) == (4,)
    for block in forgotten:
        index.forget(block)
    return index


@pytest.mark.parametrize("order", [(3, 2, 4, 1, 0), (4, 3, 2, 1, 0), (3, 4, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("make_index", INDICES.values(), ids=INDICES)
def test_a_block_is_not_given_up_before_those_that_follow_on_it(
    make_index: Callable[[], PrefixIndex], order: tuple[int, ...]
) -> None:
    for count in range(len(order)):
        known = set(order[count:])
        for block in known:
            index = knowing(make_index, order[:count])
            index.check(known)
            assert index.find(OTHER, 3) == tuple(one for one in (0, 1, 4) if one in known)
            if FOLLOWERS[block] & known:
                with pytest.raises(
                    InvariantViolation, match=f"block {block} is given up before those that follow on it"
                ):
                    index.forget(block)
            else:
                index.forget(block)
                index.check(known - {block})
