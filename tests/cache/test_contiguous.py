"""Contiguous memory: a piece for the longest sequence each, against a list of pieces kept by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.cache.contiguous import ContiguousKVCacheManager
from inflight.core.errors import InvariantViolation


def test_a_sequence_reserves_its_whole_piece_at_its_first_token():
    kv = ContiguousKVCacheManager(num_blocks=7, block_size=4, max_model_len=12)
    assert (kv.num_blocks, kv.num_free_blocks) == (6, 6)  # two pieces of three; the seventh block is never used
    table = kv.allocate(("one", 0), 1)
    assert table == (0, 1, 2)
    assert kv.allocate(("one", 0), 12) == table
    assert [kv.num_blocks_for(n) for n in (0, 1, 12)] == [0, 3, 3]
    assert (kv.num_held(("one", 0)), kv.num_free_blocks) == (3, 3)


def test_when_all_pieces_are_held_nothing_changes():
    kv = ContiguousKVCacheManager(num_blocks=4, block_size=2, max_model_len=4)
    kv.allocate(("one", 0), 1)
    kv.allocate(("two", 0), 1)
    assert kv.allocate(("three", 0), 1) is None
    assert kv.block_table(("three", 0)) == ()
    kv.free(("one", 0))
    assert kv.allocate(("three", 0), 1) == (0, 1)
    with pytest.raises(InvariantViolation, match="two"):
        kv.check({("three", 0)}, ())


def test_memory_smaller_than_a_piece_holds_nobody():
    kv = ContiguousKVCacheManager(num_blocks=2, block_size=4, max_model_len=12)
    assert (kv.num_blocks, kv.allocate(("one", 0), 1)) == (0, None)


@given(
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(0, 30),
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 20)), max_size=40),
)
def test_pieces_never_overlap_and_none_is_lost(block_size, max_model_len, num_blocks, calls):
    kv = ContiguousKVCacheManager(num_blocks, block_size, max_model_len)
    piece = -(-max_model_len // block_size)
    held = {}
    for grow, name, num_tokens in calls:
        seq_id = (str(name), 0)
        if grow:
            table = kv.allocate(seq_id, min(num_tokens, max_model_len))
            assert (table is None) == (seq_id not in held and len(held) == num_blocks // piece)
            if table is not None:
                assert table == tuple(range(table[0], table[0] + piece)) == held.setdefault(seq_id, table)
        else:
            kv.free(seq_id)
            held.pop(seq_id, None)
        kv.check(held.keys(), ())
        blocks = [block for table in held.values() for block in table]
        assert len(blocks) == len(set(blocks)) == kv.num_blocks - kv.num_free_blocks
        assert all(0 <= block < num_blocks for block in blocks)
