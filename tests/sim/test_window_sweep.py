"""Windows of 0 to 200 ms in virtual time: every batch leaves exactly when it must, and longer windows cost waiting."""

from __future__ import annotations

import math
import random
from statistics import mean

import pytest

from fakes import PaperText
from inflight.core.output import DeadRow, ScheduledSequence, SchedulerOutput
from inflight.core.request import Request, SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.executor import KVCapacity
from inflight.schedulers.config import DynamicConfig, StaticConfig
from inflight.schedulers.registry import make_scheduler
from inflight.sim.cost import LinearStepCost, num_context_tokens
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate

COST = LinearStepCost(constant_s=2e-3, per_token_s=5e-5, per_context_token_s=1e-7)
WINDOWS_MS = (0, 1, 5, 10, 50, 200)
MAX_BATCH_SIZE = 8


def poisson(rate_per_s, num_requests, seed):
    rng = random.Random(seed)
    now_s, requests = 0.0, []
    for index in range(num_requests):
        now_s += rng.expovariate(rate_per_s)
        sampling = SamplingParams(max_tokens=rng.randint(2, 14))
        prompt = (0,) * rng.randint(1, 30)
        requests.append(Request(request_id=str(index), prompt_token_ids=prompt, sampling=sampling, arrival_s=now_s))
    return requests


class Batches:
    """An observer that keeps when batches left, with whom, and when they came back."""

    def __init__(self):
        self.starts_s, self.rows, self.ends_s = [], [], []
        self._runs = False

    def on_schedule(self, output, now_s):
        if not self._runs:
            self.starts_s.append(now_s)
            self.rows.append([row.seq_id[0] for row in output.scheduled])
            self._runs = True

    def on_update(self, output, result, stops, events, now_s):
        if events:
            self.ends_s.append(now_s)
            self._runs = False

    def on_add(self, *_):
        pass

    on_abort = on_flush = on_add


def run(config, requests):
    clock, batches = VirtualClock(), Batches()
    scheduler = make_scheduler(config, 4096, 16)
    executor = SimExecutor(KVCapacity(4096, 16, 0), COST.duration_s)
    core = EngineCore(scheduler, {"main": executor}, PaperText, clock, [batches])
    simulate(core, ("main",), clock, requests)
    return batches


def check_starts(batches, requests, size, window_s):
    """start = max(engine free, min(arrival of the N-th, arrival of the oldest + window)), not a tick off."""
    arrivals_s = [request.arrival_s for request in requests]
    free_s, first = 0.0, 0
    for start_s, rows, end_s in zip(batches.starts_s, batches.rows, batches.ends_s, strict=True):
        nth_s = arrivals_s[first + size - 1] if first + size <= len(arrivals_s) else math.inf
        assert start_s == max(free_s, min(nth_s, arrivals_s[first] + window_s))
        here = [request.request_id for request in requests[first:] if request.arrival_s <= start_s]
        assert rows == here[:size]
        free_s, first = end_s, first + len(rows)
    assert first == len(requests)


def ranks(values):
    return [sorted(values).index(value) for value in values]


def spearman(xs, ys):
    num = len(xs)
    return 1 - 6 * sum((x - y) ** 2 for x, y in zip(ranks(xs), ranks(ys), strict=True)) / (num * (num**2 - 1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate_per_s", [5, 15, 25])
def test_longer_windows_make_larger_batches_and_longer_waits(rate_per_s, seed, tell):
    requests = poisson(rate_per_s, 400, seed)
    arrivals_s = {request.request_id: request.arrival_s for request in requests}
    sizes, waits_s = [], []
    for window_ms in WINDOWS_MS:
        batches = run(DynamicConfig(max_batch_size=MAX_BATCH_SIZE, max_wait_ms=window_ms, max_model_len=64), requests)
        check_starts(batches, requests, MAX_BATCH_SIZE, window_ms / 1000)
        sizes.append(mean(map(len, batches.rows)))
        waits_s.append(
            mean(
                start_s - arrivals_s[row]
                for start_s, rows in zip(batches.starts_s, batches.rows, strict=True)
                for row in rows
            )
        )
    # What a window adds to the waiting that there is without one.
    added_s = [wait_s - waits_s[0] for wait_s in waits_s]
    assert spearman(WINDOWS_MS, sizes) >= 0.9
    assert spearman(WINDOWS_MS, added_s) >= 0.9
    assert sizes[-1] > 1.3 * sizes[0]
    assert added_s[-1] > 0.05
    assert max(added_s) <= 0.2  # nobody waits for longer than the window, where the engine is free
    if seed == 0:
        rows = zip(WINDOWS_MS, sizes, added_s, strict=True)
        table = ", ".join(f"{w} ms: {s:.2f} rows, {a * 1000:.1f} ms" for w, s, a in rows)
        tell(f"at {rate_per_s} requests per second, mean batch and added wait by window: {table}")


@pytest.mark.parametrize("timeout_ms", [None, 0, 20, 500])
def test_static_batches_start_at_the_same_law(timeout_ms):
    requests = poisson(30, 200, seed=7)
    batches = run(StaticConfig(batch_size=4, fill_timeout_ms=timeout_ms, max_model_len=64), requests)
    check_starts(batches, requests, 4, math.inf if timeout_ms is None else timeout_ms / 1000)
    if timeout_ms is None:
        assert [len(rows) for rows in batches.rows] == [4] * 50


def test_a_padded_step_costs_what_it_computes():
    """A row of 3 beside one of 5, and a dead row at 7: 15 tokens; contexts 1+2+3, 1+2, 1+..+5 and 8+..+12."""
    rows = (
        ScheduledSequence(("a", 0), (0,) * 3, 0, (0,), 1),
        ScheduledSequence(("b", 0), (0,) * 5, 0, (1,), 1),
    )
    padded = SchedulerOutput("main", 0, rows, padded_to=5, dead=(DeadRow(("c", 0), 7),), scratch_table=(9,))
    ragged = SchedulerOutput("main", 0, rows)
    assert (padded.num_computed_tokens, num_context_tokens(padded)) == (15, 6 + 3 + 15 + 50)
    assert (ragged.num_computed_tokens, num_context_tokens(ragged)) == (8, 6 + 15)
    cost = LinearStepCost(1.0, 0.5, 0.25)
    assert cost.duration_s(padded) == 1.0 + 15 * 0.5 + 74 * 0.25
