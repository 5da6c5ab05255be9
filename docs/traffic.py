"""Write the measured tables of docs/traffic.md from the results of `inflight compare`.

python docs/traffic.py LOAD_050 LOAD_080 LOAD_095 KV    # folders of compare: what is needed is kept in traffic.json
python docs/traffic.py                                  # from traffic.json alone
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
STORED, PAGE = HERE / "traffic.json", HERE / "traffic.md"
BEGIN, END = "<!-- measured: written by docs/traffic.py -->", "<!-- /measured -->"
KEPT = ("offered", "groups", "versions", "command", "same_output")
OF_VARIANT = ("title", "duration_s", "throughput", "ledger", "seat_ledger", "kv", "queue", "output_sha256")
LATENCIES = ("ttft_s", "e2e_s", "computed_tpot_s", "itl_s")


def kept(folder: Path) -> dict:
    """What the page needs of one comparison."""
    results = json.loads((folder / "results.json").read_text())
    families = {}
    for name, one in results["families"].items():
        latency = {group: {key: one["latency"][group][key] for key in LATENCIES} for group in one["latency"]}
        families[name] = {**{key: one[key] for key in OF_VARIANT}, "latency": latency}
    return {**{key: results[key] for key in KEPT}, "families": families}


def time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def both(of: dict, scale: float | None = None) -> str:
    """p50 and p99."""
    if scale is None:
        return f"{time(of['p50'])}, {time(of['p99'])}"
    return f"{of['p50'] * scale:.1f}, {of['p99'] * scale:.1f}"


def load_table(run: dict) -> list[str]:
    offered, groups = run["offered"], run["groups"]
    lines = [
        f"**At {100 * offered['load']:.0f} % of capacity**: {offered['rate_requests_per_s']:.2f} requests/s arrive, "
        f"the continuous engine can do {offered['capacity_requests_per_s']:.2f}.",
        "",
        "| p50, p99 | requests/s | TTFT short | TTFT long | whole answer, short | long | TPOT as computed, ms, short | "
        "long | padding | ended rows |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in run["families"].values():
        short, long = one["latency"]["short"], one["latency"]["long"]
        cells = (
            one["title"],
            f"{one['throughput']['requests_per_s']:.2f}",
            *(both(group["ttft_s"]) for group in (short, long)),
            *(both(group["e2e_s"]) for group in (short, long)),
            *(both(group["computed_tpot_s"], 1000) for group in (short, long)),
            f"{100 * one['ledger']['padding']:.1f} %",
            f"{100 * one['ledger']['straggler']:.1f} %",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"{groups['text'].capitalize()}. `{run['command']}`", ""]


def kv_table(run: dict) -> list[str]:
    lines = [
        "**Paged and contiguous KV**, 64 seats, all requests at once.",
        "",
        "| | rows at once, at most | reserved and never written | output tokens/s | all done after |",
        "|---|---|---|---|---|",
    ]
    for one in run["families"].values():
        cells = (
            one["title"],
            str(one["kv"]["max_concurrency"]),
            f"{100 * one['kv']['reserved_unused_share']:.1f} %",
            f"{one['throughput']['output_tokens_per_s']:.0f}",
            time(one["duration_s"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"`{run['command']}`", ""]


def main() -> None:
    if folders := [Path(name) for name in sys.argv[1:]]:
        *loads, kv = map(kept, folders)
        for run in (*loads, kv):
            words = [Path(word).name if "/" in word else word for word in run["command"].split()]
            run["command"] = " ".join(words)
        STORED.write_text(json.dumps({"loads": loads, "kv": kv}, separators=(",", ":")) + "\n")
    stored = json.loads(STORED.read_text())
    versions = stored["kv"]["versions"]
    lines = [
        f"{versions['cpu']}, {versions['num_cpus']} CPUs, kernels {versions['kernels']}, "
        f"inflight {versions['inflight']}. Percentiles are of nearest rank, of some 160 short and 40 long requests.",
        "",
        *(line for run in stored["loads"] for line in load_table(run)),
        *kv_table(stored["kv"]),
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n\n" + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
