import pytest

from inflight.hub.resolve import ModelFiles, resolve
from inflight.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def model_files() -> ModelFiles:
    """The real model, fetched at its first use; without it the tests that need it fail, saying why."""
    return resolve(None)


@pytest.fixture(scope="session")
def tokenizer(model_files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(model_files.path)
