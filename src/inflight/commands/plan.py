"""``inflight plan memory``: what a model takes of memory, and how many callers fit, before anything is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inflight import config
from inflight.assemble import largest_step, without_idle_swap_space
from inflight.commands.plan_text import as_text
from inflight.config import EngineConfig
from inflight.hub.home import expand_home
from inflight.hub.resolve import ModelFiles, resolve
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.memory_plan import (
    COMMON_BYTES,
    KV_FORMATS,
    Demand,
    MemoryPlan,
    common_kv_token_bytes,
    plan_memory,
)
from inflight.runtime.models.llama_sizes import StepSize
from inflight.schedulers.config import RequestLevelConfig
from inflight.schedulers.memory import num_scratch_blocks

LENGTHS = (512, 2048, 8192)  # of the table, beside the length asked for and max_model_len
TABLE_FORMATS = tuple(name for name in KV_FORMATS if name != "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """The callers. Raises ``ValueError`` for a value out of range."""

    prompt_tokens: int = field(default=200, metadata={"help": "tokens of a caller's prompt, from 1"})
    output_tokens: int = field(default=100, metadata={"help": "tokens of the answer, from 1"})
    measure: bool = field(default=False, metadata={"help": "load the model, run its largest step, and compare (Linux)"})

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    subparsers = parser.add_subparsers(dest="resource", required=True, metavar="memory", prog="inflight plan")
    does = "weights, KV, activations, and the callers that fit; a folder with a config.json alone will do"
    memory = subparsers.add_parser("memory", help=does, description=does, allow_abbrev=False)
    memory.add_argument("--json", type=Path, metavar="OUT", help="write the whole plan to this file")
    config.add_flags(memory, PlanConfig)
    config.add_flags(memory, EngineConfig, positional=("model",))


def run(args: argparse.Namespace) -> int:
    """Plan, print the plan, and write it where that was asked for."""
    report = plan_report(config.from_args(PlanConfig, args), config.from_args(EngineConfig, args))
    print(as_text(report))
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        print(f"the plan is in {args.json}", file=sys.stderr)
    return 0


def plan_report(asked: PlanConfig, engine: EngineConfig) -> Mapping[str, Any]:
    """All figures of the plan. Raises ``InflightError`` for a model that cannot be read, ``ValueError``."""
    # Torch comes with these, and --help needs none.
    import torch

    from inflight.runtime.linear.choice import choose_quantization
    from inflight.runtime.load import default_num_threads, find_device, load_executor, open_checkpoint
    from inflight.runtime.memory import available_bytes, demand_of
    from inflight.runtime.memory_measure import measure
    from inflight.runtime.weights.config_alone import ConfigAlone

    alone = _config_alone(engine.model)
    if asked.measure and alone is not None:
        raise ValueError(f"--measure needs the weights, and {alone} comes alone")
    files = ModelFiles(str(alone), alone) if alone is not None else resolve(engine.model)
    checkpoint = open_checkpoint(files.path) if alone is None else ConfigAlone(files.path)
    runtime = without_idle_swap_space(engine.runtime, engine.scheduler)
    device = find_device(runtime.device)
    quantization, why = choose_quantization(runtime, device, checkpoint)
    demand = demand_of(checkpoint, runtime, quantization, runtime.num_threads or default_num_threads())
    # A declared budget may be that of another machine.
    available = available_bytes(device) if runtime.memory_budget is None else runtime.memory_budget
    step_of = partial(largest_step, engine.scheduler, runtime.block_size)
    of_model = demand.model.max_position_embeddings

    def planned(kv_format: str) -> MemoryPlan | InsufficientMemory:
        try:
            return plan_memory(runtime, replace(demand, kv_format=kv_format), partial(step_of, of_model), available)
        except InsufficientMemory as error:
            return error

    plan = planned(demand.kv_format)
    most_blocks = max(1, runtime.kv_cache_memory_bytes // demand.block_bytes)
    step = plan.step if isinstance(plan, MemoryPlan) else step_of(of_model, most_blocks)
    report = {
        "model": files.name,
        "kernels": why,
        **_demand_report(demand, step),
        "available_bytes": available,
        "settings": {name: getattr(runtime, name) for name in BUDGET_SETTINGS},
        "seats": {"max": engine.scheduler.num_seats, "scheduler": engine.scheduler.name},
        "batch": _batch_report(demand, engine, asked, step),
    }
    if isinstance(plan, InsufficientMemory):
        return {**report, "fits": False, "why_not": str(plan)}
    report |= {"fits": True, "notes": plan.notes, "num_blocks": plan.num_blocks, "kv_bytes": plan.kv_bytes}
    report |= {"room_bytes": plan.room_bytes, "num_swap_blocks": plan.num_swap_blocks}
    plans = {name: planned(name) for name in TABLE_FORMATS}
    longest = plan.step.max_len
    lengths = sorted({asked.prompt_tokens + asked.output_tokens, *LENGTHS, longest})
    report["max_model_len"] = longest
    report["callers"] = [
        {"num_tokens": length, **{name: _callers(one, engine, length) for name, one in plans.items()}}
        for length in lengths
        if length <= longest
    ]
    if asked.measure:
        torch.set_num_threads(runtime.num_threads or default_num_threads())
        found = measure(partial(load_executor, files.path, runtime, step_of), step)
        kv_bytes = found.num_kv_blocks * demand.block_bytes
        own = next(iter(demand.activations(step).values()))
        report["measured"] = {
            "weights": _compared(demand.weight_bytes, found.weight_bytes),
            f"KV of {found.num_kv_blocks:,} blocks": _compared(kv_bytes, found.kv_bytes),
            "activations": _compared(own, found.activation_bytes),
            "together": _compared(
                demand.weight_bytes + kv_bytes + own, found.weight_bytes + found.kv_bytes + found.activation_bytes
            ),
        }
    return report


BUDGET_SETTINGS = (
    "memory_budget",
    "gpu_memory_utilization",
    "reserve_bytes",
    "kv_cache_memory_bytes",
    "swap_space_bytes",
    "block_size",
)


def _config_alone(model: str | None) -> Path | None:
    """The ``config.json`` that was named, itself or by its folder, where no weights lie beside it."""
    if model is None:
        return None
    path = expand_home(model)
    if path.suffix == ".json" and path.is_file():
        return path
    holds_weights = path.is_dir() and any(one.suffix.lower() in (".safetensors", ".gguf") for one in path.iterdir())
    return path / "config.json" if (path / "config.json").is_file() and not holds_weights else None


def _demand_report(demand: Demand, step: StepSize) -> dict[str, Any]:
    model = demand.model
    return {
        "num_parameters": model.num_parameters,
        "weight_bytes": demand.weight_bytes,
        "common_weight_bytes": model.num_parameters * COMMON_BYTES,
        "attention": model.attention_kind,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "kv_format": demand.kv_format,
        "kv_token_bytes": demand.token_bytes,
        "common_kv_token_bytes": common_kv_token_bytes(model),
        "block_bytes": demand.block_bytes,
        "step": {"num_tokens": step.num_tokens, "num_logits": step.num_logits},
        "activations": dict(demand.activations(step)),
    }


def _batch_report(demand: Demand, engine: EngineConfig, asked: PlanConfig, largest: StepSize) -> dict[str, int]:
    """A batch of all seats, each with the longest prompt and the longest answer."""
    num_rows, length = engine.scheduler.num_seats, asked.prompt_tokens + asked.output_tokens
    step = StepSize(max(num_rows, min(largest.num_tokens, num_rows * asked.prompt_tokens)), num_rows, length)
    if isinstance(engine.scheduler, RequestLevelConfig):
        step = replace(step, num_tokens=num_rows * asked.prompt_tokens)
    block_size = engine.runtime.block_size
    num_blocks = num_rows * -(-length // block_size) + num_scratch_blocks(engine.scheduler, length, block_size)
    parts = {
        "weight_bytes": demand.weight_bytes,
        "kv_bytes": num_blocks * demand.block_bytes,
        "activation_bytes": demand.activation_bytes(step),
    }
    lengths = {"num_prompt_tokens": asked.prompt_tokens, "num_output_tokens": asked.output_tokens}
    return {"num_rows": num_rows, **lengths, **parts, "total_bytes": sum(parts.values())}


def _callers(plan: MemoryPlan | InsufficientMemory, engine: EngineConfig, length: int) -> int:
    """Sequences of so many tokens that the KV holds at once."""
    if isinstance(plan, InsufficientMemory) or length > plan.step.max_len:
        return 0
    block_size, max_len = engine.runtime.block_size, plan.step.max_len
    each = max_len if engine.scheduler.kv_allocator == "contiguous" else length
    num_left = plan.num_blocks - num_scratch_blocks(engine.scheduler, max_len, block_size)
    return num_left // -(-each // block_size)


def _compared(predicted: int, measured: int) -> dict[str, float]:
    return {"predicted": predicted, "measured": measured, "difference_percent": 100 * (measured / predicted - 1)}
