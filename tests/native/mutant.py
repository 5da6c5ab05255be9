"""Plant a defect in the kernels, build them, and show that `same_bits.py` finds it: sums in an order that depends on
the thread.

    python tests/native/mutant.py        (needs cmake, ninja and nanobind, as a build does; about two minutes)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEFECT = (  # in a product: the second thread adds odd groups apart, and to the others at the end
    (
        "  RowPointers<R> rows(x, groups);\n  alignas(64) float first",
        "  alignas(64) float apart[R * COLUMNS] = {};\n  const bool second_thread = omp_get_thread_num() == 1;\n"
        "  RowPointers<R> rows(x, groups);\n  alignas(64) float first",
    ),
    (
        "          float* o = out + r * COLUMNS + v * LANES;\n          if (h == 0)",
        "          float* o = (second_thread && g % 2 ? apart : out) + r * COLUMNS + v * LANES;\n          if (h == 0)",
    ),
    (
        "    }\n  }\n}\n\ntemplate <int R>\nvoid multiply(const Q4Group*",
        "    }\n  }\n  for (int i = 0; i < R * COLUMNS; i++) out[i] += apart[i];\n}\n\n"
        "template <int R>\nvoid multiply(const Q4Group*",
    ),
    (
        "namespace {\n\nusing inflight::BlockProduct",
        'extern "C" int omp_get_thread_num();\nnamespace {\n\nusing inflight::BlockProduct',
    ),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "csrc", copy / "csrc")
        shutil.copy(ROOT / "CMakeLists.txt", copy)
        shutil.copytree(ROOT / "src" / "inflight", copy / "lib" / "inflight", ignore=shutil.ignore_patterns("*.so"))
        source = copy / "csrc" / "kernels" / "matmul.h"
        text = source.read_text()
        for old, new in DEFECT:
            if text.count(old) != 1:
                raise SystemExit(f"the kernel has changed; this is not in it once:\n{old}")
            text = text.replace(old, new)
        source.write_text(text)
        build = copy / "build"
        configure = ["cmake", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", "-S", folder, "-B", str(build)]
        for command in (configure, ["cmake", "--build", str(build)]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for library in build.glob("_kernels*.so"):
            shutil.copy(library, copy / "lib" / "inflight" / "native")
        command = [sys.executable, str(ROOT / "tests" / "native" / "same_bits.py"), "--schedules", "50"]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(copy / "lib")}, capture_output=True, text=True
        )
    last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
    if done.returncode == 0 or "other bits" not in last[0]:
        raise SystemExit(f"the defect was not found: {last[0]}")
    print(f"the defect was found: {last[0]}")


if __name__ == "__main__":
    main()
