"""A throughput-latency curve as files: CSV for machines, SVG and PNG for people."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.bench.curve_report import COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _GREEN, _GREY = "#0b5fa5", "#c2500a", "#2e7d32", "#8a8a8a"


def write_curve(report: Mapping[str, Any], out: Path) -> None:
    """Write OUT.csv, OUT.svg and OUT.png. Raises ``OSError`` where that cannot be done."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with _named(out, ".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(report["levels"])
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.4), layout="constrained")
    figure.suptitle(f"{report['model_id']}, {report['backend']}\n{report['workload'][0]}", fontsize=10, wrap=True)
    panels = figure.subplots(2, 2)
    _throughput(panels[0, 0], report)
    _latency(panels[0, 1], report)
    _trade(panels[1, 0], report, "p50_tpot_ms", "TPOT p50 (ms per token)", report["front_p50_tpot"])
    _trade(panels[1, 1], report, "p99_ttft_ms", "TTFT p99 (ms)", report["front_p99_ttft"])
    figure.savefig(_named(out, ".svg"))
    figure.savefig(_named(out, ".png"), dpi=120)


def _named(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)


def _throughput(axes: Axes, report: Mapping[str, Any]) -> None:
    rows = report["levels"]
    levels, means = [row["level"] for row in rows], [row["output_throughput"] for row in rows]
    half = [
        0.0 if row["output_throughput_low"] is None else row["output_throughput"] - row["output_throughput_low"]
        for row in rows
    ]
    axes.errorbar(levels, means, yerr=half, marker="o", capsize=4, color=_BLUE, label="mean, 95 % interval")
    if report["knee"] is not None:
        axes.axvline(report["knee"], color=_ORANGE, linestyle="--", label=f"knee: {report['knee']}")
        axes.axhline(report["plateau"], color=_GREY, linestyle=":", label=f"plateau: {report['plateau']:.4g} tokens/s")
    if report["slo_level"] is not None:
        axes.axvline(
            report["slo_level"], color=_GREEN, linestyle="-.", label=f"keeps {report['slo']}: {report['slo_level']}"
        )
    _level_axis(axes, levels)
    axes.set(ylabel="output tokens/s", title="Throughput", ylim=(0, None))
    axes.legend(fontsize=8, loc="lower right")


def _latency(axes: Axes, report: Mapping[str, Any]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    rows = report["levels"]
    for key, label, color, style in (
        ("p50_ttft_ms", "TTFT p50", _ORANGE, "-"),
        ("p99_ttft_ms", "TTFT p99", _ORANGE, "--"),
        ("p50_tpot_ms", "TPOT p50", _BLUE, "-"),
        ("p99_tpot_ms", "TPOT p99", _BLUE, "--"),
    ):
        points = [(row["level"], row[key]) for row in rows if row[key]]
        if points:
            axes.plot(*zip(*points, strict=True), style, marker="o", markersize=4, color=color, label=label)
    _level_axis(axes, [row["level"] for row in rows])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(ylabel="ms (logarithmic)", title="Latency")
    if axes.lines:
        axes.legend(fontsize=8)


def _level_axis(axes: Axes, levels: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_xlabel("requests at once")


def _trade(axes: Axes, report: Mapping[str, Any], cost: str, label: str, front: list[int]) -> None:
    rows = {row["level"]: row for row in report["levels"] if row[cost] is not None}
    axes.plot(
        [rows[level][cost] for level in front],
        [rows[level]["output_throughput"] for level in front],
        "-o", color=_BLUE, label="Pareto front",
    )  # fmt: skip
    beaten = [row for level, row in rows.items() if level not in front]
    if beaten:
        axes.plot(
            [row[cost] for row in beaten], [row["output_throughput"] for row in beaten],
            "o", color=_GREY, markerfacecolor="none", label="beaten in both",
        )  # fmt: skip
    for level, row in rows.items():
        axes.annotate(
            str(level), (row[cost], row["output_throughput"]), (5, -11), textcoords="offset points", fontsize=8
        )
    if not rows:
        axes.text(0.5, 0.5, "no request has one", ha="center", transform=axes.transAxes)
    axes.grid(alpha=0.3)
    axes.set(
        xlabel=label, ylabel="output tokens/s", title=f"Throughput against {label.partition(' (')[0]}", ylim=(0, None)
    )
    axes.legend(fontsize=8, loc="lower right")
