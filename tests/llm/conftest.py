from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight import LLM
from tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return str(folder)


@pytest.fixture(scope="session")
def llm(tiny_model: str) -> Iterator[LLM]:
    options = {"num_threads": 1, "max_num_seqs": 4, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 32}
    with LLM(tiny_model, dtype="float32", **options) as llm:
        yield llm
