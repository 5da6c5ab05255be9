"""From a stored run of ``kv_quality.py`` to the page."""

from __future__ import annotations

from typing import Any

BYTES_OF_A_BLOCK = {
    "float32": "4 bytes",
    "bfloat16": "2 bytes",
    "int8": "a byte, and 2 bytes of scale for 32",
    "int4": "half a byte, and 2 bytes of scale for 32",
}


def page(run: dict[str, Any]) -> str:
    """The whole page, as Markdown."""
    settings, formats = run["settings"], run["formats"]
    plain = formats["bfloat16"]
    numbers = settings["layers"] * 2 * settings["kv_heads"] * settings["head_dim"]
    memory = settings["kv_memory_bytes"] / 2**20
    lengths = " | ".join(f"{prompt:,} + {output:,}" for prompt, output in settings["lengths"])
    source = settings["prompts"] or "the beginnings of the same texts"
    lines = [
        "# KV formats",
        "",
        "What `--kv-cache-dtype` costs in quality and saves in memory. Why the formats are as they are: [decision",
        "11](decisions/0011-kv-formats.md). This page is made by `bench/kv_quality.py`.",
        "",
        f"{run['model']}, {settings['layers']} layers x 2 x {settings['kv_heads']} KV heads x {settings['head_dim']} = "
        f"{numbers:,} numbers a token. {settings['kernels']}. Every format runs with the same weights.",
        "",
        "## Memory",
        "",
        f"Bytes are counted with the scales. Callers are those who fit into {memory:,.0f} MiB of KV at once, in blocks "
        f"of {settings['block_size']} tokens, by",
        "prompt and output tokens; in brackets against bfloat16.",
        "",
        f"| format | a number | bytes a token | saved, of bfloat16 | blocks | {lengths} |",
        "|---|---|---|---|---|" + "---|" * len(settings["lengths"]),
    ]
    for name, one in formats.items():
        saved = 1 - one["bytes_per_token"] / plain["bytes_per_token"]
        fit = " | ".join(f"{n:,} ({n / of:.2f} x)" for n, of in zip(one["callers"], plain["callers"], strict=True))
        lines.append(
            f"| {name} | {BYTES_OF_A_BLOCK[name]} | {one['bytes_per_token']:,.0f} | {100 * saved:.1f} % | "
            f"{one['num_blocks']:,} | {fit} |"
        )
    lines += [
        "",
        "## Quality",
        "",
        f"Perplexity over {settings['num_predicted_tokens']:,} tokens of Python's documentation and code, in chunks of "
        f"{settings['chunk_tokens']}; the difference is to float32 KV,",
        "with a 95 % interval (bootstrap over chunks). *Likeliest token*: the same one after the same text. *Greedy*:",
        f"{settings['num_prompts']} prompts of {source}, {settings['max_tokens']} tokens each: those that are the",
        "same, place by place, and the mean number before the first other. One other token makes most of what follows",
        "another text.",
        "",
        "| format | perplexity | difference | likeliest token | greedy tokens the same | before the first other |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in formats.items():
        low, high = one["interval"]
        lines.append(
            f"| {name} | {one['perplexity']:.3f} | {100 * one['relative_difference']:+.2f} % "
            f"[{100 * low:+.2f}, {100 * high:+.2f}] | {100 * one['same_greedy_token']:.1f} % | "
            f"{100 * one['same_tokens']:.1f} % | {one['mean_tokens_before_other']:.1f} of {settings['max_tokens']} |"
        )
    versions = run["versions"]
    lines += [
        "",
        f"inflight {versions['inflight']}, torch {versions['torch']}, Python {versions['python']}, {versions['cpu']}, "
        f"kernels {versions['kernels']}.",
    ]
    return "\n".join(lines) + "\n"
