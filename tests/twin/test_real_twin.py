"""A real model that swaps and shares prefixes: its log decides the same again, also in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight import LLM
from inflight.core.request import Request, SamplingParams
from inflight.engine.recorder import Scheduled, Started, Updated, read_step_log
from inflight.sim.cost import fit_step_cost
from inflight.sim.replay import replay
from tiny_llama import write_tiny_llama
from twin.test_twin import rebuild, same_bytes, simulated_twin

BLOCK_SIZE = 4
LIMITS = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 48, "admission": "none"}
MEMORY = {"num_gpu_blocks_override": 14, "block_size": BLOCK_SIZE, "swap_space_bytes": 2**16, "num_threads": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return str(folder)


def requests() -> list[Request]:
    """Questions about three texts; one is for two answers."""
    return [
        Request(
            request_id=f"r{number}",
            prompt_token_ids=tuple(range(20 * (number % 3), 20 * (number % 3) + 9))
            + (100 + number,) * (number % 4 + 1),
            sampling=SamplingParams(temperature=0.0, max_tokens=16 + number, ignore_eos=True, n=1 + (number == 5)),
        )
        for number in range(10)
    ]


def record(model: str, preemption_mode: str, path: Path) -> None:
    """One request comes before every third step."""
    with LLM(model, dtype="float32", step_log=path, preemption_mode=preemption_mode, **LIMITS, **MEMORY) as llm:
        assert llm._engine is not None
        core, coming, turn = llm._engine.core, requests(), 0
        while coming or core.has_work:
            if coming and turn % 3 == 0:
                core.add(coming.pop(0))
            core.step()
            turn += 1


@pytest.mark.parametrize("preemption_mode", ["swap", "auto"])
def test_the_run_is_decided_again_byte_by_byte(model: str, preemption_mode: str, tmp_path: Path) -> None:
    record(model, preemption_mode, tmp_path / "steps.jsonl")
    started, *log = read_step_log(tmp_path / "steps.jsonl")
    assert isinstance(started, Started)
    assert started.num_host_blocks == 2**16 // (BLOCK_SIZE * 2 * 2 * 2 * 8 * 4)
    recorded = [line.output for line in log if isinstance(line, Scheduled)]
    copies = [copy for output in recorded for copy in output.copies]
    events = [event for line in log if isinstance(line, Updated) for event in line.events]
    assert any(copy.to_host for copy in copies)
    assert any(event.num_cached_tokens for event in events)
    if preemption_mode == "swap":
        assert not all(copy.to_host for copy in copies)
    assert same_bytes([decision.replayed for decision in replay(log, rebuild(started))], recorded)
    assert same_bytes(simulated_twin(started, log), recorded)
    results = [line.result for line in log if isinstance(line, Updated) and line.result]
    assert fit_step_cost(log).per_copied_block_s == sum(one.copies_s for one in results) / len(copies) > 0
