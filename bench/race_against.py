"""The race against another engine, in turns: medians, the ratio, and its interval.

    python bench/race_against.py --workload FILE --peer "COMMAND" [--rounds 5] [--json OUT] [-- FLAGS]

FLAGS are those of `inflight bench engine`. COMMAND runs the other engine once on the same workload and prints its
output tokens/s as the last word. Each round runs both, one after the other, so that a slow hour of the machine slows
both. The interval is a bootstrap over the rounds: 95 % of the ratios of medians of rounds drawn with replacement.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

NUM_DRAWS = 10_000


def run_ours(workload: Path, flags: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "inflight.cli", "bench", "engine", "--workload", str(workload)]
        subprocess.run([*command, "--repeats", "1", "--json", str(out), *flags], check=True, stdout=subprocess.DEVNULL)
        report: dict[str, Any] = json.loads(out.read_text())
    return report


def run_peer(command: str) -> float:
    done = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    reports, ours, theirs = [], [], []
    for index in range(args.rounds):
        reports.append(run_ours(args.workload, args.flags))
        ours.append(reports[-1]["median"]["output_tokens_per_s"])
        theirs.append(run_peer(args.peer))
        print(f"round {index + 1}: ours {ours[-1]:.1f}, theirs {theirs[-1]:.1f} output tokens/s", flush=True)
    draws = np.random.default_rng(0).integers(0, args.rounds, (NUM_DRAWS, args.rounds))
    ratios = np.median(np.array(ours)[draws], 1) / np.median(np.array(theirs)[draws], 1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        f"medians: ours {statistics.median(ours):.1f}, theirs {statistics.median(theirs):.1f} output tokens/s; "
        f"ratio {ratio:.2f} [{low:.2f}, {high:.2f}]; our outputs: "
        f"{', '.join(sorted({report['median']['output_sha256'][:16] for report in reports}))}"
    )
    if args.json is not None:
        args.json.write_text(json.dumps({"ours": ours, "theirs": theirs, "ratio": ratio, "reports": reports}, indent=1))


if __name__ == "__main__":
    main()
