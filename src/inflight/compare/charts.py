"""The charts of a comparison, as SVG: latency distributions, and the ledger of waste as stacked bars."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from inflight.explain.classes import CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    _Grid = list[list[Axes]]

# Okabe and Ito's colours again, and a dash for each, so that a variant is told apart twice.
_LINES: dict[str, tuple[str, Literal["solid", "dashed", "dotted", "dashdot"]]] = {
    "static": ("#d55e00", "solid"),
    "static_ragged": ("#d55e00", "dotted"),
    "dynamic": ("#e69f00", "dashed"),
    "dynamic_ragged": ("#e69f00", "dotted"),
    "continuous": ("#0072b2", "solid"),
    "continuous_unchunked": ("#56b4e9", "dashdot"),
    "continuous_contiguous": ("#009e73", "dashed"),
}
_COMPUTED = {
    "prefill": "prompt tokens",
    "decode": "new tokens",
    "padding": "padding",
    "straggler": "rows that had ended",
    "recompute": "computed again",
}
_SEATS = {
    "decode": "a row that runs",
    "straggler": "a row that had ended",
    "waiting": "empty, and somebody waits",
    "empty": "empty, and nobody waits",
}
_METRICS = {"ttft_s": "first token", "e2e_s": "whole answer"}


def latency_cdf(samples: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], titles: Mapping[str, str]) -> str:
    """For short and long requests apart: which share of them had its first token, its answer, within which time.

    ``samples`` are seconds by variant, group and metric; ``titles`` name the variants.
    """
    figure, rows = _figure(9.6, 6.6, 2, 2, sharex="row")
    for axes, (metric, label) in zip(rows, _METRICS.items(), strict=True):
        for one, group in zip(axes, ("short", "long"), strict=True):
            for variant, groups in samples.items():
                ordered = sorted(value for value in groups[group][metric] if value > 0)
                if not ordered:
                    continue
                colour, dash = _LINES[variant]
                shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
                one.step(
                    [ordered[0], *ordered], [0.0, *shares], where="post", color=colour, linestyle=dash, linewidth=1.9
                )
            one.set_xlabel("seconds since the request arrived")
            one.set_title(f"{group} requests: {label}", fontsize=11, loc="left")
            _log_seconds(one)
        axes[0].set_ylabel("share of the requests")
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_LINES[name][0], linestyle=_LINES[name][1], linewidth=1.9) for name in samples]
    figure.legend(handles, [titles[name] for name in samples], loc="outside upper center", ncols=3, frameon=False)
    return _svg(figure, "latency")


def ledger_bars(families: Mapping[str, Mapping[str, Any]]) -> str:
    """What was computed, and what the seats were, of each variant, as stacked bars of 100 %."""
    bars, legend = 0.75 + 0.5 * len(families), 0.68  # inches
    figure, (axes, legends) = _figure(9.6, bars + legend, 2, 2, height_ratios=[bars, legend])
    computed = [figures["ledger"] for figures in families.values()]
    _bars(axes[0], computed, _COMPUTED, "what was computed")
    _bars(axes[1], [_seats(figures) for figures in families.values()], _SEATS, "the seats, in every step")
    axes[0].set_yticks(range(len(families)), [figures["title"] for figures in families.values()])
    axes[1].set_yticks(range(len(families)), [""] * len(families))
    for one, names in zip(legends, (_COMPUTED, _SEATS), strict=True):
        _legend(one, names)
    return _svg(figure, "ledger")


def _seats(figures: Mapping[str, Any]) -> dict[str, float]:
    seats, blocked = figures["seat_ledger"], figures["empty_while_waiting_share"]
    return {
        "decode": seats["useful"],
        "straggler": seats["straggler"],
        "waiting": blocked,
        "empty": seats["empty"] - blocked,
    }


def _bars(one: Axes, shares: Sequence[Mapping[str, float]], names: Mapping[str, str], title: str) -> None:
    for position, of in enumerate(shares):
        start = 0.0
        for name in names:
            percent = 100 * of[name]
            colour = CLASSES[name].colour
            one.barh(position, percent, left=start, height=0.66, color=colour, edgecolor="white", linewidth=0.8)
            if percent >= 9:
                ink = "white" if name in ("prefill", "decode", "straggler") else "#24292f"
                one.text(
                    start + percent / 2, position, f"{percent:.0f} %", ha="center", va="center", color=ink, fontsize=9
                )
            start += percent
    one.invert_yaxis()
    one.set_xlim(0, 100)
    one.set_xticks(range(0, 101, 25), [f"{percent} %" for percent in range(0, 101, 25)])
    one.set_title(title, fontsize=11, loc="left")
    one.spines[["top", "right"]].set_visible(False)


def _legend(one: Axes, names: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    one.set_axis_off()
    handles = [Patch(color=CLASSES[name].colour, label=meaning) for name, meaning in names.items()]
    one.legend(
        handles=handles,
        loc="upper left",
        ncols=2,
        frameon=False,
        fontsize=9,
        borderaxespad=0,
        handlelength=1.3,
        columnspacing=1.2,
    )


def _log_seconds(one: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    one.set_xscale("log")
    one.set_ylim(0, 1.02)
    one.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))
    one.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    one.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    one.xaxis.set_minor_formatter(NullFormatter())
    one.grid(color="#d0d7de", linewidth=0.6)
    one.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float, num_rows: int, num_columns: int, **options: Any) -> tuple[Figure, _Grid]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06))
    axes = figure.subplots(num_rows, num_columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def _svg(figure: Figure, salt: str) -> str:
    """As text, with real letters and the same bytes for the same figure; without the XML head, to be put into HTML."""
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]
