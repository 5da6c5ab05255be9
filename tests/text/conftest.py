from typing import Any

import pytest

from inflight.hub.resolve import ModelFiles
from text.tiny import as_published


@pytest.fixture(scope="session")
def reference(model_files: ModelFiles) -> Any:
    """transformers' tokenizer of the real model, by transformers' own reader, and cutting as published."""
    from transformers import AutoTokenizer

    return as_published(AutoTokenizer.from_pretrained(model_files.path.parent, gguf_file=model_files.path.name))
