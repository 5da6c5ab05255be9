import os

import pytest
from hypothesis import settings

from inflight.hub.resolve import ModelFiles, resolve
from inflight.text.tokenizer import Tokenizer

# One thread, unless a test asks for more: with two, a busy neighbour costs a time slice at every barrier.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run: a change that breaks something is found by whoever makes it.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


@pytest.fixture(scope="session")
def model_files() -> ModelFiles:
    """The real model, fetched at its first use; without it the tests that need it fail, saying why."""
    return resolve(None)


@pytest.fixture(scope="session")
def tokenizer(model_files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(model_files.path)
