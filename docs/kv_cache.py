"""Write the measured parts of docs/kv_cache.md, and its pictures, from docs/kv_cache.json.

The scripts of bench/ that end with on_model.save put their figures there; each part of the page names its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from textwrap import fill

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

HERE = Path(__file__).parent
PAGE, STORED = HERE / "kv_cache.md", HERE / "kv_cache.json"
BLOCK_BYTES = 368_640  # of the built-in model, in bfloat16
INK, BLUE, ORANGE, GREY = "#1f2430", "#2563a8", "#c2570c", "#8a919e"


def time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def machine(run: dict) -> str:
    versions = run["versions"]
    return f"{versions['cpu']}, {versions['num_cpus']} CPUs, kernels {versions['kernels']}"


def prefix_bits(run: dict) -> str:
    lines = [
        f"`python bench/prefix_bits.py`: random walks down a tree of random tokens, over {run['num_blocks']} blocks, "
        "with `hash`, with `radix` and without. Compared are all logits of all steps of every request, bit by bit.",
        "",
        "| KV format | prompts | that hit | of their tokens | blocks evicted | rows of logits | requests that differ |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in run["formats"].items():
        share = one["hit_tokens"] / one["query_tokens"]
        lines.append(
            f"| {name} | {one['num_prompts']:,} | {one['num_prompts_hit']:,} | {share:.0%} | "
            f"{one['num_evicted_blocks']:,} | {one['num_rows_of_logits']:,} | {one['num_differing']} |"
        )
    return "\n".join(lines)


def conversation(run: dict) -> str:
    sizes = {key.split()[1] for key in run["simulated"]}
    differ = [size for size in sizes if run["simulated"][f"hash {size}"] != run["simulated"][f"radix {size}"]]
    found = {int(size): run["simulated"][f"hash {size}"] for size in sizes}
    rates = ", ".join(f"{size:,} blocks {rate:.1%}" for size, rate in sorted(found.items()))
    lines = [
        "`python bench/conversation.py mooncake_conversation_trace.jsonl`: the first requests of a chat service's "
        f"trace, in real time: {run['notes'][0]}. That is more than this machine can do, and the queue grows to the "
        f"end. A cache that never forgets would find {run['bound']:.1%} of the prompt tokens.",
        "",
        "| prefix cache | blocks | found | first token p50 | p99 | whole answer p50 | p99 | requests/s | evicted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in run["runs"].items():
        index, num_blocks = name.split()
        memory = f"{int(num_blocks):,} ({int(num_blocks) * BLOCK_BYTES / 2**30:.1f} GiB)"
        times = (one["ttft_s"]["p50"], one["ttft_s"]["p99"], one["e2e_s"]["p50"], one["e2e_s"]["p99"])
        cells = (index, memory, f"{one['hit_rate']:.1%}", *map(time, times), f"{one['requests_per_s']:.2f}")
        lines.append(f"| {' | '.join(cells)} | {one['num_evicted_blocks']:,} |")
    same = len({one["output_sha256"] for one in run["runs"].values()}) == 1
    lines += [
        "",
        f"All outputs are {'the same' if same else 'NOT the same'}. By simulation a cache of {rates} finds so "
        f"much{'' if differ else ', by hash and by radix tree alike'}. On this traffic the default, a GiB, finds a "
        f"quarter of what there is: raise `--kv-cache-memory-bytes`. {machine(run)}.",
    ]
    return "\n".join(lines)


def tenants(run: dict) -> str:
    took = run["median_s"]
    return (
        f"`python bench/tenants.py`: two API keys, a real server, {run['num_pairs']} interleaved pairs of prompts "
        f"of {run['prompt_tokens']} tokens. The first token of a prompt that only the other tenant had sent came after "
        f"{time(took['others'])} in the median, of one that nobody had sent after {time(took['nobodys'])}, of one's "
        f"own after {time(took['own'])}. As a detector, the time has an AUC of {run['auc_others']:.3f} for the other's "
        f"prompts (0.5 is a guess) and of {run['auc_own']:.3f} for one's own. {machine(run)}."
    )


def pressure(run: dict) -> str:
    results, best = run["results"], run["best"]

    def middle(name: str, get: Callable[[dict], float]) -> float:
        return median(get(one) for one in results[name])

    def speed(name: str) -> float:
        return middle(name, lambda one: one["output_tokens_per_s"])

    def speeds(name: str) -> str:
        each = ", ".join(f"{one['output_tokens_per_s']:.0f}" for one in results[name])
        return f"{speed(name):.0f} ({each})"

    lines = [
        f"`python bench/pressure.py`: {run['num_requests']} requests at once, no prefix cache, 32 seats; 32 rows would "
        f"fill {run['num_blocks_wanted']:.0f} blocks in the mean, and there are {run['num_blocks']}. The baseline is "
        "the best number of seats for that memory, as one would find it by trying.",
        "",
        "| | output tokens/s | of the best fixed | whole answer p99 | preemptions | blocks swapped out |",
        "|---|---|---|---|---|---|",
    ]
    for name in results:
        title = {"plenty": "enough memory (4,096 blocks)", "auto": "**auto** (default)"}.get(name, name)
        if name == best:
            title += " rows: the best"
        elif name.startswith("fixed"):
            title += " rows"
        tail_s = middle(name, lambda one: one["e2e_s"]["p99"])
        lines.append(
            f"| {title} | {speeds(name)} | {speed(name) / speed(best):.0%} | {time(tail_s)} | "
            f"{middle(name, lambda one: one['num_preemptions']):.0f} | "
            f"{middle(name, lambda one: one['num_swapped_out_blocks']):,.0f} |"
        )
    runs = len(results["auto"])
    same = "one hash" if run["num_hashes"] == 1 else f"{run['num_hashes']} DIFFERENT hashes"
    lines += [
        "",
        f"Of {runs} runs that took turns, each and their median; {same} of all outputs. Fixed rows: `--admission "
        "none`, recompute; all others watermark, unless they name another. `swap` and `auto` have a host "
        f"tier of 1 GiB beside the blocks. {machine(run)}.",
    ]
    return "\n".join(lines)


def memory_share(run: dict) -> str:
    draw_shares(run)
    return (
        f"`python bench/memory_share.py`: 224 requests at once, no prefix cache, no host tier; a budget of "
        f"{run['budget_bytes'] / 1e6:.0f} MB for weights, activations and KV, and more and more of it used.\n\n"
        "![Preemptions fall and throughput rises with the share of the budget](kv_share.svg)\n\n"
        f"What the script advises: {run['advice']} {machine(run)}."
    )


def kv_concurrency(run: dict) -> str:
    lines = [
        f"`python bench/kv_concurrency.py`: {run['num_requests']} requests, {run['kv_bytes'] / 1e6:.0f} MB of KV "
        "in each format, 64 seats. What the formats cost in quality: [KV formats](kv_formats.md).",
        "",
        "| `--kv-cache-dtype` | blocks | rows at once, mean | at most | output tokens/s | preemptions |",
        "|---|---|---|---|---|---|",
    ]
    plain = run["runs"]["bfloat16"]
    for name, one in run["runs"].items():
        gained = one["mean_rows"] / plain["mean_rows"]
        lines.append(
            f"| {name} | {one['num_blocks']:,} | {one['mean_rows']:.1f} ({gained:.2f} x) | {one['most_rows']} | "
            f"{one['output_tokens_per_s']:.0f} | {one['num_preemptions']} |"
        )
    return "\n".join([*lines, "", f"{machine(run)}."])


def draw_shares(run: dict) -> None:
    shares = sorted(map(float, run["runs"]))
    runs = [run["runs"][str(share)] for share in shares]
    matplotlib.rcParams |= {"svg.hashsalt": "inflight", "font.size": 10, "text.color": INK, "axes.labelcolor": INK}
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7.2, 5.2), sharex=True, layout="constrained")
    for axes, key, colour, label in (
        (above, "num_preemptions", ORANGE, "preemptions"),
        (below, "output_tokens_per_s", BLUE, "output tokens/s"),
    ):
        values = [one[key] for one in runs]
        axes.plot(shares, values, color=colour, marker="o", linewidth=2)
        for share, value in zip(shares, values, strict=True):
            axes.annotate(f"{value:.0f}", (share, value), (0, 7), textcoords="offset points", ha="center", color=colour)
        axes.set_ylabel(label)
        axes.set_ylim(0, 1.2 * max(values) or 1)
        axes.grid(axis="y", color=GREY, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    below.set_xticks(
        shares, [f"{share:g}\n{one['num_blocks']} blocks" for share, one in zip(shares, runs, strict=True)]
    )
    below.set_xlabel(f"gpu_memory_utilization, of a budget of {run['budget_bytes'] / 1e6:.0f} MB")
    figure.savefig(HERE / "kv_share.svg", metadata={"Date": None})
    pyplot.close(figure)


def wrapped(text: str) -> str:
    """Lines of at most 120 characters, but for tables and pictures."""
    kept = ("|", "![")
    lines = (line if line.startswith(kept) else fill(line, 120, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join(lines)


def main() -> None:
    page, stored = PAGE.read_text(), json.loads(STORED.read_text())
    for write in (prefix_bits, conversation, tenants, pressure, memory_share, kv_concurrency):
        name = write.__name__
        if name in stored:
            begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
            text = f"{begin}\n{wrapped(write(stored[name]))}\n{end}"
            page = re.sub(f"{begin}.*?{end}", lambda _, text=text: text, page, flags=re.DOTALL)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
