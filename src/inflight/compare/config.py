"""The settings of a comparison, and the variants of batching that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inflight.runtime.config import RuntimeConfig
from inflight.schedulers.config import ContinuousConfig, DynamicConfig, SchedulerConfig, StaticConfig
from inflight.workload.config import WorkloadConfig

FAMILIES = ("static", "dynamic", "continuous")
MIX_OUTPUTS = "0.9xuniform:16,48+0.1xuniform:192,256"  # where there is no trace: one answer of ten is long
MIX_PROMPTS = {"prompt_tokens": "lognormal:96,384,16,512", "num_requests": 64}  # ... and no prompts
MIX_LOAD = 0.8  # of the capacity, where nothing else says how fast requests arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """The comparison. Raises ``ValueError`` for values out of range or at odds with each other."""

    out: Path = field(default=Path("comparison"), metadata={"help": "the folder that is written"})
    force: bool = field(default=False, metadata={"help": "replace what an earlier comparison has left in that folder"})
    families: str = field(
        default=",".join(FAMILIES), metadata={"help": f"which are run, of {', '.join(FAMILIES)}, with commas between"}
    )
    with_no_padding: bool = field(
        default=False, metadata={"help": "run static and dynamic also ragged: the same policy without padding"}
    )
    with_contiguous: bool = field(
        default=False, metadata={"help": "run continuous also with max_model_len tokens of KV reserved for each row"}
    )
    num_seats: int = field(default=16, metadata={"help": "sequences that can be in one step, in every family; from 1"})
    max_wait_ms: float = field(default=50.0, metadata={"help": "dynamic: how long the oldest waits for others, from 0"})
    fill_timeout_ms: float | None = field(
        default=None,
        metadata={"help": "static: how long the oldest waits for a full batch, from 0; none: to the end of the trace"},
    )
    max_model_len: int | None = field(
        default=None, metadata={"help": "prompt and output of one sequence, in tokens, from 1; none: all that fits"}
    )
    max_num_batched_tokens: int | None = field(
        default=None,
        metadata={"help": "tokens in one step of continuous with chunked prefill; none: measured, about 100 ms"},
    )
    load: float | None = field(
        default=None,
        metadata={
            "help": "requests arrive at this share of what continuous batching can serve, which is measured first; "
            f"above 0; none: as --request-rate or the trace say, {MIX_LOAD:g} without either"
        },
    )
    simulated_steps: bool = field(
        default=False,
        metadata={"help": "run no model: steps take as long as a cost says that is fitted to a short real run"},
    )
    step_cost: Path | None = field(
        default=None,
        metadata={"help": "with --simulated-steps: the step_cost.json of an earlier comparison; nothing is loaded"},
    )
    repeats: int = field(
        default=1, metadata={"help": "runs of each variant, in turns; the one of median throughput is shown; from 1"}
    )

    def __post_init__(self) -> None:
        for name in ("num_seats", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.load is not None and not 0 < self.load < math.inf:
            raise ValueError(f"load must be above 0 and finite, got {self.load}")
        if self.step_cost is not None and not self.simulated_steps:
            raise ValueError("step_cost is for --simulated-steps")
        if self.simulated_steps and self.repeats > 1:
            raise ValueError("simulated steps are the same each time: repeats must be 1")
        variants(self)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The families that are run. Raises ``ValueError`` for none, or one that is not known."""
        names = [name.strip() for name in self.families.split(",") if name.strip()]
        if unknown := [name for name in names if name not in FAMILIES]:
            raise ValueError(f"family {unknown[0]!r} is not known; there are: {', '.join(FAMILIES)}")
        if not names:
            raise ValueError(f"families names none; there are: {', '.join(FAMILIES)}")
        return tuple(name for name in FAMILIES if name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The engine that all variants share."""

    model: str | None = field(
        default=None,
        metadata={"help": "a folder (safetensors or GGUF), a .gguf file or a hub name; absent: the built-in model"},
    )
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to batch that is run; ``name`` is its key in the results, ``title`` what people read."""

    name: str
    title: str
    scheduler: SchedulerConfig

    @property
    def family(self) -> str:
        """Static, dynamic or continuous."""
        return self.scheduler.name


def variants(config: CompareConfig) -> list[Variant]:
    """What is run, in the order in which it is shown; limits that depend on the model are still open."""
    shared: dict[str, Any] = {"max_model_len": config.max_model_len, "max_num_waiting_seqs": None}
    static = StaticConfig(batch_size=config.num_seats, fill_timeout_ms=config.fill_timeout_ms, **shared)
    dynamic = DynamicConfig(max_batch_size=config.num_seats, max_wait_ms=config.max_wait_ms, **shared)
    continuous = continuous_config(config)
    unchunked = replace(continuous, enable_chunked_prefill=False, max_num_batched_tokens=None)
    every = [Variant("static", "static", static)]
    if config.with_no_padding:
        every.append(Variant("static_ragged", "static, no padding", replace(static, padding=False)))
    every.append(Variant("dynamic", "dynamic", dynamic))
    if config.with_no_padding:
        every.append(Variant("dynamic_ragged", "dynamic, no padding", replace(dynamic, padding=False)))
    every += [
        Variant("continuous", "continuous", continuous),
        Variant("continuous_unchunked", "continuous, whole prompts", unchunked),
    ]
    if config.with_contiguous:
        contiguous = replace(continuous, kv_allocator="contiguous")
        every.append(Variant("continuous_contiguous", "continuous, contiguous KV", contiguous))
    return [variant for variant in every if variant.family in config.chosen]


def continuous_config(config: CompareConfig) -> ContinuousConfig:
    """Continuous batching with chunked prefill: also what the offered load is measured against."""
    return ContinuousConfig(
        max_num_seqs=config.num_seats,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        max_num_waiting_seqs=None,
    )


def read_workload_config(config: CompareConfig, given: Mapping[str, Any]) -> tuple[WorkloadConfig, float | None]:
    """The workload, and the load at which it arrives; with a load its rate is still open (infinite).

    ``given`` are values of ``WorkloadConfig`` by field name. Raises ``ValueError`` for values out of range or at odds.
    """
    values = dict(given)
    if config.load is not None and "request_rate" in values:
        raise ValueError("load and request_rate exclude each other: both say how fast requests arrive")
    if "trace" not in values:
        values = {"output_tokens": MIX_OUTPUTS, **({} if "prompts" in values else MIX_PROMPTS), **values}
    load = config.load
    if load is None and "request_rate" not in values and "trace" not in values:
        load = MIX_LOAD
    if load is not None:
        values["request_rate"] = math.inf
    return WorkloadConfig(**values), load
