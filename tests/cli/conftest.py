from pathlib import Path

import pytest

from tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return str(folder)
