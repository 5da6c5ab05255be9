"""What a stranger should see first: sentences made from the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inflight.compare.numbers import percent, seconds, times

Figures = Mapping[str, Any]


def headlines(families: Mapping[str, Figures], same_output: bool | None) -> list[str]:
    """The sentences, the most telling first; a warning before all others where outputs differ."""
    plain = {name: figures for name, figures in families.items() if name == figures["family"]}
    sentences = [] if same_output is not False else [different_outputs(families)]
    sentences.append(
        _each(
            "Half of the short requests had their first token within",
            plain,
            lambda one: one["latency"]["short"]["ttft_s"]["p50"],
            "as long",
        )
    )
    sentences.append(_waste(plain))
    sentences.append(_each("All requests were done after", plain, lambda one: one["duration_s"], "as long"))
    sentences.append(
        _each(
            "Half of the long requests had their whole answer within",
            plain,
            lambda one: one["latency"]["long"]["e2e_s"]["p50"],
            "as long",
        )
    )
    sentences += [_chunked(families), _contiguous(families)]
    if same_output and len(families) > 1:
        sentences.append(f"All {len(families)} variants gave every request the same tokens, bit for bit.")
    return [sentence for sentence in sentences if sentence]


def different_outputs(families: Mapping[str, Figures]) -> str:
    """The warning that variants did not give the same tokens."""
    hashes = ", ".join(f"{name} {str(figures['output_sha256'])[:12]}" for name, figures in families.items())
    return (
        f"WARNING: the variants did not give the same tokens ({hashes}): what follows does not compare like with like."
    )


def _each(start: str, plain: Mapping[str, Figures], value: Callable[[Figures], float | None], than: str) -> str:
    """``start`` and the value of each family, the smallest first, the others beside it."""
    values = {name: found for name, figures in plain.items() if (found := value(figures)) is not None}
    ordered = sorted(values, key=lambda name: values[name])
    parts = []
    for name in ordered:
        more = times(values[name], values[ordered[0]])
        parts.append(f"{seconds(values[name])} with {name} batching" + (f" ({more} {than})" if more else ""))
    return f"{start} {_join(parts)}." if parts else ""


def _waste(plain: Mapping[str, Figures]) -> str:
    wasted = {name: figures["ledger"]["padding"] + figures["ledger"]["straggler"] for name, figures in plain.items()}
    parts = [
        f"{percent(wasted[name]) if wasted[name] else 'nothing'} in {name} batching"
        for name in sorted(wasted, key=lambda name: -wasted[name])
    ]
    return f"Padding and rows that had ended were {_join(parts)}, of all that was computed." if parts else ""


def _chunked(families: Mapping[str, Figures]) -> str:
    if not {"continuous", "continuous_unchunked"} <= families.keys():
        return ""
    chunks, whole = (
        families[name]["latency"]["all"]["itl_s"]["p99"] for name in ("continuous", "continuous_unchunked")
    )
    if chunks is None or whole is None:
        return ""
    return (
        f"Between two tokens one pause in a hundred was of {seconds(chunks)} or more with chunked prefill, of "
        f"{seconds(whole)} or more without."
    )


def _contiguous(families: Mapping[str, Figures]) -> str:
    if not {"continuous", "continuous_contiguous"} <= families.keys():
        return ""
    paged, piece = (families[name]["kv"] for name in ("continuous", "continuous_contiguous"))
    return (
        f"With the longest sequence's KV memory reserved for every row, {percent(piece['reserved_unused_share'])} of "
        f"it was never written and at most {piece['max_concurrency']} rows ran at once; with pages "
        f"{percent(paged['reserved_unused_share'])} and {paged['max_concurrency']}."
    )


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
