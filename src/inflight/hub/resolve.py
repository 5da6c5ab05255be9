"""From what a user calls a model to files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from inflight.hub.embedded import DEFAULT_MODEL, cache_dir, fetch
from inflight.hub.errors import ModelUnavailable
from inflight.hub.home import expand_home
from inflight.hub.snapshot import download_snapshot

__all__ = ["ModelFiles", "ModelUnavailable", "resolve"]

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine: a .gguf file, or a folder with config.json, safetensors and tokenizer.json."""

    name: str
    path: Path


def resolve(model: str | None, show_progress: bool = True) -> ModelFiles:
    """Find a model, downloading it where needed. Raises ``ModelUnavailable``.

    ``model`` is, in this order: None, the embedded default model; a path of a .gguf file, or of a folder with
    safetensors or exactly one .gguf file; the default model's own name, in any case; a hub name ``org/name``. (The
    default model's name with its organisation means the hub's weights, which are not quantised.)
    """
    if model is None:
        return _default(show_progress)
    path = expand_home(model)
    if path.is_file():
        return _file(path)
    if path.is_dir():
        return _folder(path.name or path.resolve().name, path)
    if model.lower() == DEFAULT_MODEL.name.lower():
        return _default(show_progress)
    if path.suffix.lower() != ".gguf" and _HUB_NAME.fullmatch(model):
        return _folder(model, download_snapshot(model, show_progress))
    raise ModelUnavailable(
        f"no model {model!r}: it is not a file or folder here ({path.absolute()}), not the name of the embedded model "
        f"({DEFAULT_MODEL.name}), and not a hub name (org/name)"
    )


def _default(show_progress: bool) -> ModelFiles:
    return ModelFiles(DEFAULT_MODEL.name, fetch(DEFAULT_MODEL, cache_dir(), show_progress))


def _file(path: Path) -> ModelFiles:
    if path.suffix.lower() != ".gguf":
        raise ModelUnavailable(f"{path} is not a .gguf file; for safetensors, name the folder they lie in")
    return ModelFiles(path.stem, path)


def _folder(name: str, path: Path) -> ModelFiles:
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return ModelFiles(name, path)
    ggufs = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf" and file.is_file())
    if len(ggufs) == 1:
        return ModelFiles(name, ggufs[0])
    if ggufs:
        raise ModelUnavailable(f"{path} has several .gguf files, name one: {', '.join(file.name for file in ggufs)}")
    raise ModelUnavailable(f"{path} has no model: neither config.json with *.safetensors, nor a .gguf file")
