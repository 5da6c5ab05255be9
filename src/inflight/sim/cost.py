"""How long a step takes, as a linear function of what it computes; fitted to a step log by least squares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inflight.core.output import SchedulerOutput
from inflight.engine.recorder import Line, Scheduled, Updated


@dataclass(frozen=True, slots=True)
class LinearStepCost:
    """``duration_s = constant_s + per_token_s * tokens + per_context_token_s * context + per_copied_block_s * copies``.

    ``tokens`` are the query tokens that the step computes; ``context`` is how many stored tokens they attend to,
    summed over the query tokens; ``copies`` are the blocks that it copies between the KV memory and the host tier.
    """

    constant_s: float
    per_token_s: float
    per_context_token_s: float
    per_copied_block_s: float = 0.0

    def duration_s(self, output: SchedulerOutput) -> float:
        """The predicted duration of a step."""
        return (
            self.constant_s
            + self.per_token_s * output.num_computed_tokens
            + self.per_context_token_s * num_context_tokens(output)
            + self.copies_s(output)
        )

    def copies_s(self, output: SchedulerOutput) -> float:
        """What the copies take of that."""
        return self.per_copied_block_s * len(output.copies)


def num_context_tokens(output: SchedulerOutput) -> int:
    """Stored tokens that the query tokens of a step attend to, themselves included, summed over the query tokens."""
    runs = [(row.start, len(row.token_ids)) for row in output.scheduled]
    if output.padded_to is not None:
        runs += [(0, output.padded_to - q_len) for _, q_len in runs]
        runs += [(row.start, output.padded_to) for row in output.dead]
    return sum(q_len * start + q_len * (q_len + 1) // 2 for start, q_len in runs)


def fit_step_cost(log: Iterable[Line]) -> LinearStepCost:
    """The cost whose *relative* errors over a step log are least in the mean square; none of it is negative.

    Relative, because otherwise a few long steps with prompts would decide what the many short ones cost. What copies
    took is known of each step and set apart: a block's is the mean, and 0 where nothing was copied.

    Raises ``ValueError`` if fewer than three steps of the log succeeded.
    """
    outputs: dict[int, SchedulerOutput] = {}
    features: list[tuple[float, float, float]] = []
    durations_s: list[float] = []  # without the copies
    num_copied, copied_s = 0, 0.0
    for line in log:
        if isinstance(line, Scheduled):
            outputs[line.output.step] = line.output
        elif isinstance(line, Updated) and line.result is not None and line.step in outputs:
            output = outputs.pop(line.step)
            features.append((1.0, output.num_computed_tokens, num_context_tokens(output)))
            durations_s.append(line.result.duration_s - line.result.copies_s)
            num_copied += len(output.copies)
            copied_s += line.result.copies_s
    if len(durations_s) < 3:
        raise ValueError(f"a step cost is fitted to at least 3 steps; the log has {len(durations_s)}")
    measured_s = np.array(durations_s)
    weights = 1 / np.where(measured_s > 0, measured_s, 1.0)
    x, y = np.array(features) * weights[:, None], measured_s * weights
    active = [0, 1, 2]
    while True:  # drop what comes out negative and fit the rest again
        coefficients = np.linalg.lstsq(x[:, active], y, rcond=None)[0]
        if not active or (coefficients >= 0).all():
            break
        active = [column for column, value in zip(active, coefficients, strict=True) if value >= 0]
    fitted = dict(zip(active, coefficients.tolist(), strict=True))
    per_copied_block_s = copied_s / num_copied if num_copied else 0.0
    return LinearStepCost(fitted.get(0, 0.0), fitted.get(1, 0.0), fitted.get(2, 0.0), per_copied_block_s)
