import argparse
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.commands import compare
from inflight.compare import folder
from inflight.compare.config import CompareConfig
from inflight.config import LoadConfig, given_values
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig
from inflight.workload.item import WorkItem

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "out": st.just(Path("a folder")),
        "force": st.booleans(),
        "num_seats": st.integers(1, 64),
        "fill_timeout_ms": st.none() | st.floats(0, 100),
        "families": st.sampled_from(["static", "dynamic,continuous"]),
        "request_rate": st.floats(0.1, 100),
        "trace": st.just(Path("it's.csv")),
        "model": st.just("org/name"),
        "num_threads": st.none() | st.integers(1, 8),
    },
)


@given(VALUES)
def test_a_command_gives_its_values(values: dict[str, object]) -> None:
    words = shlex.split(folder.command(values))
    assert words[:2] == ["inflight", "compare"]
    parser = argparse.ArgumentParser()
    compare.add_flags(parser)
    args = parser.parse_args(words[2:])
    read = {
        name: value
        for one in (CompareConfig, WorkloadConfig, LoadConfig)
        for name, value in given_values(one, args).items()
    }
    assert read == values


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.integers(1, 9), st.lists(st.integers(0, 49), min_size=1, max_size=9)),
        min_size=1,
        max_size=9,
    )
)
def test_a_workload_is_read_again_as_it_was(tmp_path_factory, requests) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("workload") / "workload.jsonl"
    first_s = min(arrival_s for arrival_s, _, _ in requests)
    requests = sorted(requests, key=lambda one: one[0])
    items = [
        WorkItem(str(index), tuple(prompt), max_tokens, arrival_s - first_s)
        for index, (arrival_s, max_tokens, prompt) in enumerate(requests)
    ]
    folder.write_workload(path, items)
    assert build_workload(WorkloadConfig(trace=path), vocab_size=50, max_model_len=100).items == items


def test_forced_only_what_is_ours_goes(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    for name in ("results.json", "occupancy_static.svg", "kv_layout_continuous.svg", "steps/old.jsonl", "mine.txt"):
        (tmp_path / name).write_text("")
    folder.check_free(tmp_path, force=True, inputs=[tmp_path.parent / "trace.csv"])
    folder.prepare(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is read"):
        folder.check_free(tmp_path, force=True, inputs=[tmp_path / "workload.jsonl"])


def test_a_simulation_is_run_again_without_a_model() -> None:
    values = {"simulated_steps": True, "model": "x", "block_size": 8, "load": 0.5, "num_seats": 4, "seed": 3}
    script = folder.rerun_script(values, {"max_model_len": 64})
    assert "--simulated-steps --num-seats 4 --max-model-len 64" in script
    assert '--step-cost "$here/step_cost.json"' in script
    assert not any(word in script for word in ("--model", "--block-size", "--load", "--seed"))
