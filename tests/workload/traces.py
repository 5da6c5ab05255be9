"""Traces for the laws: few ids, so that prefixes are shared, and blocks of few tokens."""

from hypothesis import strategies as st

from inflight.workload.trace import Trace, TraceRequest


@st.composite
def traces(draw: st.DrawFn, min_size: int = 1) -> Trace:
    block_tokens = draw(st.integers(1, 9))
    arrivals = sorted(draw(st.lists(st.floats(0, 1e4), min_size=min_size, max_size=12)))
    requests = []
    for arrival_s in arrivals:
        prefix_ids = tuple(draw(st.lists(st.integers(0, 2), max_size=4)))
        own = draw(st.integers(0 if prefix_ids else 1, 2 * block_tokens))
        last_missing = draw(st.integers(0, block_tokens - 1)) if prefix_ids and own == 0 else 0
        num_prompt_tokens = len(prefix_ids) * block_tokens + own - last_missing
        num_output_tokens = draw(st.integers(1, 40))
        requests.append(
            TraceRequest(arrival_s, num_prompt_tokens, num_output_tokens, prefix_ids, block_tokens if prefix_ids else 0)
        )
    return Trace(tuple(requests))
