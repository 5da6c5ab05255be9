"""From a stored run of ``tuning.py`` to the page and its pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tuning_sweep import traffic_key

from inflight.explain.tuning import FLAT_SHARE, MIN_CORRELATION, MIN_MOVE, ROWS, Cell, Claim, Row, Trend, Verdict, judge

METRICS = {  # name, unit, what one unit of the stored figure is of it
    "output_tokens_per_s": ("output tokens/s", "", 1),
    "output_tokens_per_busy_s": ("output tokens per busy second", "", 1),
    "num_steps": ("steps", "", 1),
    "mean_batch": ("mean batch", "rows", 1),
    "queue_p50_s": ("queueing p50", "ms", 1000),
    "queue_p99_s": ("queueing p99", "ms", 1000),
    "ttft_p50_s": ("TTFT p50", "ms", 1000),
    "ttft_p99_s": ("TTFT p99", "ms", 1000),
    "tpot_p50_s": ("TPOT p50", "ms", 1000),
    "tpot_p99_s": ("TPOT p99", "ms", 1000),
    "itl_p99_s": ("ITL p99", "ms", 1000),
    "preemptions": ("preemptions", "", 1),
    "rejected": ("refused requests", "", 1),
    "padding_share": ("padding", "% of row-slots", 100),
    "straggler_share": ("rows that had ended", "% of row-slots", 100),
    "recompute_share": ("computed again", "% of row-slots", 100),
    "empty_share": ("empty seats", "% of seats", 100),
    "kv_peak": ("KV in use, peak", "%", 100),
    "kv_mean": ("KV in use, mean", "%", 100),
    "kv_unused": ("reserved KV not written", "%", 100),
}
SHOWN = (  # of every traffic, below the claims
    *("output_tokens_per_s", "output_tokens_per_busy_s", "mean_batch", "queue_p50_s", "queue_p99_s", "ttft_p50_s"),
    *("ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "padding_share", "straggler_share", "recompute_share", "empty_share"),
    *("preemptions", "rejected", "kv_peak", "kv_mean", "kv_unused"),
)
_INK = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito's
_DASHES = ("solid", "dashed", "dotted", "dashdot", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


def measured(run: dict[str, Any], row: Row, claim: Claim) -> list[Any]:
    """What the sweep gave for the metric of a claim, in the order of the values."""
    figures = run["rows"][row.parameter]["results"][traffic_key(*row.traffic(claim))]
    return [one[claim.metric] for one in figures]


def page(run: dict[str, Any]) -> str:
    """The whole page, as Markdown."""
    return "\n".join((_intro(run), _table(run), _method(run), *(_row(run, row) for row in ROWS), _try_it())) + "\n"


def _intro(run: dict[str, Any]) -> str:
    verdicts = [judge(claim.trend, measured(run, row, claim)) for row in ROWS for claim in row.claims]
    num_confirmed = sum(verdict.confirmed for verdict in verdicts)
    return f"""# Tuning

What each setting does, and whether it does. The table is data (`src/inflight/explain/tuning.py`): every cell says
how metrics must move if it is true, and a sweep in the simulator shows whether they do. {num_confirmed} of
{len(verdicts)} claims were confirmed; the others are named, and stand below with their figures. This page is made by
`bench/tuning.py`.

![Continuous batching: every metric of the claims over its sweep](tuning_continuous.svg)

[The same for static batching](tuning_static.svg), [for dynamic batching](tuning_dynamic.svg).
"""


def _table(run: dict[str, Any]) -> str:
    lines = ["| parameter | meaning | smaller | larger | advice |", "|---|---|---|---|---|"]
    for row in ROWS:
        cells = (_cell(run, row, row.smaller), _cell(run, row, row.larger))
        name = f"[`{row.parameter}`](#{row.parameter}) ({row.family})"
        lines.append(f"| {name} | {row.meaning} | {cells[0]} | {cells[1]} | {row.advice} |")
    return "\n".join(lines) + "\n"


def _cell(run: dict[str, Any], row: Row, cell: Cell) -> str:
    failed = [claim for claim in cell.claims if not judge(claim.trend, measured(run, row, claim)).confirmed]
    if not failed:
        return f"{cell.text}. *Confirmed*"
    of = "; ".join(f"{METRICS[claim.metric][0]} with {_traffic(row, claim)}" for claim in failed)
    return f"{cell.text}. **Not confirmed**: {of}" + ("" if len(failed) == len(cell.claims) else "; the rest is")


def _method(run: dict[str, Any]) -> str:
    cost, settings = run["cost"], run["settings"]
    of = cost["versions"]
    workloads = "\n".join(
        f"| {name} | `{prompts}` | `{outputs}` | {settings['capacity_per_s'][name]:.1f} |"
        for name, (prompts, outputs) in settings["workloads"].items()
    )
    return f"""## How it was measured

Every run is {settings["num_requests"]} requests of one seed that arrive as a Poisson process, on the scheduler that
serves, with a virtual clock: a step takes what a cost says that was fitted to {cost["num_steps"]:,} real steps of
{cost["model"]} ({of["cpu"]}, {of["num_cpus"]} CPUs, kernels {of["kernels"]}, inflight {of["inflight"]}).

```
step = {1e3 * cost["constant_s"]:.3f} ms + {1e3 * cost["per_token_s"]:.4f} ms x tokens \
+ {1e6 * cost["per_context_token_s"]:.4f} us x context tokens
```

It was off by {100 * cost["relative_error_p50"]:.0f} % at the median and {100 * cost["relative_error_p90"]:.0f} % at the
90th percentile of those steps: the directions are the point, not the figures. Loads are multiples of the capacity,
which continuous batching (64 seats, ample memory) has for the same requests when all are there from the start.
Percentiles are of {settings["num_requests"]} requests at most, so that a 99th is one of the last three.

| workload | prompt tokens | output tokens | capacity, requests/s |
|---|---|---|---|
{workloads}

A claim is confirmed if the metric moves as it says, with a rank correlation (Spearman's rho) of at least
{MIN_CORRELATION:g}, over the whole sweep or over the part of it in which it moves. The rest is a plateau: values at one
end that lie within {100 * FLAT_SHARE:.0f} % of all that the metric moves. A metric that moves by less than
{100 * MIN_MOVE:.0f} % of its largest value is flat, and confirms nothing. TPOT is as computed, also where a batch
withholds its tokens; a KV block has {settings["block_size"]} tokens.
"""


def _row(run: dict[str, Any], row: Row) -> str:
    values = run["rows"][row.parameter]["values"]
    settings = [f"`{name}` {value}" for name, value in row.fixed.items()]
    if row.parameter != "num_gpu_blocks_override":
        settings.append(f"{row.num_blocks} KV blocks")
    header = " | ".join(map(_value, values))
    lines = [
        f"## {row.parameter}\n",
        f"{row.family.capitalize()} batching; {', '.join(settings)}.\n",
        f"| claim | traffic | {header} | rho | |",
        "|---|---|" + "---|" * len(values) + "---|---|",
    ]
    for claim in row.claims:
        series = measured(run, row, claim)
        verdict = judge(claim.trend, series)
        rho = "" if verdict.correlation is None else f"{verdict.correlation:+.2f}"
        words = describe(claim.trend, series, verdict, values)
        lines.append(
            f"| {_title(claim.metric)} {claim.trend} | {_traffic(row, claim)} | {_figures(claim.metric, series)} | "
            f"{rho} | {words} |"
        )
    lines.append("\n<details><summary>More of what was measured</summary>\n")
    for claim in {row.traffic(claim): claim for claim in row.claims}.values():
        lines += [f"| {_traffic(row, claim)} | {header} |", "|---|" + "---|" * len(values)]
        lines += [
            f"| {_title(metric)} | {_figures(metric, measured(run, row, replace(claim, metric=metric)))} |"
            for metric in SHOWN
        ]
        lines.append("")
    return "\n".join((*lines, "</details>")) + "\n"


def _title(metric: str) -> str:
    name, unit, _ = METRICS[metric]
    return f"{name} ({unit})" if unit else name


def _figures(metric: str, series: Sequence[float | None]) -> str:
    scale = METRICS[metric][2]
    return " | ".join("-" if value is None else _number(scale * value) for value in series)


def describe(trend: Trend, series: Sequence[float], verdict: Verdict, values: Sequence[Any]) -> str:
    """A verdict in words; a plateau with its place."""
    if verdict.moving is None:
        return "**not confirmed**: flat"
    first, last = verdict.moving
    if verdict.confirmed:
        flat = []
        if first > 0:
            flat.append(f"flat up to {_value(values[first])}")
        if last < len(values) - 1:
            flat.append(f"flat from {_value(values[last])} on")
        return "; ".join(("confirmed", *flat))
    opposite = Trend.FALLS if trend is Trend.RISES else Trend.RISES
    if judge(opposite, series).confirmed:
        return f"**not confirmed**: {opposite} instead"
    best = max(range(len(series)), key=lambda index: series[index])
    return f"**not confirmed**: no direction, highest at {_value(values[best])}"


def _traffic(row: Row, claim: Claim) -> str:
    workload, load = row.traffic(claim)
    return f"{workload}, all at once" if load == float("inf") else f"{workload} at {load:g} x capacity"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "none" if not value else ",".join(map(str, value))
    return f"{value:g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _try_it() -> str:
    return """## Try it

Three exercises, each one command. They simulate with the cost above, take a few seconds, print tokens/s, the total
time and the KV memory in use, and end with 0 if the directions are those that theory expects, with 1 if not.

```sh
python bench/try_it.py lengths          # the same mean length, ever more mixed: what static batching pays for it
python bench/try_it.py arrivals         # the same rate, ever burstier: what the slowest callers pay for it
python bench/try_it.py max_num_seqs     # more seats: tokens/s, total time, KV memory
```

For figures of a real engine instead: `inflight bench curve`, and `inflight bench engine` with the same flags
([bench](bench.md)).
"""


def draw(run: dict[str, Any], family: str) -> str:
    """A panel for each parameter of a family: every metric of its claims as a share of its largest value, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = [row for row in ROWS if row.family == family]
    num_columns = min(len(rows), 2)
    num_lines = -(-len(rows) // num_columns)
    figure = Figure(figsize=(5.6 * num_columns, 4.5 * num_lines), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    axes = figure.subplots(num_lines, num_columns, squeeze=False).flatten()
    for one, row in zip(axes, rows, strict=False):
        values = run["rows"][row.parameter]["values"]
        for index, claim in enumerate(row.claims):
            series = measured(run, row, claim)
            largest = max(map(abs, series)) or 1.0
            ink, dash = _INK[index % len(_INK)], _DASHES[index % len(_DASHES)]
            label = f"{METRICS[claim.metric][0]} ({_traffic(row, claim)})"
            shares = [100 * value / largest for value in series]
            one.plot(shares, color=ink, linestyle=dash, marker="o", markersize=3.5, label=label)
        bounds = isinstance(values[0], list)
        one.set_xticks(range(len(values)), [str(len(value)) if bounds else _value(value) for value in values])
        one.set_xlabel(f"{row.parameter}: how many bounds" if bounds else row.parameter)
        one.set_ylabel("% of the largest value")
        one.set_ylim(-4, 104)
        one.grid(color="#d0d7de", linewidth=0.6)
        one.spines[["top", "right"]].set_visible(False)
        one.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), frameon=False, fontsize=8.5)
    for spare in axes[len(rows) :]:
        spare.set_visible(False)
    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": family, "font.family": "sans-serif"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
