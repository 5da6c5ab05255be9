"""The settings of a comparison; ``compare/variants.py`` says what is run with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight.workload.config import WorkloadConfig

FAMILIES = ("static", "dynamic", "continuous")
MIX_OUTPUTS = "0.9xuniform:16,48+0.1xuniform:192,256"  # where there is no trace: one answer of ten is long
MIX_PROMPTS = {"prompt_tokens": "lognormal:96,384,16,512", "num_requests": 64}  # ... and no prompts
MIX_LOAD = 0.8  # of the capacity, where nothing else says how fast requests arrive
MAX_SEATS = 4096


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
    num_seats: int = field(default=16, metadata={"help": "sequences of one step, in every family, 1 to 4096"})
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
        default=1, metadata={"help": "runs of each variant, in turns; the one of median duration is shown; from 1"}
    )

    def __post_init__(self) -> None:
        if not 1 <= self.num_seats <= MAX_SEATS:
            raise ValueError(f"num_seats must be in [1, {MAX_SEATS}], got {self.num_seats}")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        if self.load is not None and not 0 < self.load < math.inf:
            raise ValueError(f"load must be above 0 and finite, got {self.load}")
        if self.step_cost is not None and not self.simulated_steps:
            raise ValueError("step_cost is for --simulated-steps")
        if self.simulated_steps and self.repeats > 1:
            raise ValueError("simulated steps are the same each time: repeats must be 1")
        if unknown := [name for name in self._names if name not in FAMILIES]:
            raise ValueError(f"family {unknown[0]!r} is not known; there are: {', '.join(FAMILIES)}")
        if not self._names:
            raise ValueError(f"families names none; there are: {', '.join(FAMILIES)}")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The families that are run, in the order in which they are shown."""
        return tuple(name for name in FAMILIES if name in self._names)

    @property
    def _names(self) -> list[str]:
        return [name.strip() for name in self.families.split(",") if name.strip()]


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
