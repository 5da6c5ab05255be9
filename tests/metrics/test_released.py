"""A request-level batch withholds what it computes; both moments have a stamp, and TTFT counts to the release."""

from __future__ import annotations

import pytest

from fakes import PaperText
from inflight.core.request import Request, SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.executor import KVCapacity
from inflight.metrics.collect import Collector
from inflight.schedulers.config import ContinuousConfig, SchedulerConfig, StaticConfig
from inflight.schedulers.registry import make_scheduler
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate


def request(request_id: str, arrival_s: float, max_tokens: int) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(max_tokens=max_tokens),
        arrival_s=arrival_s,
    )


def records(config: SchedulerConfig) -> dict:
    """A short and a long request, two seconds apart, where every step takes one second."""
    clock, collector = VirtualClock(), Collector(num_seats=config.num_seats)
    executor = SimExecutor(KVCapacity(32, 4, 0), lambda output: 1.0)
    core = EngineCore(make_scheduler(config, 32, 4), {"main": executor}, PaperText, clock, [collector])
    simulate(core, ("main",), clock, [request("short", 0.0, 2), request("long", 2.0, 4)])
    return {record.request_id: record for record in collector.drain().ended}


def test_static_stamps_what_was_computed_and_what_was_released() -> None:
    ended = records(StaticConfig(batch_size=2, max_model_len=16))
    short, long = ended["short"], ended["long"]
    # The batch leaves at 2 s, when it is full, and comes back at 6 s, after the four steps of the long row.
    assert (short.queue_s, long.queue_s) == (2.0, 0.0)
    assert (short.computed_ttft_s, short.computed_e2e_s) == (3.0, 4.0)
    assert (short.ttft_s, short.e2e_s) == (6.0, 6.0)
    assert (long.computed_ttft_s, long.computed_e2e_s) == (1.0, 4.0)
    assert (long.ttft_s, long.e2e_s) == (4.0, 4.0)
    assert short.tpot_s == long.tpot_s == (0.0,)  # all tokens at once


def test_where_nothing_is_withheld_the_stamps_are_the_same() -> None:
    ended = records(ContinuousConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16))
    assert {name: (one.computed_ttft_s, one.computed_e2e_s) for name, one in ended.items()} == {
        name: (one.ttft_s, one.e2e_s) for name, one in ended.items()
    }
    assert ended["short"].e2e_s == pytest.approx(2.0)
