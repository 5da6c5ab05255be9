"""The plan of ``inflight plan memory``, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inflight.runtime.memory_plan import gib


def as_text(report: Mapping[str, Any]) -> str:
    """All of it; what was not computed is left out."""
    return "\n".join(
        (
            f"{report['model']}. {report['kernels']}",
            *_formulas(report),
            *_activations(report),
            *_batch(report["batch"]),
            *(_budget(report) if report["fits"] else ("", f"It does not fit. {report['why_not']}")),
            *_measured(report.get("measured", {})),
        )
    )


def _formulas(report: Mapping[str, Any]) -> Iterator[str]:
    weights, common = report["weight_bytes"], report["common_weight_bytes"]
    each = weights / report["num_parameters"]
    yield f"Weights      {report['num_parameters']:,} parameters x {each:.4g} bytes = {gib(weights)}"
    yield f"             the common formula, parameters x 2 bytes = {gib(common)}: {common / weights:.2f} times that"
    layers, kv_heads, head_dim = (report[key] for key in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    token, common = report["kv_token_bytes"], report["common_kv_token_bytes"]
    value = token / (2 * layers * kv_heads * head_dim)
    yield f"Attention    {report['attention']}: {report['num_attention_heads']} query heads on {kv_heads} KV heads"
    yield (
        f"KV           2 x {layers} layers x {kv_heads} KV heads x {head_dim} dims x {value:.4g} bytes "
        f"({report['kv_format']}) = {token:,.0f} bytes a token"
    )
    yield (
        "             the common formula, 2 x batch x seq x hidden x layers x 2 bytes = "
        f"{common:,} bytes a token: {common / token:.2f} times that"
    )


def _activations(report: Mapping[str, Any]) -> Iterator[str]:
    step, parts = report["step"], report["activations"]
    (name, own), *beside = parts.items()
    yield (
        f"Activations  {gib(own)} of {name} in a step of {step['num_tokens']:,} tokens and {step['num_logits']:,} rows "
        "of logits"
    )
    yield "             at most " + " and ".join(f"{gib(size)} for {what}" for what, size in beside) + " beside them"


def _batch(batch: Mapping[str, int]) -> Iterator[str]:
    yield (
        f"A batch      {batch['num_rows']} rows of {batch['num_prompt_tokens']:,} + {batch['num_output_tokens']:,} "
        f"tokens: weights {gib(batch['weight_bytes'])} + KV {gib(batch['kv_bytes'])} + activations "
        f"{gib(batch['activation_bytes'])} = {gib(batch['total_bytes'])}"
    )


def _budget(report: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "As a server would start now:"
    yield from (f"  {note}" for note in report["notes"])
    rows = report["callers"]
    formats = [name for name in rows[0] if name != "num_tokens"]
    yield ""
    yield (
        f"Callers whose KV fits at once, by the format of the KV ({report['seats']['scheduler']} batching runs up to "
        f"{report['seats']['max']} at once):"
    )
    yield "  prompt + output" + "".join(f"{name:>10}" for name in formats)
    for row in rows:
        longest = "  (max_model_len)" if row["num_tokens"] == report["max_model_len"] else ""
        yield f"  {row['num_tokens']:>8,} tokens" + "".join(f"{row[name]:>10,}" for name in formats) + longest


def _measured(measured: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    if measured:
        width = max(map(len, measured))
        yield ""
        yield f"Measured     {'':{width}}  predicted       measured   difference"
        for what, one in measured.items():
            yield (
                f"  {what:<{width}}  {one['predicted']:>19,.0f}  {one['measured']:>13,.0f}  "
                f"{one['difference_percent']:>+9.2f} %"
            )
