"""What ``inflight plan memory`` finds out: one class for each part of its answer, all of it written by ``--json``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandReport:
    """What the model takes, and what the common formulas say."""

    num_parameters: int
    weight_bytes: int
    common_weight_bytes: int
    attention: str  # MHA, GQA or MQA
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_size: int
    num_hidden_layers: int
    kv_format: str
    kv_token_bytes: float
    common_kv_token_bytes: int
    block_bytes: int
    num_step_tokens: int  # of the largest step
    num_step_logits: int
    buffer_bytes: int  # of that step
    at_most_bytes: dict[str, int]  # beside them, by what it is for


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A batch of all seats, each with the longest prompt and the longest answer."""

    num_rows: int
    num_prompt_tokens: int
    num_output_tokens: int
    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersReport:
    """How many callers of one length the KV holds at once, by its format."""

    num_tokens: int  # prompt + output
    num_callers: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport:
    """What a server would start with."""

    notes: tuple[str, ...]
    room_bytes: int
    num_blocks: int
    kv_bytes: int
    num_host_blocks: int
    host_bytes: int
    max_model_len: int
    callers: list[CallersReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One line of the measurement, in bytes."""

    predicted: int
    measured: int

    @property
    def difference_percent(self) -> float:
        """How much more was measured."""
        return 100 * (self.measured / self.predicted - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReport:
    """What a loaded model took, beside what was predicted. Of the activations, only the buffers are compared."""

    num_kv_blocks: int
    weights: Compared
    kv: Compared
    buffers: Compared
    together: Compared


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """All of it. Either ``budget`` is there, or ``why_not``; ``measured`` where that was asked for."""

    model: str
    kernels: str
    available_bytes: int
    settings: dict[str, int | float | None]
    scheduler: str
    num_seats: int
    demand: DemandReport
    batch: BatchReport
    budget: BudgetReport | None = None
    why_not: str | None = None
    measured: MeasuredReport | None = None
