"""From a configuration to an engine: the only file that knows every part."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inflight.config import EngineConfig
from inflight.core.observer import Observer
from inflight.core.scheduler import Scheduler
from inflight.engine.clock import WallClock
from inflight.engine.core import EngineCore
from inflight.engine.events import EngineInfo
from inflight.engine.executor import KVCapacity
from inflight.engine.loop import Engine, EngineFactory
from inflight.engine.recorder import RecentSteps, Recorder, Started, StepLog
from inflight.hub.resolve import ModelFiles
from inflight.metrics.collect import Collector
from inflight.runtime.calibrate import MAX_TOKENS
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.models.llama_sizes import StepSize
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig
from inflight.schedulers.memory import is_padded, num_scratch_blocks
from inflight.schedulers.registry import make_scheduler
from inflight.text.stream import TextStream
from inflight.text.tokenizer import Tokenizer

# Where torch comes with them, parts are imported in the process that runs the model: a server only names them.
if TYPE_CHECKING:
    from inflight.runtime.runner import ModelExecutor


def engine_factory(config: EngineConfig, files: ModelFiles, keep_prompts: bool) -> EngineFactory:
    """What the engine's own process calls to become one; can be pickled. See ``assemble``."""
    return partial(_load, config, files, keep_prompts)


def _load(config: EngineConfig, files: ModelFiles, keep_prompts: bool) -> Engine:
    return assemble(config, files, Tokenizer.load(files.path), keep_prompts)


def assemble(config: EngineConfig, files: ModelFiles, tokenizer: Tokenizer, keep_prompts: bool = False) -> Engine:
    """Load the model into this process and put an engine around it.

    ``keep_prompts`` puts the prompts' token ids into the metrics' records. Raises ``InflightError`` if the model
    cannot be loaded, ``ValueError`` if the configuration does not fit it, ``OSError`` if the step log cannot be
    written.
    """
    from inflight.runtime.load import load_executor

    runtime = without_idle_swap_space(config.runtime, config.scheduler)
    executor = load_executor(files.path, runtime, partial(largest_step, config.scheduler, runtime.block_size))
    limits, whys = decide_limits(config.scheduler, executor)
    scheduler = scheduler_over(executor.capacity, limits)
    path = None if config.step_log is None else Path(config.step_log)  # a program may have given a string
    step_log = None if path is None else start_step_log(path, limits, executor.capacity)
    notes = (*executor.notes, *whys)
    return engine_around(executor, scheduler, limits, tokenizer, step_log, files.name, notes, keep_prompts)


def scheduler_over(capacity: KVCapacity, limits: SchedulerConfig) -> Scheduler:
    """A scheduler over an executor's memory, whose prefix cache has a secret of its own."""
    return make_scheduler(
        limits, capacity.num_blocks, capacity.block_size, capacity.num_host_blocks, secrets.token_bytes()
    )


def without_idle_swap_space(runtime: RuntimeConfig, scheduler: SchedulerConfig) -> RuntimeConfig:
    """The settings without swap space, where the scheduler would never copy anything into it."""
    swaps = (
        isinstance(scheduler, ContinuousConfig)
        and scheduler.kv_allocator == "paged"
        and scheduler.preemption_mode != "recompute"
    )
    return runtime if swaps else replace(runtime, swap_space_bytes=0)


def start_step_log(path: Path, limits: SchedulerConfig, capacity: KVCapacity) -> StepLog:
    """A step log, begun for an engine. Raises ``OSError`` if it cannot be written."""
    step_log = StepLog(path)
    step_log.write(
        Started(limits.name, asdict(limits), capacity.num_blocks, capacity.block_size, capacity.num_host_blocks)
    )
    return step_log


def engine_around(
    executor: ModelExecutor,
    scheduler: Scheduler,
    limits: SchedulerConfig,
    tokenizer: Tokenizer,
    step_log: StepLog | None,
    model_name: str,
    notes: tuple[str, ...],
    keep_prompts: bool = False,
) -> Engine:
    """An engine around an executor that is loaded, and a scheduler that was made of ``limits``."""
    recent = RecentSteps()
    collector = Collector(keep_prompts, limits.num_seats)
    observers: list[Observer] = [collector, Recorder(recent.write)]
    if step_log is not None:
        observers.append(Recorder(step_log.write))
    core = EngineCore(
        scheduler,
        dict.fromkeys(scheduler.lanes, executor),
        partial(TextStream, tokenizer),
        WallClock(),
        observers,
    )
    info = EngineInfo(
        model_name=model_name,
        num_parameters=executor.model_config.num_parameters,
        weight_format=executor.model_config.weight_format,
        device=str(executor.device),
        num_threads=executor.num_threads,
        vocab_size=executor.model_config.vocab_size,
        scheduler=limits.name,
        max_model_len=limits.max_model_len or 0,
        max_num_seqs=limits.num_seats,
        max_num_batched_tokens=limits.max_num_batched_tokens if isinstance(limits, ContinuousConfig) else None,
        num_blocks=executor.capacity.num_blocks,
        block_size=executor.capacity.block_size,
        bytes_per_block=executor.capacity.bytes_per_block,
        notes=notes,
        max_num_waiting_seqs=limits.max_num_waiting_seqs,
    )
    return Engine(core=core, info=info, collector=collector, recent=recent, step_log=step_log)


def decide_limits(asked: SchedulerConfig, executor: ModelExecutor) -> tuple[SchedulerConfig, tuple[str, ...]]:
    """The configuration with the limits that depend on the model and the machine; and why they are so, for people."""
    capacity = executor.capacity
    max_model_len, why_len = effective_max_model_len(executor.model_config.max_position_embeddings, asked, capacity)
    if isinstance(asked, ContinuousConfig):
        measure = partial(measured_num_batched_tokens, executor)
        num_tokens, why_chunk = effective_num_batched_tokens(asked, max_model_len, capacity.block_size, measure)
        limits = replace(asked, max_model_len=max_model_len, max_num_batched_tokens=num_tokens)
        return limits, (why_len, why_chunk, _what_memory_does(asked, capacity))
    return replace(asked, max_model_len=max_model_len), (why_len, _why_batch(asked, max_model_len, capacity))


def effective_max_model_len(of_model: int, asked: SchedulerConfig, capacity: KVCapacity) -> tuple[int, str]:
    """The longest sequence, in tokens, that model, caller and KV cache all allow; and why, for people."""
    cache, num_blocks = "the KV cache", capacity.num_blocks
    if is_padded(asked):  # pads and dead rows need as much as the longest sequence
        cache, num_blocks = "half of the KV cache (padding takes the other)", num_blocks // 2
    bounds = {"the model": of_model, cache: num_blocks * capacity.block_size}
    if asked.max_model_len is not None:
        bounds["--max-model-len"] = asked.max_model_len
    effective = min(bounds.values())
    if effective < 1:
        raise ValueError(f"there is too little KV memory: {capacity.num_blocks} blocks, and padding needs half of them")
    why = ", ".join(f"{who} allows {num_tokens}" for who, num_tokens in bounds.items())
    if asked.kv_allocator == "contiguous":
        num_left = capacity.num_blocks - num_scratch_blocks(asked, effective, capacity.block_size)
        why += f"; reserved for each sequence, so that {num_left // -(-effective // capacity.block_size)} fit at once"
    return effective, f"max_model_len {effective} tokens: {why}"


def largest_step(asked: SchedulerConfig, block_size: int, of_model: int, num_blocks: int) -> StepSize:
    """The largest step that the scheduler may make with so many KV blocks: what memory is planned for.

    Where the tokens of a step are measured, it is the largest that the measurement tries. A rectangle may be as wide as
    the longest prompt in all of its rows; without padding a batch has no more tokens than the KV holds.
    """
    capacity = KVCapacity(max(num_blocks, 2), block_size, 0)  # fewer are refused when the limits are decided
    max_len, _ = effective_max_model_len(of_model, asked, capacity)
    if isinstance(asked, ContinuousConfig):
        num_tokens, _ = effective_num_batched_tokens(asked, max_len, block_size, lambda: (MAX_TOKENS, ""))
        return StepSize(num_tokens, asked.num_seats, max_len)
    num_tokens = asked.num_seats * max_len
    if not is_padded(asked):
        num_tokens = min(num_tokens, capacity.num_blocks * block_size)
    if isinstance(asked, DynamicConfig) and asked.max_tokens_in_batch is not None:
        num_tokens = min(num_tokens, asked.max_tokens_in_batch)
    return StepSize(num_tokens, asked.num_seats, max_len)


def _what_memory_does(config: ContinuousConfig, capacity: KVCapacity) -> str:
    """What is shared, and what becomes of a row that must give its memory up."""
    if config.kv_allocator == "contiguous":
        return "KV memory in one piece for each sequence: nothing is shared, and nobody is preempted"
    shared = {"none": "no prefix cache"}.get(config.prefix_index, f"prefix cache: {config.prefix_index}")
    tier = f", with {capacity.num_host_blocks:,} blocks in the host tier" if capacity.num_host_blocks else ""
    return f"{shared}; preemption by {config.preemption_mode}{tier}; admission: {config.admission}"


def _why_batch(config: SchedulerConfig, max_model_len: int, capacity: KVCapacity) -> str:
    """What a full batch of the longest sequences needs, beside what there is."""
    per_row = -(-max_model_len // capacity.block_size)
    num_blocks = capacity.num_blocks - num_scratch_blocks(config, max_model_len, capacity.block_size)
    beside = " beside those for padding" if is_padded(config) else ""
    waits = (
        f"; a batch of fewer than {config.batch_size} waits until it is full: see --fill-timeout-ms"
        if isinstance(config, StaticConfig) and config.fill_timeout_ms is None
        else ""
    )
    return (
        f"{config.name} batches of {config.num_seats}: {config.num_seats * per_row} KV blocks if all rows are of "
        f"max_model_len; there are {num_blocks}{beside}, and a batch that they cannot hold leaves with fewer rows"
        + waits
    )


def effective_num_batched_tokens(
    asked: ContinuousConfig, max_model_len: int, block_size: int, measure: Callable[[], tuple[int, str]]
) -> tuple[int, str]:
    """The tokens of a step, at most; and why, for people. What the machine can do is measured only if it matters."""
    if asked.max_num_batched_tokens is not None:
        return asked.max_num_batched_tokens, f"max_num_batched_tokens {asked.max_num_batched_tokens}: as configured"
    if not asked.enable_chunked_prefill:
        num_tokens = max(max_model_len, asked.max_num_seqs)
        return num_tokens, f"max_num_batched_tokens {num_tokens}: without chunked prefill a whole prompt is one step"
    measured, why = measure()
    floor = asked.max_num_seqs + block_size
    if measured < floor:
        return floor, f"max_num_batched_tokens {floor}: max_num_seqs and a block, so that prompts move on ({why})"
    return measured, f"max_num_batched_tokens {why}"


def measured_num_batched_tokens(executor: ModelExecutor) -> tuple[int, str]:
    """The tokens of a step of about 100 ms, and why."""
    from inflight.runtime.calibrate import calibrate_num_batched_tokens

    return calibrate_num_batched_tokens(executor)
