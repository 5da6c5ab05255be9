"""A real engine core over paper, which can be told by a prompt's first token to go wrong."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from fakes import PaperExecutor, PaperText
from inflight.core.errors import InvariantViolation
from inflight.core.output import MAIN_LANE, SchedulerOutput, StepResult
from inflight.core.request import Request, SamplingParams
from inflight.engine.clock import WallClock
from inflight.engine.core import EngineCore
from inflight.engine.events import EngineInfo
from inflight.engine.loop import Engine
from inflight.engine.recorder import RecentSteps, Recorder
from inflight.metrics.collect import Collector
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler

NORMAL, HANG, VIOLATE, EXIT = range(4)
MAX_NUM_SEQS = 4
MAX_MODEL_LEN = 50_000
BLOCK_SIZE = 16
VOCAB_SIZE = 10


class UnrulyExecutor(PaperExecutor):
    def __init__(self, num_blocks: int, step_s: float, closed: str | None) -> None:
        super().__init__(num_blocks, BLOCK_SIZE, VOCAB_SIZE)
        self._step_s = step_s
        self._closed = closed

    def execute(self, output: SchedulerOutput) -> StepResult:
        time.sleep(self._step_s)
        for new in output.new:
            match new.prompt_token_ids[0]:
                case 1:
                    time.sleep(3600)
                case 2:
                    raise InvariantViolation("a law was broken on purpose")
                case 3:
                    os._exit(7)
        return super().execute(output)

    def close(self) -> None:
        super().close()
        if self._closed is not None:
            Path(self._closed).touch()


def build(step_s: float = 0.0005, max_num_seqs: int = MAX_NUM_SEQS, closed: str | None = None) -> Engine:
    """``closed``: a file that is made when the executor is closed."""
    num_blocks = MAX_NUM_SEQS * MAX_MODEL_LEN // BLOCK_SIZE
    config = ContinuousConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max(8, max_num_seqs), max_model_len=MAX_MODEL_LEN
    )
    collector, recent = Collector(), RecentSteps()
    core = EngineCore(
        ContinuousScheduler(config, num_blocks, BLOCK_SIZE),
        {MAIN_LANE: UnrulyExecutor(num_blocks, step_s, closed)},
        PaperText,
        WallClock(),
        [collector, Recorder(recent.write)],
    )
    info = EngineInfo(
        model_name=f"paper-{os.getpid()}",
        num_parameters=0,
        weight_format="paper",
        device="cpu",
        num_threads=1,
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        scheduler=config.name,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        bytes_per_block=8 * BLOCK_SIZE,
    )
    return Engine(core, info, collector, recent)


def build_never() -> Engine:
    raise FileNotFoundError("there is no such model")


def build_exits() -> Engine:
    sys.exit("the licence was not accepted")


def build_slowly() -> Engine:
    time.sleep(3600)
    return build()


def build_once(path: str) -> Engine:
    """Works only while ``path`` does not exist, and makes it."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    return build()


quick = partial(build, step_s=0.0, max_num_seqs=64)


def request(request_id: str, prompt=(NORMAL, 5, 6), max_tokens: int | None = 20, **sampling) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        arrival_s=time.monotonic(),
    )
