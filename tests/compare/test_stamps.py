"""What is read from a step log, on runs in virtual time whose every instant is known."""

from pathlib import Path

from inflight.compare.machine import Machine, StepCost
from inflight.compare.simulated import outcomes_of_log, run_simulated
from inflight.compare.stamps import pauses_s, read_stamps
from inflight.explain.log import open_log
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig
from inflight.sim.cost import LinearStepCost
from inflight.workload.item import WorkItem

# Every step takes a second. Arrivals are at halves, so that nothing falls together.
MACHINE = Machine("paper", 10, 64, num_blocks=64, block_size=4, bytes_per_block=1, max_num_batched_tokens=64)
COST = StepCost(MACHINE, LinearStepCost(1.0, 0.0, 0.0), 3, 0.0, 0.0)


def run(config: SchedulerConfig, *items: tuple[float, int], tmp_path: Path) -> Path:
    """Requests of (arrival, new tokens), each with a prompt of two tokens."""
    work = [WorkItem(str(index), (1, 2), count, arrival_s) for index, (arrival_s, count) in enumerate(items)]
    log = tmp_path / "log.jsonl"
    run_simulated(COST, config, work, log)
    return log


def test_computed_and_given_out_are_apart(tmp_path: Path) -> None:
    config = StaticConfig(batch_size=2, max_model_len=32)
    log = run(config, (0.0, 2), (0.5, 5), tmp_path=tmp_path)
    stamps = read_stamps(open_log(log))
    # The batch is full at 0.5 and its five steps end at 1.5, 2.5, ...: the first row has its two tokens by 2.5.
    assert stamps["0"].computed == [(1.5, 1), (2.5, 1)]
    assert stamps["1"].computed == [(1.5 + step, 1) for step in range(5)]
    assert (stamps["0"].queue_s, stamps["1"].queue_s) == (0.5, 0.0)
    assert (stamps["0"].ttft_s, stamps["0"].tpot_s) == (1.5, 1.0)
    assert [(outcome.arrivals[0].at_s, outcome.end_s) for outcome in outcomes_of_log(log)] == [(5.5, 5.5), (5.5, 5.5)]


def test_pauses_between_batches_that_were_due(tmp_path: Path) -> None:
    # Two batches of two; the second is full at 1.5, while the first runs, and leaves when it ends: no pause.
    config = StaticConfig(batch_size=2, max_model_len=32)
    log = run(config, (0.0, 3), (0.0, 3), (1.0, 3), (1.5, 3), tmp_path=tmp_path)
    assert pauses_s(open_log(log)) == [0.0]


def test_waiting_for_a_batch_to_fill_is_no_pause(tmp_path: Path) -> None:
    config = StaticConfig(batch_size=2, max_model_len=32)
    log = run(config, (0.0, 1), (0.0, 1), (0.5, 1), (7.5, 1), tmp_path=tmp_path)
    assert pauses_s(open_log(log)) == []


def test_a_window_that_has_closed_is_due(tmp_path: Path) -> None:
    config = DynamicConfig(max_batch_size=4, max_wait_ms=500.0, max_model_len=32)
    log = run(config, (0.0, 3), (1.0, 1), (1.25, 1), (9.0, 1), (20.0, 1), tmp_path=tmp_path)
    # The first leaves at 0.5 and ends at 3.5; the next two are due by then, the others come to an idle engine.
    assert pauses_s(open_log(log)) == [0.0]


def test_continuous_pauses_only_while_somebody_is_there(tmp_path: Path) -> None:
    config = ContinuousConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=32)
    log = run(config, (0.0, 3), (20.0, 2), tmp_path=tmp_path)
    assert pauses_s(open_log(log)) == [0.0, 0.0, 0.0]  # two between three steps, one between two
