"""The tuning table, measured: a sweep of every parameter in the simulator, and the page made from it.

python bench/tuning.py                             fit the cost of a step here (a minute), sweep, write the page
python bench/tuning.py --cost docs/tuning.json     sweep with the cost of an earlier run: no model is loaded
python bench/tuning.py --from docs/tuning.json     measure nothing: make the page from what was measured
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import tuning_sweep
from tuning_doc import draw, page
from tuning_sweep import BLOCK_SIZE, MAX_MODEL_LEN, SEED, WORKLOADS, sweep, traffic

from inflight.bench.machine import versions
from inflight.bench.offline import OfflineRunner
from inflight.engine.recorder import Line, Scheduled, Updated, read_step_log
from inflight.explain.tuning import ROWS
from inflight.metrics.summary import percentile
from inflight.schedulers.config import ContinuousConfig
from inflight.sim.cost import LinearStepCost, fit_step_cost

DOCS = Path(__file__).parents[1] / "docs"
NUM_REQUESTS = 240  # of each run
FIT_CALLERS = (1, 2, 4, 8, 16, 32)  # at once, one after the other: steps of all sizes
FIT_REPEATS = 4


def fit() -> dict[str, Any]:
    """Run the built-in model for a while; return the cost of its steps, and how far it is off.

    The same requests run several times and make the same steps, of each of which the shortest counts: whatever else
    the machine did can only have made it longer.
    """
    from inflight.assemble import assemble
    from inflight.config import EngineConfig
    from inflight.hub.resolve import resolve
    from inflight.text.tokenizer import Tokenizer

    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        scheduler = ContinuousConfig(
            max_num_seqs=max(FIT_CALLERS),
            max_num_batched_tokens=256,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=False,  # the same prompts run several times
        )
        config = EngineConfig(scheduler=scheduler, step_log=log)
        files = resolve(config.model)
        engine = assemble(config, files, Tokenizer.load(files.path))
        for callers in FIT_CALLERS:
            items = tuning_sweep.draw(*WORKLOADS["chat"], callers + 2, 1.0)
            runs = []
            for _ in range(FIT_REPEATS):
                num_before = sum(1 for _ in read_step_log(log))
                OfflineRunner(engine, items, callers).run()
                runs.append(list(islice(read_step_log(log), num_before, None)))
            lines += map(_shortest, zip(*runs, strict=True))
        engine.core.close()
    cost = fit_step_cost(lines)
    outputs = {line.output.step: line.output for line in lines if isinstance(line, Scheduled)}
    errors = sorted(
        abs(cost.duration_s(outputs[line.step]) / line.result.duration_s - 1)
        for line in lines
        if isinstance(line, Updated) and line.result is not None
    )
    return {
        **asdict(cost),
        "model": files.name,
        "num_steps": len(errors),
        "relative_error_p50": percentile(errors, 0.5),
        "relative_error_p90": percentile(errors, 0.9),
        "versions": versions(),
    }


def _shortest(same: tuple[Line, ...]) -> Line:
    """The first of the lines that several runs wrote at one place, with the shortest duration of them all."""
    first = same[0]
    if not isinstance(first, Updated):
        return first
    durations_s = [line.result.duration_s for line in same]
    return msgspec.structs.replace(first, result=replace(first.result, duration_s=min(durations_s)))


def measure(fitted: dict[str, Any]) -> dict[str, Any]:
    """Sweep every row of the table; the result, ready for JSON."""
    cost = cost_of(fitted)
    traffics = {workload: traffic(workload, NUM_REQUESTS, cost) for workload in WORKLOADS}
    rows = {}
    for row in ROWS:
        print(f"{row.parameter} ...", flush=True)
        rows[row.parameter] = {"values": row.values, "results": _short(sweep(row, cost, traffics))}
    return {
        "cost": fitted,
        "settings": {
            "num_requests": NUM_REQUESTS,
            "seed": SEED,
            "block_size": BLOCK_SIZE,
            "max_model_len": MAX_MODEL_LEN,
            "workloads": WORKLOADS,
            "capacity_per_s": {name: one.capacity_per_s for name, one in traffics.items()},
        },
        "rows": rows,
    }


def _short(value: Any) -> Any:
    """Figures of six digits: more would be noise."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cost_of(fitted: dict[str, Any]) -> LinearStepCost:
    return LinearStepCost(*(fitted[name] for name in ("constant_s", "per_token_s", "per_context_token_s")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost", type=Path, metavar="JSON", help="take the cost of a step from an earlier run")
    parser.add_argument("--from", type=Path, metavar="JSON", dest="stored", help="take the whole run from a file")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder for tuning.json, .md and _FAMILY.svg")
    args = parser.parse_args()
    if args.stored is not None:
        run = json.loads(args.stored.read_text())
    else:
        run = measure(fit() if args.cost is None else json.loads(args.cost.read_text())["cost"])
        run = json.loads(json.dumps(run))  # as it will be read
        (args.out / "tuning.json").write_text(json.dumps(run, indent=1) + "\n")
    (args.out / "tuning.md").write_text(page(run))
    for family in dict.fromkeys(row.family for row in ROWS):
        (args.out / f"tuning_{family}.svg").write_text(draw(run, family))


if __name__ == "__main__":
    main()
