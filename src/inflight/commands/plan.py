"""``inflight plan memory``: what a model takes of memory, and how many callers fit, before anything is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from inflight import config
from inflight.assemble import effective_max_model_len, largest_step, without_idle_swap_space
from inflight.commands.plan_callers import batch_report, num_callers
from inflight.commands.plan_report import (
    BudgetReport,
    CallersReport,
    Compared,
    DemandReport,
    MeasuredReport,
    PlanReport,
)
from inflight.commands.plan_text import as_text
from inflight.config import EngineConfig
from inflight.engine.executor import KVCapacity
from inflight.hub.home import expand_home
from inflight.hub.resolve import ModelFiles, resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.errors import InsufficientMemory
from inflight.runtime.memory_demand import COMMON_BYTES, KV_FORMATS, Demand, common_kv_token_bytes
from inflight.runtime.memory_plan import LargestStep, MemoryPlan, plan_memory, plan_notes
from inflight.runtime.models.llama_sizes import StepSize

LENGTHS = (512, 2048, 8192)  # of the table, beside the length asked for and max_model_len
TABLE_FORMATS = tuple(name for name in KV_FORMATS if name != "float16")
BUDGET_SETTINGS = (
    "memory_budget",
    "gpu_memory_utilization",
    "reserve_bytes",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "swap_space_bytes",
    "block_size",
)


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
    """Plan, print the plan, and write it where that was asked for; 1 if a server would not start."""
    report = plan_report(config.from_args(PlanConfig, args), config.from_args(EngineConfig, args))
    print(as_text(report))
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        print(f"the plan is in {args.json}", file=sys.stderr)
    return 0 if report.budget is not None else 1


def plan_report(asked: PlanConfig, engine: EngineConfig) -> PlanReport:
    """All figures of the plan. Raises ``InflightError`` for a model that cannot be read, ``ValueError``."""
    # Torch comes with these, and --help needs none.
    from inflight.runtime.linear.choice import choose_quantization
    from inflight.runtime.load import default_num_threads, find_device, open_checkpoint
    from inflight.runtime.memory import available_bytes, demand_of
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
    steps = partial(largest_step, engine.scheduler, runtime.block_size)
    planned = partial(_planned, runtime, demand, steps, available)
    plan = planned(demand.kv_format)
    most_blocks = max(1, runtime.kv_cache_memory_bytes // demand.block_bytes)
    step = plan.step if isinstance(plan, MemoryPlan) else steps(demand.model.max_position_embeddings, most_blocks)
    report = PlanReport(
        model=files.name,
        kernels=why,
        available_bytes=available,
        settings={name: getattr(runtime, name) for name in BUDGET_SETTINGS},
        scheduler=engine.scheduler.name,
        num_seats=engine.scheduler.num_seats,
        demand=_demand_report(demand, step),
        batch=batch_report(demand, engine, asked.prompt_tokens, asked.output_tokens, step),
    )
    if isinstance(plan, InsufficientMemory):
        return replace(report, why_not=str(plan))
    try:
        capacity = KVCapacity(plan.num_blocks, runtime.block_size, demand.block_bytes)
        effective_max_model_len(demand.model.max_position_embeddings, engine.scheduler, capacity)
    except ValueError as error:
        return replace(report, why_not=str(error))
    plans = {name: planned(name) for name in TABLE_FORMATS}
    measured = _measured_report(files.path, plan, steps) if asked.measure else None
    return replace(report, budget=_budget_report(plan, plans, engine, asked), measured=measured)


def _config_alone(model: str | None) -> Path | None:
    """The ``config.json`` that was named, itself or by its folder, where no weights lie beside it."""
    if model is None:
        return None
    path = expand_home(model)
    if path.suffix == ".json" and path.is_file():
        return path
    holds_weights = path.is_dir() and any(one.suffix.lower() in (".safetensors", ".gguf") for one in path.iterdir())
    return path / "config.json" if (path / "config.json").is_file() and not holds_weights else None


def _planned(
    runtime: RuntimeConfig, demand: Demand, steps: LargestStep, available: int, kv_format: str
) -> MemoryPlan | InsufficientMemory:
    try:
        return plan_memory(runtime, replace(demand, kv_format=kv_format), steps, available)
    except InsufficientMemory as error:
        return error


def _demand_report(demand: Demand, step: StepSize) -> DemandReport:
    model, activations = demand.model, demand.activations(step)
    return DemandReport(
        num_parameters=model.num_parameters,
        weight_bytes=demand.weight_bytes,
        common_weight_bytes=model.num_parameters * COMMON_BYTES,
        attention=model.attention_kind,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        kv_format=demand.kv_format,
        kv_token_bytes=demand.token_bytes,
        common_kv_token_bytes=common_kv_token_bytes(model),
        block_bytes=demand.block_bytes,
        num_step_tokens=step.num_tokens,
        num_step_logits=step.num_logits,
        buffer_bytes=activations.buffer_bytes,
        at_most_bytes=dict(activations.at_most_bytes),
    )


def _budget_report(
    plan: MemoryPlan, plans: Mapping[str, MemoryPlan | InsufficientMemory], engine: EngineConfig, asked: PlanConfig
) -> BudgetReport:
    """``plans`` are those with the formats of the table."""
    longest = plan.step.max_len
    lengths = sorted({asked.prompt_tokens + asked.output_tokens, *LENGTHS, longest})
    return BudgetReport(
        notes=plan_notes(plan),
        room_bytes=plan.budget.room_bytes,
        num_blocks=plan.num_blocks,
        kv_bytes=plan.kv_bytes,
        num_host_blocks=plan.num_host_blocks,
        host_bytes=plan.host_bytes,
        max_model_len=longest,
        callers=[
            CallersReport(
                num_tokens=length, num_callers={name: num_callers(one, engine, length) for name, one in plans.items()}
            )
            for length in lengths
            if length <= longest
        ],
    )


def _measured_report(path: Path, plan: MemoryPlan, steps: LargestStep) -> MeasuredReport:
    """Load the model as a server would and run its largest step."""
    from inflight.runtime.load import load_executor
    from inflight.runtime.memory_measure import measure

    demand = plan.demand
    found = measure(partial(load_executor, path, plan.config, steps), plan.step)
    kv_bytes = found.num_kv_blocks * demand.block_bytes
    buffer_bytes = demand.activations(plan.step).buffer_bytes
    return MeasuredReport(
        num_kv_blocks=found.num_kv_blocks,
        weights=Compared(predicted=demand.weight_bytes, measured=found.weight_bytes),
        kv=Compared(predicted=kv_bytes, measured=found.kv_bytes),
        buffers=Compared(predicted=buffer_bytes, measured=found.activation_bytes),
        together=Compared(
            predicted=demand.weight_bytes + kv_bytes + buffer_bytes,
            measured=found.weight_bytes + found.kv_bytes + found.activation_bytes,
        ),
    )
