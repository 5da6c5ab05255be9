import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inflight.cli import main
from tiny_llama import write_tiny_llama


class Compared(NamedTuple):
    folder: Path
    results: dict[str, Any]
    printed: str
    said: str


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny-llama")
    write_tiny_llama(folder)
    return str(folder)


@pytest.fixture(scope="session")
def engine_flags(tiny_model: str) -> list[str]:
    flags = "--dtype float32 --num-threads 1 --num-gpu-blocks-override 128 --block-size 16"
    return ["--model", tiny_model, *flags.split()]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, engine_flags: list[str]) -> Compared:
    """Every variant, on the model, run once for all tests that look at what came out."""
    out = tmp_path_factory.mktemp("compared") / "real"
    flags = "--with-contiguous --with-no-padding --num-requests 16 --num-seats 4 --max-num-batched-tokens 64"
    return compare(out, [*flags.split(), *engine_flags])


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory, engine_flags: list[str]) -> Compared:
    """The three families, on a cost fitted to the model."""
    out = tmp_path_factory.mktemp("compared") / "simulated"
    flags = "--simulated-steps --num-requests 16 --num-seats 4 --max-num-batched-tokens 64"
    return compare(out, [*flags.split(), *engine_flags])


def compare(out: Path, flags: list[str]) -> Compared:
    with pytest.MonkeyPatch.context() as patch:
        printed, said = Lines(), Lines()
        patch.setattr("sys.stdout", printed)
        patch.setattr("sys.stderr", said)
        code = main(["compare", "--out", str(out), *flags])
    assert code == 0, said.text
    return Compared(out, json.loads((out / "results.json").read_text()), printed.text, said.text)


class Lines:
    """A stream that is no terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False
