import pytest
import torch
from torch_worlds import load, make_llama

from inflight.runtime.runner import ModelExecutor


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelExecutor:
    """Grouped queries, untied output; 256 blocks of 4 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    make_llama(folder)
    return load(folder)
