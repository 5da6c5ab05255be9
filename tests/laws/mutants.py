"""Ways to get a scheduler wrong, each a small edit of its source. The laws must catch every one.

``python -m laws.mutants`` (from the tests folder) prints which world caught which mutant.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import inflight
from laws.continuous_mutants import CONTINUOUS_MUTANTS
from laws.mutant import Mutant
from laws.request_level_mutants import REQUEST_LEVEL_MUTANTS
from laws.reuse_mutants import REUSE_MUTANTS

TESTS = Path(__file__).parents[1]
SOURCE = Path(inflight.__file__).parent
NUM_WORLDS = 2000
MUTANTS = CONTINUOUS_MUTANTS + REUSE_MUTANTS + REQUEST_LEVEL_MUTANTS


def caught_by_worlds(mutant: Mutant, folder: Path) -> str:
    """Apply a mutant to a copy of its package and play worlds on it; returns what they printed."""
    copy, file = folder / "inflight", folder / "inflight" / mutant.file
    copy.mkdir()
    for part in SOURCE.iterdir():  # all but the mutant's package are links, so that Python need not compile them again
        if part != (SOURCE / mutant.file).parent:
            (copy / part.name).symlink_to(part)
    shutil.copytree((SOURCE / mutant.file).parent, file.parent, ignore=shutil.ignore_patterns("__pycache__"))
    source = file.read_text()
    if source.count(mutant.before) != 1:
        raise ValueError(f"{mutant.name}: its text occurs {source.count(mutant.before)} times in {mutant.file}")
    file.write_text(source.replace(mutant.before, mutant.after))
    run = subprocess.run(
        [sys.executable, "-m", "laws.play", mutant.family, str(NUM_WORLDS)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return run.stdout if run.returncode == 1 and run.stdout else f"survived: {run.stdout}{run.stderr}"


if __name__ == "__main__":
    for mutant in MUTANTS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{mutant.name}: {caught_by_worlds(mutant, Path(folder)).strip()}")
