"""The comparison from its settings to its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.compare import charts, folder
from inflight.compare.config import CompareConfig
from inflight.compare.experiment import Experiment, experiment
from inflight.compare.groups import Groups, group
from inflight.compare.machine import write_step_cost
from inflight.compare.measure import latency_samples
from inflight.compare.page import page
from inflight.compare.results import make_results, shown_run
from inflight.compare.text import as_text
from inflight.config import LoadConfig
from inflight.explain import html, kv_layout, svg
from inflight.explain.log import open_log
from inflight.explain.read_timeline import read_timeline


def compare(
    config: CompareConfig,
    settings: LoadConfig,
    workload_values: Mapping[str, Any],
    command_values: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the comparison, write its folder, and return its results.

    ``workload_values`` are values of ``WorkloadConfig``, ``command_values`` all that were given, by field name. Raises
    as ``experiment`` does, and ``ValueError`` if the folder is not empty.
    """
    inputs = (config.step_cost, workload_values.get("trace"), workload_values.get("prompts"))
    folder.check_free(config.out, config.force, [path for path in inputs if path is not None])
    done = experiment(config, settings, workload_values)
    groups = group(done.workload.items)
    results = make_results(done, groups, config, settings, folder.command(command_values))
    _write(config.out, done, groups, results, command_values)
    return results


def _write(
    out: Path, done: Experiment, groups: Groups, results: Mapping[str, Any], command_values: Mapping[str, Any]
) -> None:
    folder.write_json(out / folder.RESULTS, results)
    folder.write_workload(out / folder.WORKLOAD, done.workload.items)
    if done.step_cost is not None:
        write_step_cost(out / folder.STEP_COST, done.step_cost)
    (out / folder.COMMAND).write_text(results["command"] + "\n", encoding="utf-8")
    decided = {
        "max_model_len": done.max_model_len,
        "max_num_batched_tokens": done.continuous.max_num_batched_tokens,
    }
    (out / folder.RERUN).write_text(folder.rerun_script(command_values, decided), encoding="utf-8")
    (out / folder.SUMMARY).write_text(as_text(results) + "\n", encoding="utf-8")
    shown = {name: shown_run(runs) for name, runs in done.runs.items()}
    families = results["families"]
    pictures = {
        "latency_cdf": charts.latency_cdf(
            {name: latency_samples(run, groups) for name, run in shown.items()},
            {name: figures["title"] for name, figures in families.items()},
        ),
        "ledger": charts.ledger_bars(families),
    }
    occupancy = {}
    for name, run in shown.items():
        timeline = read_timeline(open_log(run.log))
        occupancy[name] = svg.draw(timeline, "seats", "time")
        (out / f"occupancy_{name}.html").write_text(html.draw(timeline, "seats", "time"), encoding="utf-8")
    layouts: dict[str, str] = {
        name: kv_layout.draw(open_log(shown[name].log))
        for name in ("continuous", "continuous_contiguous")
        if "continuous_contiguous" in shown and name in shown
    }
    for stem, picture in (
        *pictures.items(),
        *((f"occupancy_{name}", one) for name, one in occupancy.items()),
        *((f"kv_layout_{name}", one) for name, one in layouts.items()),
    ):
        (out / f"{stem}.svg").write_text(picture, encoding="utf-8")
    (out / folder.PAGE).write_text(page(results, pictures, occupancy, layouts), encoding="utf-8")
