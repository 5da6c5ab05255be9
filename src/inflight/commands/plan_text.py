"""The plan of ``inflight plan memory``, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from inflight.commands.plan_report import BatchReport, BudgetReport, DemandReport, MeasuredReport, PlanReport
from inflight.runtime.memory_demand import gib


def as_text(report: PlanReport) -> str:
    """All of it; what was not computed is left out."""
    lines = [f"{report.model}. {report.kernels}", *_formulas(report.demand), *_activations(report.demand)]
    lines += [*_batch(report.batch), ""]
    if report.budget is None:
        lines.append(f"It does not fit. {report.why_not}")
    else:
        lines += _budget(report.budget, report)
    if report.measured is not None:
        lines += ["", *_measured(report.measured)]
    return "\n".join(lines)


def _formulas(demand: DemandReport) -> Iterator[str]:
    weights, common = demand.weight_bytes, demand.common_weight_bytes
    each = weights / demand.num_parameters
    yield f"Weights      {demand.num_parameters:,} parameters x {each:.4g} bytes = {gib(weights)}"
    yield f"             the common formula, parameters x 2 bytes = {gib(common)}: {common / weights:.2f} times that"
    layers, kv_heads, head_dim = demand.num_hidden_layers, demand.num_key_value_heads, demand.head_dim
    token, common_token = demand.kv_token_bytes, demand.common_kv_token_bytes
    value = token / (2 * layers * kv_heads * head_dim)
    yield f"Attention    {demand.attention}: {demand.num_attention_heads} query heads on {kv_heads} KV heads"
    yield (
        f"KV           2 x {layers} layers x {kv_heads} KV heads x {head_dim} dims x {value:.4g} bytes "
        f"({demand.kv_format}) = {token:,.0f} bytes a token"
    )
    yield (
        "             the common formula, 2 x batch x seq x hidden x layers x 2 bytes = "
        f"{common_token:,} bytes a token: {common_token / token:.2f} times that"
    )


def _activations(demand: DemandReport) -> Iterator[str]:
    yield (
        f"Activations  {gib(demand.buffer_bytes)} of buffers in a step of {demand.num_step_tokens:,} tokens and "
        f"{demand.num_step_logits:,} rows of logits"
    )
    at_most = " and ".join(f"{gib(size)} for {what}" for what, size in demand.at_most_bytes.items())
    yield f"             at most {at_most} beside them"


def _batch(batch: BatchReport) -> Iterator[str]:
    yield (
        f"A batch      {batch.num_rows} rows of {batch.num_prompt_tokens:,} + {batch.num_output_tokens:,} tokens: "
        f"weights {gib(batch.weight_bytes)} + KV {gib(batch.kv_bytes)} + activations {gib(batch.activation_bytes)} = "
        f"{gib(batch.total_bytes)}"
    )


def _budget(budget: BudgetReport, report: PlanReport) -> Iterator[str]:
    yield "As a server would start now:"
    yield from (f"  {note}" for note in budget.notes)
    yield ""
    yield (
        f"Callers whose KV fits at once, by the format of the KV ({report.scheduler} batching runs up to "
        f"{report.num_seats} at once):"
    )
    yield "  prompt + output" + "".join(f"{name:>10}" for name in budget.callers[0].num_callers)
    for row in budget.callers:
        longest = "  (max_model_len)" if row.num_tokens == budget.max_model_len else ""
        yield f"  {row.num_tokens:>8,} tokens" + "".join(f"{n:>10,}" for n in row.num_callers.values()) + longest


def _measured(found: MeasuredReport) -> Iterator[str]:
    lines = {
        "weights": found.weights,
        f"KV of {found.num_kv_blocks:,} blocks": found.kv,
        "buffers": found.buffers,
        "together": found.together,
    }
    width = max(map(len, lines))
    yield f"Measured     {'':{width}}  predicted       measured   difference"
    for what, one in lines.items():
        yield (f"  {what:<{width}}  {one.predicted:>19,.0f}  {one.measured:>13,.0f}  {one.difference_percent:>+9.2f} %")
