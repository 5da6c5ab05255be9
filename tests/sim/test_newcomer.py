"""A newcomer beside one long row: request-level batching keeps it out until the end, continuous for one step."""

from __future__ import annotations

import pytest

from fakes import PaperText
from inflight.core.request import Request, SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.executor import KVCapacity
from inflight.metrics.collect import Collector
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig
from inflight.schedulers.registry import make_scheduler
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate

STEP_S, LONG, ARRIVAL_S = 1.0, 100, 10.5


def request(request_id: str, arrival_s: float, max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request(request_id=request_id, prompt_token_ids=(1, 2, 3), sampling=sampling, arrival_s=arrival_s)


def newcomer_ttft_s(config: SchedulerConfig) -> float:
    clock, collector = VirtualClock(), Collector()
    executor = SimExecutor(KVCapacity(128, 4, 0), lambda output: STEP_S)
    core = EngineCore(make_scheduler(config, 128, 4), {"main": executor}, PaperText, clock, [collector])
    simulate(core, ("main",), clock, [request("long", 0.0, LONG), request("newcomer", ARRIVAL_S, 1)])
    (record,) = [one for one in collector.drain().ended if one.request_id == "newcomer"]
    return record.ttft_s


@pytest.mark.parametrize(
    "config",
    [
        DynamicConfig(max_batch_size=4, max_wait_ms=0.0, max_model_len=128),
        StaticConfig(batch_size=4, fill_timeout_ms=0.0, max_model_len=128),
    ],
    ids=lambda config: config.name,
)
def test_a_running_batch_shuts_newcomers_out(config: SchedulerConfig) -> None:
    remaining_s = LONG * STEP_S - ARRIVAL_S
    assert newcomer_ttft_s(config) == remaining_s + STEP_S


def test_continuous_batching_lets_them_in_at_the_next_step() -> None:
    config = ContinuousConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=128)
    assert newcomer_ttft_s(config) <= 2 * STEP_S
