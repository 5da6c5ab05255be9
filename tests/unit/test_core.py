"""EngineCore: what an executor raises is the step's, and what a step log cannot write is not the engine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import PaperExecutor, PaperText
from inflight.core.errors import InvariantViolation
from inflight.core.output import MAIN_LANE, FinishReason
from inflight.core.request import Request, SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.recorder import Recorder, Started, StepLog
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler


class RaisingExecutor(PaperExecutor):
    """Raises whenever a row of the culprit is in the step."""

    def __init__(self, error):
        super().__init__(16, 4)
        self._error = error

    def execute(self, output):
        self.known |= {new.seq_id for new in output.new}
        if any(row.seq_id[0] == "culprit" for row in output.scheduled):
            raise self._error
        return super().execute(output)


def core_with(executor, observers=()):
    config = ContinuousConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=32)
    return EngineCore(ContinuousScheduler(config, 16, 4), {MAIN_LANE: executor}, PaperText, VirtualClock(), observers)


def run(core, *names):
    for name in names:
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        core.add(Request(request_id=name, prompt_token_ids=(0, 1), sampling=sampling))
    ends = {}
    while core.has_work:
        ends |= {delta.seq_id[0]: (delta.finish_reason, delta.error) for delta in core.step() if delta.finish_reason}
    return ends


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), TypeError("no"), KeyError("x")], ids=repr)
def test_whatever_an_executor_raises_fails_the_culprit_alone(error):
    ends = run(core_with(RaisingExecutor(error)), "one", "culprit", "two")
    assert ends["one"] == ends["two"] == (FinishReason.LENGTH, None)
    reason, message = ends["culprit"]
    assert reason is FinishReason.ERROR
    assert type(error).__name__ in message


def test_a_broken_invariant_is_nobodys_fault_and_passes_through():
    with pytest.raises(InvariantViolation):
        run(core_with(RaisingExecutor(InvariantViolation("ours"))), "culprit")


def test_a_step_log_that_cannot_be_written_ends_and_the_engine_goes_on(caplog):
    log = StepLog(Path("/dev/full"))
    log.write(Started("continuous", {}, 16, 4))
    ends = run(core_with(PaperExecutor(16, 4), [Recorder(log.write)]), "one", "two")
    assert ends == {"one": (FinishReason.LENGTH, None), "two": (FinishReason.LENGTH, None)}
    assert ["/dev/full" in record.message for record in caplog.records] == [True]


def test_a_step_log_may_be_a_device_and_says_which_file_it_cannot_open(tmp_path):
    StepLog(Path("/dev/null")).write(Started("continuous", {}, 16, 4))
    with pytest.raises(OSError, match=str(tmp_path)):
        StepLog(tmp_path)
