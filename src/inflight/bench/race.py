"""``inflight bench engine``: the same work, run several times, and one report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from inflight.assemble import assemble
from inflight.bench.figures import Figures, medians
from inflight.bench.interruptible import run_interruptible
from inflight.bench.machine import versions
from inflight.bench.offline import OfflineRunner
from inflight.bench.over_http import check_static_leaves, max_model_len, run_over_http, serving
from inflight.bench.repeated_prompts import NO_PREFIX_CACHE, without_prefix_cache
from inflight.config import EngineConfig, from_values
from inflight.hub.resolve import ModelFiles, resolve
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem, check_fits
from inflight.workload.race import drawn_workload, read_workload

DRAWN = (16, 200, 86)  # prompts, tokens of each, new tokens for each


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceConfig:
    """The race. Raises ``ValueError`` for a value out of range."""

    workload: Path | None = field(
        default=None,
        metadata={"help": "a file of requests, JSON lines of id, prompt_token_ids and max_tokens; none: drawn prompts"},
    )
    num_prompts: int = field(default=DRAWN[0], metadata={"help": "drawn prompts, from 1"})
    prompt_tokens: int = field(default=DRAWN[1], metadata={"help": "tokens of each drawn prompt, from 1"})
    output_tokens: int = field(default=DRAWN[2], metadata={"help": "new tokens for each drawn prompt, from 1"})
    http: bool = field(default=False, metadata={"help": "start a server and stream over HTTP, not in this process"})
    num_callers: int | None = field(
        default=None,
        metadata={"help": "requests at once, from 1: each caller waits before it asks again; none: all at the start"},
    )
    repeats: int = field(default=5, metadata={"help": "runs that are measured, after one that is not; from 1"})

    def __post_init__(self) -> None:
        for name in ("num_prompts", "prompt_tokens", "output_tokens", "num_callers", "repeats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.workload is not None and (self.num_prompts, self.prompt_tokens, self.output_tokens) != DRAWN:
            raise ValueError("a workload is a file or drawn: with --workload there are no prompts to draw")


@dataclass(frozen=True, slots=True)
class _Runs:
    figures: list[Figures]
    engine: dict[str, Any]  # what it decided for itself


def race(config: RaceConfig, engine_values: Mapping[str, Any]) -> dict[str, Any]:
    """Run the race; return its report, ready for JSON.

    ``engine_values`` are settings of ``EngineConfig`` and its parts, by field name. Unless they say so, the queue has
    no limit, and no run finds in a prefix cache what the one before it has left. Raises ``ValueError`` for work that
    cannot be run, ``OSError`` for a file that cannot be read, ``InflightError`` if the engine, the server or a request
    fails.
    """
    values = without_prefix_cache({"max_num_waiting_seqs": None, **engine_values})
    engine_config = from_values(EngineConfig, values)
    if config.http:
        check_static_leaves(engine_config)
    files = resolve(engine_config.model)
    tokenizer = Tokenizer.load(files.path)
    workload = (
        drawn_workload(config.num_prompts, config.prompt_tokens, config.output_tokens, tokenizer.vocab_size)
        if config.workload is None
        else read_workload(config.workload)
    )
    runs = (
        _over_http(config, workload, tokenizer, values)
        if config.http
        else _offline(config, workload, tokenizer, engine_config, files)
    )
    return {
        "benchmark": "engine",
        "mode": "http" if config.http else "offline",
        "median": asdict(medians(runs.figures)),
        "runs": [asdict(run) for run in runs.figures],
        "workload": {
            "num_requests": len(workload),
            "num_prompt_tokens": sum(len(item.prompt_token_ids) for item in workload),
            "num_output_tokens": sum(item.max_tokens for item in workload),
        },
        "settings": msgspec.to_builtins({"race": asdict(config), "engine": asdict(engine_config)}, enc_hook=str),
        "engine": runs.engine,
        "versions": versions(),
    }


def _offline(
    config: RaceConfig, workload: list[WorkItem], tokenizer: Tokenizer, engine_config: EngineConfig, files: ModelFiles
) -> _Runs:
    engine = assemble(engine_config, files, tokenizer)
    try:
        check_fits(workload, engine.info.vocab_size, engine.info.max_model_len)
        runner = OfflineRunner(engine, workload, config.num_callers or len(workload))
        return _Runs(_repeat(runner.run, config.repeats), msgspec.to_builtins(asdict(engine.info)))
    finally:
        engine.close()


def _over_http(config: RaceConfig, workload: list[WorkItem], tokenizer: Tokenizer, values: Mapping[str, Any]) -> _Runs:
    num_callers = config.num_callers or len(workload)
    with serving(values) as server:
        check_fits(workload, tokenizer.vocab_size, run_interruptible(max_model_len(server)))
        runs = _repeat(lambda: run_interruptible(run_over_http(server, workload, num_callers)), config.repeats)
    return _Runs(runs, {"notes": list(server.banner)})


def _repeat(run: Callable[[], Figures], repeats: int) -> list[Figures]:
    _say("warm-up", run())
    runs = []
    for number in range(repeats):
        runs.append(run())
        _say(f"run {number + 1} of {repeats}", runs[-1])
    return runs


def _say(which: str, run: Figures) -> None:
    sys.stderr.write(f"{which}: {run.wall_s:.2f} s, {run.output_tokens_per_s:.1f} output tokens/s\n")


def as_text(report: Mapping[str, Any]) -> str:
    """Return the medians of a report as lines for people."""
    figures, work, versions_ = report["median"], report["workload"], report["versions"]
    lines = [
        f"{work['num_requests']} requests, {work['num_prompt_tokens']} prompt and {work['num_output_tokens']} output "
        f"tokens, {report['mode']}; medians of {len(report['runs'])} runs",
        f"inflight {versions_['inflight']}, torch {versions_['torch']}, kernels {versions_['kernels']}, "
        f"{versions_['cpu']}, {versions_['num_cpus']} CPUs",
        "",
    ]
    lines[2:2] = [note for note in report["engine"]["notes"] if note.startswith("Kernels:")]
    if report["settings"]["engine"]["scheduler"].get("enable_prefix_caching") is False:
        lines.insert(1, NO_PREFIX_CACHE)
    for label, name, scale, unit in _LINES:
        value = figures[name]
        if value is not None:
            shown = value if isinstance(value, str) else f"{value * scale:,.{_digits(value * scale)}f}"
            lines.append(f"{label:<34} {shown} {unit}".rstrip())
    return "\n".join(lines)


def _digits(value: float) -> int:
    """Digits behind the point, so that about four figures are shown."""
    return 0 if value == int(value) or abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3


_LINES = (  # label, name, scale, unit
    ("wall time", "wall_s", 1, "s"),
    ("output tokens/s", "output_tokens_per_s", 1, ""),
    ("all tokens/s", "all_tokens_per_s", 1, ""),
    ("prompt tokens/s until all started", "prefill_tokens_per_s", 1, ""),
    ("output tokens/s after that", "decode_tokens_per_s", 1, ""),
    ("TTFT mean", "ttft_mean_s", 1e3, "ms"),
    ("TTFT p50", "ttft_p50_s", 1e3, "ms"),
    ("TTFT p99", "ttft_p99_s", 1e3, "ms"),
    ("ITL mean", "itl_mean_s", 1e3, "ms"),
    ("ITL p50", "itl_p50_s", 1e3, "ms"),
    ("ITL p99", "itl_p99_s", 1e3, "ms"),
    ("steps", "num_steps", 1, ""),
    ("tokens per step", "mean_step_tokens", 1, ""),
    ("Python's share", "python_share", 100, "% of wall time"),
    ("CPU time of the engine", "engine_cpu_s", 1, "s"),
    ("CPU time of the server", "api_cpu_s", 1, "s"),
    ("CPU time of the client", "client_cpu_s", 1, "s"),
    ("the client's share of the CPUs", "client_cpu_share", 100, "%"),
    ("engine's peak memory", "engine_peak_bytes", 1e-6, "MB"),
    ("of it KV", "kv_bytes", 1e-6, "MB"),
    ("engine's peak memory without KV", "engine_peak_less_kv_bytes", 1e-6, "MB"),
    ("sha256 of the output's token ids", "output_sha256", 1, ""),
    ("sha256 of the output's text", "text_sha256", 1, ""),
)
