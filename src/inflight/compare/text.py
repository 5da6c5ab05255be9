"""The results as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from inflight.compare.numbers import NOTHING, number, percent, seconds
from inflight.compare.table import ESTIMATED_UTILISATION
from inflight.metrics.summary import enough_for

Figures = Mapping[str, Any]
WIDTH = 118


def as_text(results: Mapping[str, Any]) -> str:
    """The headlines, what was run, and a table with a column for each variant."""
    lines = []
    if results["simulated"]:
        lines += ["SIMULATED: no model was run; the time of each step is predicted.", ""]
    for sentence in results["headlines"]:
        lines += textwrap.wrap(sentence, WIDTH, initial_indent="* ", subsequent_indent="  ")
    lines.append("")
    for note in results["notes"]:
        lines += textwrap.wrap(note, WIDTH, subsequent_indent="  ")
    table = _columns(results["families"])
    if any("?" in line for line in table):
        table.append("?: fewer than 100 samples lie beyond it")
    return "\n".join([*lines, "", *table])


def _columns(families: Mapping[str, Figures]) -> list[str]:
    rows = [[name, *(cell(figures) for figures in families.values())] for name, cell in ROWS]
    head = [["", *_heads(families, 0)], ["", *_heads(families, 1)]]
    table = [*(row for row in head if any(row)), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(families) + 1)]
    return ["  ".join(map(_padded, row, widths, range(len(row)))) for row in table]


def _padded(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)


def _heads(families: Mapping[str, Figures], line: int) -> list[str]:
    """The titles, on two lines where they have a comma."""
    return [figures["title"].partition(", ")[2 * line] for figures in families.values()]


def _latency(group: str, metric: str, quantile: str) -> Callable[[Figures], str]:
    share = float(quantile[1:]) / 100

    def cell(figures: Figures) -> str:
        of = figures["latency"][group][metric]
        doubt = "" if of[quantile] is None or enough_for(of["count"], share) else "?"
        return seconds(of[quantile]) + doubt

    return cell


def _estimate(figures: Figures) -> str:
    low, high = ESTIMATED_UTILISATION[figures["family"]]
    return f"{100 * low:.0f}–{100 * high:.0f} %"


def _pause(quantile: str) -> Callable[[Figures], str]:
    return lambda one: seconds(one["engine"]["pause_s"][quantile])


ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("duration", lambda one: seconds(one["duration_s"])),
    ("requests/s", lambda one: number(one["throughput"]["requests_per_s"])),
    ("input tokens/s", lambda one: number(one["throughput"]["input_tokens_per_s"])),
    ("output tokens/s", lambda one: number(one["throughput"]["output_tokens_per_s"])),
    ("short: TTFT p50", _latency("short", "ttft_s", "p50")),
    ("short: TTFT p99", _latency("short", "ttft_s", "p99")),
    ("short: E2E p50", _latency("short", "e2e_s", "p50")),
    ("short: E2E p99", _latency("short", "e2e_s", "p99")),
    ("short: TPOT p50, as given out", _latency("short", "tpot_s", "p50")),
    ("short: TPOT p50, as computed", _latency("short", "computed_tpot_s", "p50")),
    ("long: TTFT p50", _latency("long", "ttft_s", "p50")),
    ("long: TTFT p99", _latency("long", "ttft_s", "p99")),
    ("long: E2E p50", _latency("long", "e2e_s", "p50")),
    ("long: E2E p99", _latency("long", "e2e_s", "p99")),
    ("long: TPOT p50, as computed", _latency("long", "computed_tpot_s", "p50")),
    ("waited for a seat, p50", _latency("all", "queue_s", "p50")),
    ("waited for a seat, p99", _latency("all", "queue_s", "p99")),
    ("computed: prompts", lambda one: percent(one["ledger"]["prefill"])),
    ("computed: new tokens", lambda one: percent(one["ledger"]["decode"])),
    ("computed: padding", lambda one: percent(one["ledger"]["padding"])),
    ("computed: rows that had ended", lambda one: percent(one["ledger"]["straggler"])),
    ("computed: again", lambda one: percent(one["ledger"]["recompute"])),
    ("seats: useful", lambda one: percent(one["seat_ledger"]["useful"])),
    ("common estimates, of the device", _estimate),
    ("seats: rows that had ended", lambda one: percent(one["seat_ledger"]["straggler"])),
    ("seats: empty", lambda one: percent(one["seat_ledger"]["empty"])),
    ("seats: empty, somebody waits", lambda one: percent(one["empty_while_waiting_share"])),
    ("rows in a batch, mean", lambda one: number(one["engine"]["mean_batch_size"])),
    ("KV reserved, not written", lambda one: percent(one["kv"]["reserved_unused_share"])),
    ("rows at once, at most", lambda one: number(one["kv"]["max_concurrency"])),
    ("engine busy", lambda one: percent(one["engine"]["busy_share"])),
    ("scheduler, a step", lambda one: seconds(one["engine"]["scheduler_s_per_step"])),
    ("pause between batches, p50", _pause("p50")),
    ("pause between batches, p99", _pause("p99")),
    ("queue", lambda one: one["queue"]["verdict"]),
    ("slowdown, median", lambda one: number(one["fairness"]["all"]["median_slowdown"])),
    ("slowdown, worst", lambda one: number(one["fairness"]["all"]["max_slowdown"])),
    ("Jain index of slowdowns", lambda one: number(one["fairness"]["all"]["jain_index_of_slowdown"])),
    ("output sha256", lambda one: NOTHING if one["output_sha256"] is None else one["output_sha256"][:12]),
)
