"""The driver in this process, over paper: everybody is served, on time, under every scheduler."""

from __future__ import annotations

import os
import signal

import pytest

from engine.process_fakes import build
from fakes import PaperExecutor, PaperText, unbatched
from inflight.bench.in_process import run_in_process
from inflight.bench.outcome import ErrorKind, Outcome
from inflight.core.output import MAIN_LANE, SchedulerOutput
from inflight.engine.clock import WallClock
from inflight.engine.core import EngineCore
from inflight.engine.loop import Engine
from inflight.metrics.collect import Collector
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig
from inflight.schedulers.registry import make_scheduler
from inflight.workload.item import WorkItem

VOCAB_SIZE, MAX_LEN = 10, 64


def engine_of(config: SchedulerConfig, failure=lambda output: None) -> Engine:
    executor = PaperExecutor(256, 4, VOCAB_SIZE, failure)
    collector = Collector()
    core = EngineCore(make_scheduler(config, 256, 4), {MAIN_LANE: executor}, PaperText, WallClock(), [collector])
    template = build()
    return Engine(core, template.info, collector, template.recent)


CONFIGS = {
    "continuous": ContinuousConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=MAX_LEN),
    "static": StaticConfig(batch_size=4, max_model_len=MAX_LEN),
    "dynamic": DynamicConfig(max_batch_size=4, max_wait_ms=20.0, max_model_len=MAX_LEN),
}


def items(*arrivals_s: float, max_tokens: int = 5) -> list[WorkItem]:
    return [WorkItem(str(index), (index % VOCAB_SIZE, 5, 6), max_tokens, at_s) for index, at_s in enumerate(arrivals_s)]


def by_id(outcomes: list[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: int(outcome.item_id))


@pytest.mark.parametrize("max_concurrency", [None, 1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_everybody_gets_the_tokens_that_a_lone_request_gets(name: str, max_concurrency: int | None) -> None:
    work = items(0.0, 0.0, 0.03, 0.0, 0.01, 0.03, 0.0)
    outcomes = by_id(run_in_process(engine_of(CONFIGS[name]), work, max_concurrency))
    assert len(outcomes) == 7
    for item, outcome in zip(work, outcomes, strict=True):
        request = item.request(arrival_s=0.0)
        assert list(outcome.token_ids or ()) == unbatched(request, 0, MAX_LEN, VOCAB_SIZE)
        assert (outcome.error, outcome.num_output_tokens, outcome.num_prompt_tokens) == (None, 5, 3)
        assert outcome.text == "".join(map(str, outcome.token_ids or ()))
        assert outcome.scheduled_s <= outcome.due_s == outcome.sent_s <= outcome.arrivals[0].at_s
        assert outcome.arrivals[-1].at_s == outcome.end_s


@pytest.mark.parametrize("name", CONFIGS)
def test_nobody_is_sent_before_it_arrives(name: str) -> None:
    outcomes = by_id(run_in_process(engine_of(CONFIGS[name]), items(0.0, 0.02, 0.04)))
    start_s = outcomes[0].scheduled_s
    assert [round(outcome.sent_s - start_s, 6) for outcome in outcomes] == [0.0, 0.02, 0.04]
    assert all(outcome.arrivals[0].at_s >= outcome.sent_s for outcome in outcomes)


def test_callers_wait_for_their_answers() -> None:
    rows = []
    config = ContinuousConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=MAX_LEN)
    outcomes = run_in_process(
        engine_of(config), items(*[0.0] * 9), 3, on_step=lambda output, result, at_s: rows.append(len(output.scheduled))
    )
    assert rows == [3] * 15  # three waves of three, five steps each
    ends_s = sorted(outcome.end_s for outcome in outcomes)
    assert sorted(outcome.due_s for outcome in outcomes)[3:] == ends_s[:6]


def test_a_static_batch_comes_back_together_and_the_last_one_need_not_be_full() -> None:
    outcomes = by_id(run_in_process(engine_of(CONFIGS["static"]), items(*[0.0] * 6)))
    assert len({outcome.end_s for outcome in outcomes[:4]}) == len({outcome.end_s for outcome in outcomes[4:]}) == 1
    assert outcomes[0].end_s < outcomes[4].end_s
    assert all(outcome.ttft_s == outcome.e2el_s and outcome.tpot_s == 0.0 for outcome in outcomes)


def test_a_batch_that_cannot_be_filled_leaves_as_it_is() -> None:
    rows = []
    outcomes = run_in_process(
        engine_of(CONFIGS["static"]),
        items(*[0.0] * 4),
        2,
        on_step=lambda output, result, at_s: rows.append(len(output.scheduled)),
    )
    assert len(outcomes) == 4
    assert set(rows) == {2}


def test_a_dynamic_batch_waits_for_its_window() -> None:
    (outcome,) = run_in_process(engine_of(CONFIGS["dynamic"]), items(0.0))
    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= 0.02


def test_what_is_refused_or_fails_is_an_outcome() -> None:
    work = [*items(0.0, 0.0), WorkItem("2", (1,) * MAX_LEN, 5), WorkItem("3", (VOCAB_SIZE,), 5)]
    outcomes = by_id(run_in_process(engine_of(CONFIGS["continuous"]), work, 1))
    kinds = [outcome.error.kind if outcome.error else None for outcome in outcomes]
    assert kinds == [None, None, ErrorKind.REFUSED, ErrorKind.REFUSED]
    assert all(outcome.error.message for outcome in outcomes if outcome.error)

    def tears(output: SchedulerOutput):
        raise RuntimeError("torn")

    failed = run_in_process(engine_of(CONFIGS["continuous"], tears), items(0.0, 0.0))
    assert [outcome.error.kind for outcome in failed if outcome.error] == [ErrorKind.FAILED] * 2


def test_progress_is_told_each_outcome_and_the_engine_can_be_used_again() -> None:
    engine = engine_of(CONFIGS["static"])
    for _ in range(2):
        told: list[Outcome] = []
        assert run_in_process(engine, items(0.0, 0.0, 0.0), None, told.append) == told
        assert len(told) == 3
        assert not engine.core.has_work
    assert run_in_process(engine, []) == []


def test_ctrl_c_gives_what_had_ended() -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        told: list[Outcome] = []

        def interrupt(outcome: Outcome) -> None:
            told.append(outcome)
            os.kill(os.getpid(), signal.SIGINT)

        outcomes = run_in_process(engine_of(CONFIGS["continuous"]), items(0.0, 3600.0), None, interrupt)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert outcomes == told
    assert [outcome.item_id for outcome in outcomes] == ["0"]
