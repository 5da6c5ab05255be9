"""The table of the three modes: what they are, and what they did here.

As data: each row has a cell of text for each family; a measured row also has the numbers behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inflight.compare.config import FAMILIES
from inflight.compare.numbers import number, percent, seconds

Figures = Mapping[str, Any]
# Common estimates, of the device.
ESTIMATED_UTILISATION = {"static": (0.3, 0.5), "dynamic": (0.5, 0.7), "continuous": (0.8, 0.95)}
NOT_RUN = "not run"

_FIXED: dict[str, tuple[str, str, str]] = {  # row: static, dynamic, continuous
    "scheduling unit": ("a request", "a request", "one forward pass"),
    "when the batch is formed": (
        "when so many requests have come, or the time-out of the oldest has passed",
        "when so many have come, its tokens are full, or the window of the oldest has closed",
        "anew before every forward pass",
    ),
    "join or leave mid-batch": (
        "no: nobody joins, and all come back together",
        "no: nobody joins, and all come back together",
        "yes: who has ended leaves, and who waits takes the seat in the next step",
    ),
    "complexity": (
        "low: count, pad, run",
        "low: and a timer, limits on rows and tokens",
        "high: decisions in every step, paged KV memory, chunked prompts, preemption",
    ),
    "typical use": (
        "offline work, and work of fixed length: scoring, embedding, classification",
        "online, at moderate load",
        "online, at high concurrency, with lengths that are mixed",
    ),
    "typical systems": (
        "a loop around Transformers' generate()",
        "Triton's dynamic batcher, TorchServe, Ray Serve",
        "Orca, vLLM, SGLang, TensorRT-LLM (in-flight batching), TGI, llama.cpp's server",
    ),
}


def _waste(figures: Figures) -> tuple[str, dict[str, Any]]:
    ledger, seats = figures["ledger"], figures["seat_ledger"]
    text = (
        f"computed: {percent(ledger['padding'])} padding, {percent(ledger['straggler'])} rows that had ended, "
        f"{percent(ledger['recompute'])} once more; seats: {percent(seats['empty'])} empty, "
        f"{percent(figures['empty_while_waiting_share'])} while somebody waited"
    )
    return text, {**ledger, "empty": seats["empty"], "empty_while_waiting": figures["empty_while_waiting_share"]}


def _utilisation(figures: Figures) -> tuple[str, dict[str, Any]]:
    useful, busy = figures["seat_ledger"]["useful"], figures["engine"]["busy_share"]
    low, high = ESTIMATED_UTILISATION[figures["family"]]
    text = (
        f"{percent(useful)} of the seats useful in a step (common estimates, of the device: "
        f"{100 * low:.0f}–{100 * high:.0f} %); engine busy {percent(busy)} of the time"
    )
    return text, {"useful_seats": useful, "estimate_low": low, "estimate_high": high, "busy_share": busy}


def _scheduling(figures: Figures) -> tuple[str, dict[str, Any]]:
    per_step_s, share = figures["engine"]["scheduler_s_per_step"], figures["engine"]["scheduler_share"]
    if per_step_s is None:
        return "not measured: simulated", {"scheduler_s_per_step": None, "scheduler_share": None}
    text = f"{seconds(per_step_s)} a step, {percent(share)} of the time"
    return text, {"scheduler_s_per_step": per_step_s, "scheduler_share": share}


def _throughput(figures: Figures) -> tuple[str, dict[str, Any]]:
    rates = figures["throughput"]
    text = (
        f"{number(rates['output_tokens_per_s'])} output tokens/s, {number(rates['requests_per_s'])} requests/s; "
        f"all done in {seconds(figures['duration_s'])}"
    )
    return text, {**rates, "duration_s": figures["duration_s"]}


def _short(figures: Figures) -> tuple[str, dict[str, Any]]:
    short = figures["latency"]["short"]
    ttft, e2e = short["ttft_s"], short["e2e_s"]
    text = (
        f"first token {seconds(ttft['p50'])} (p99 {seconds(ttft['p99'])}), "
        f"whole answer {seconds(e2e['p50'])} (p99 {seconds(e2e['p99'])})"
    )
    return text, {"ttft_s": ttft, "e2e_s": e2e}


def _kv(figures: Figures) -> tuple[str, dict[str, Any]]:
    kv = figures["kv"]
    text = (
        f"{percent(kv['reserved_unused_share'])} of what was reserved not written ({kv['allocator']}); "
        f"up to {kv['max_concurrency']} rows at once"
    )
    return text, dict(kv)


def _fairness(figures: Figures) -> tuple[str, dict[str, Any]]:
    fairness = figures["fairness"]["all"]
    text = (
        f"{number(fairness['jain_index_of_slowdown'])} (Jain, of the slowdowns); slowdown "
        f"{number(fairness['median_slowdown'])} at the median, {number(fairness['max_slowdown'])} at worst"
    )
    return text, dict(fairness)


_MEASURED: dict[str, Callable[[Figures], tuple[str, dict[str, Any]]]] = {
    "waste": _waste,
    "utilisation": _utilisation,
    "cost of scheduling and memory bookkeeping": _scheduling,
    "throughput": _throughput,
    "latency of short requests": _short,
    "KV memory": _kv,
    "fairness": _fairness,
}
_ORDER = (
    *("scheduling unit", "when the batch is formed", "join or leave mid-batch"),
    *_MEASURED,
    *("complexity", "typical use", "typical systems"),
)


def table(families: Mapping[str, Figures]) -> dict[str, Any]:
    """The table from the figures by variant; of a family that was not run the measured cells say so."""
    rows = []
    for name in _ORDER:
        if name in _FIXED:
            rows.append({"row": name, "measured": False, "cells": dict(zip(FAMILIES, _FIXED[name], strict=True))})
            continue
        told = {family: _MEASURED[name](families[family]) for family in FAMILIES if family in families}
        rows.append(
            {
                "row": name,
                "measured": True,
                "cells": {family: told[family][0] if family in told else NOT_RUN for family in FAMILIES},
                "values": {family: values for family, (_, values) in told.items()},
            }
        )
    return {"columns": list(FAMILIES), "rows": rows}
