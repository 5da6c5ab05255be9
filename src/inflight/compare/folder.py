"""The folder of a comparison: what lies in it, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from inflight.config import flag
from inflight.runtime.config import RuntimeConfig
from inflight.workload.config import WorkloadConfig
from inflight.workload.item import WorkItem

STEPS, WORKLOAD, STEP_COST, RESULTS, PAGE = "steps", "workload.jsonl", "step_cost.json", "results.json", "index.html"
COMMAND, RERUN, SUMMARY = "command.txt", "rerun.sh", "summary.txt"
_OURS = (
    *(RESULTS, PAGE, WORKLOAD, STEP_COST, COMMAND, RERUN, SUMMARY, "latency_cdf.svg", "ledger.svg"),
    *("occupancy_*.svg", "occupancy_*.html", "kv_layout_*.svg", f"{STEPS}/*.jsonl"),
)


def check_free(out: Path, force: bool, inputs: Iterable[Path]) -> None:
    """Raise ``ValueError`` if the folder is none, holds files that may not go, or one of ``inputs``."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is no folder")
    if out.is_dir() and any(path.is_file() for path in out.rglob("*")) and not force:
        raise ValueError(f"{out} is not empty: name another folder with --out, or replace what is there with --force")
    for path in inputs:
        if path.resolve().is_relative_to(out.resolve()):
            raise ValueError(f"{path} is read, and lies in the folder that is written: name another one with --out")


def prepare(out: Path) -> None:
    """Make the folder; what an earlier comparison has left in it goes, and nothing else.

    Raises ``OSError`` if it cannot be made.
    """
    for pattern in _OURS:
        for path in out.glob(pattern):
            path.unlink()
    (out / STEPS).mkdir(parents=True, exist_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def write_workload(path: Path, items: Iterable[WorkItem]) -> None:
    """Write the requests as a trace of format ``jsonl``, from which the very same are read again."""
    with path.open("wb") as file:
        for item in items:
            line = {
                "id": item.item_id,
                "arrival_s": item.arrival_s,
                "max_tokens": item.max_tokens,
                "prompt_token_ids": item.prompt_token_ids,
            }
            file.write(msgspec.json.encode(line) + b"\n")


def command(values: Mapping[str, Any]) -> str:
    """The command line that gives these values, by field name."""
    words = ["inflight", "compare"]
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else flag(name).replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            words += [flag(name), ",".join(map(str, value))]
        else:
            words += [flag(name), "none" if value is None else str(value)]
    return shlex.join(words)


def rerun_script(values: Mapping[str, Any], decided: Mapping[str, Any]) -> str:
    """A shell script that runs the same requests again, at the same times, with the limits that were decided.

    ``values`` are what was given, ``decided`` what takes its place.
    """
    drop = {"out", "force", "load", "step_cost", *WorkloadConfig.__dataclass_fields__}
    simulated = bool(values.get("simulated_steps"))
    if simulated:  # the step cost holds what the model was
        drop |= {"model", *RuntimeConfig.__dataclass_fields__}
    again = {name: value for name, value in values.items() if name not in drop} | dict(decided)
    step_cost = f' --step-cost "$here/{STEP_COST}"' if simulated else ""
    return (
        "#!/bin/sh\n"
        "# The same requests at the same times, from the files beside this script. The folder to write: $1.\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        f'exec {command(again)} --trace "$here/{WORKLOAD}" --trace-format jsonl'
        f'{step_cost} --out "${{1:-comparison-again}}"\n'
    )
