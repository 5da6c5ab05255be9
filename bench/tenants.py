"""Can a tenant see by the clock what another has sent? A real server, two API keys, and the time to the first token.

    python bench/tenants.py [--num-pairs 300] [--prompt-tokens 256]

For each pair, one tenant sends a prompt. The other then sends the same prompt, and one that nobody has sent, in random
order, and at last the first of its own two again. As a detector of "somebody has sent this before", the time to the
first token is told by the area under its ROC curve (AUC): 0.5 is a guess, 1 is certainty.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from statistics import median

import httpx
from on_model import save

from inflight.bench.over_http import serving

KEYS = ("tenant-one", "tenant-two")


def ttft_s(http: httpx.Client, key: str, prompt: Sequence[int]) -> tuple[float, int]:
    """Seconds to the first token of a streamed completion, and the tokens of the prompt that were cached."""
    body = {
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s, num_cached = None, 0
    sent_s = time.perf_counter()
    with http.stream("POST", "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                first_s = first_s or time.perf_counter()
                usage = json.loads(line.removeprefix("data: ")).get("usage")
                if usage:
                    num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return (first_s or time.perf_counter()) - sent_s, num_cached


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The chance that a positive is faster than a negative, ties counted half (Mann and Whitney)."""
    wins = sum((p < n) + (p == n) / 2 for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-pairs", type=int, default=300)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)

    def prompt() -> list[int]:
        return [draw.randrange(100, 40_000) for _ in range(args.prompt_tokens)]

    times: dict[str, list[float]] = {"others": [], "nobodys": [], "own": []}
    cached = dict.fromkeys(times, 0)
    with (
        serving({"api_key": KEYS, "max_num_batched_tokens": 512}) as server,
        httpx.Client(base_url=server.url, timeout=None) as http,
    ):
        for _ in range(8):  # the first steps of a process are slower
            ttft_s(http, KEYS[0], prompt())
        for _ in range(args.num_pairs):
            known, new = prompt(), prompt()
            ttft_s(http, KEYS[0], known)
            pair = [("others", known), ("nobodys", new)]
            draw.shuffle(pair)
            for name, tokens in (*pair, ("own", known)):
                seconds, num_cached = ttft_s(http, KEYS[1], tokens)
                times[name].append(seconds)
                cached[name] += num_cached
    for name, seconds in times.items():
        print(f"{name:8} median {1000 * median(seconds):.1f} ms, {cached[name]:,} tokens cached, n={len(seconds)}")
    detector = auc(times["others"], times["nobodys"])
    own = auc(times["own"], times["nobodys"])
    print(f"AUC of the time to the first token: another's prompt against nobody's {detector:.3f}; one's own {own:.3f}")
    figures = {
        "num_pairs": args.num_pairs,
        "prompt_tokens": args.prompt_tokens,
        "auc_others": detector,
        "auc_own": own,
        "median_s": {name: median(seconds) for name, seconds in times.items()},
        "cached_tokens": cached,
    }
    save("tenants", figures)


if __name__ == "__main__":
    main()
