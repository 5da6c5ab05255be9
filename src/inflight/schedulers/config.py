"""The limits and the policy of continuous batching."""

from __future__ import annotations

from dataclasses import dataclass, field

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True)
class ContinuousConfig:
    """Limits and policy of continuous batching. Raises ``ValueError`` for a value out of range.

    The two limits that depend on the model and the machine may be left open; whoever makes a scheduler decides them.
    """

    max_num_seqs: int = field(default=32, metadata={"help": "sequences that run at once, at most"})
    max_num_batched_tokens: int | None = field(
        default=None,
        metadata={"help": "tokens in one step, at most, from 1; none: measured, so that a step takes about 100 ms"},
    )
    max_model_len: int | None = field(
        default=None,
        metadata={"help": "prompt and output of one sequence, in tokens, from 1; none: all that fits"},
    )
    enable_chunked_prefill: bool = field(default=True, metadata={"help": "split a prompt over several steps"})
    scheduling_policy: str = field(
        default="fcfs",
        metadata={"help": "who is served first: by arrival, or by priority (lower first)", "choices": POLICIES},
    )
    priority_ageing_s: float = field(
        default=30.0, metadata={"help": "seconds of waiting that raise a request by one priority class"}
    )
    max_preemptions: int = field(
        default=4, metadata={"help": "preemptions of one sequence, at most; then it keeps its memory until it ends"}
    )
    max_num_waiting_seqs: int | None = field(
        default=1024, metadata={"help": "sequences that wait, at most; more are refused; none: no limit"}
    )

    def __post_init__(self) -> None:
        num_batched, max_len = self.max_num_batched_tokens, self.max_model_len
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_num_waiting_seqs"):
            value = getattr(self, name)
            if value is None and name != "max_num_seqs":
                continue
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if num_batched is not None and num_batched < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({num_batched}) must be at least max_num_seqs ({self.max_num_seqs}): every "
                "running sequence gets a token in every step"
            )
        if not self.enable_chunked_prefill and num_batched is not None and num_batched < (max_len or 0):
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({num_batched}) must be at least max_model_len "
                f"({max_len}): a prompt runs in one step"
            )
        if self.scheduling_policy not in POLICIES:
            raise ValueError(f"scheduling_policy must be one of {POLICIES}, got {self.scheduling_policy!r}")
        if not 0.001 <= self.priority_ageing_s <= 86_400:
            raise ValueError(f"priority_ageing_s must be in [0.001, 86400], got {self.priority_ageing_s}")
        if self.max_preemptions < 0:
            raise ValueError(f"max_preemptions must be at least 0, got {self.max_preemptions}")
