"""The laws of scheduling, over random worlds of every family; the files named ``*_law*`` say what they demand."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.play import run_world
from laws.worlds import FAMILIES, random_world

TESTS = Path(__file__).parents[1]
NUM_WORLDS = 2000


def play_all(family: str) -> list:
    return [run_world(random_world(random.Random(seed), family)) for seed in range(NUM_WORLDS)]


def told(family: str, counts: dict[str, int]) -> str:
    return f"of {NUM_WORLDS} {family} worlds: " + ", ".join(f"{count} {what}" for what, count in counts.items())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_every_law_holds_and_a_broken_one_shrinks(family, rng):
    run_world(random_world(rng, family))


def test_two_thousand_continuous_worlds_and_what_happens_in_them(tell):
    reports = play_all("continuous")
    counts = {
        "preempt": sum(bool(report.preemptions) for report in reports),
        "abort a row in flight": sum(bool(report.num_aborted_in_flight) for report in reports),
        "split a prompt": sum(bool(report.num_split_prompts) for report in reports),
        "fail a step": sum(bool(report.num_failed_steps) for report in reports),
        "refuse a request": sum(bool(report.num_rejected) for report in reports),
    }
    tell(told("continuous", counts))
    assert counts["preempt"] >= 0.3 * NUM_WORLDS
    assert counts["abort a row in flight"] >= 0.2 * NUM_WORLDS
    assert counts["split a prompt"] >= 0.2 * NUM_WORLDS
    assert counts["fail a step"] >= 0.2 * NUM_WORLDS
    assert counts["refuse a request"] >= 0.1 * NUM_WORLDS


def test_two_thousand_worlds_of_contiguous_memory_in_which_nobody_is_preempted(tell):
    reports = play_all("contiguous")
    counts = {
        "run rows together": sum(any(len(o.scheduled) > 1 for o in report.outputs) for report in reports),
        "split a prompt": sum(bool(report.num_split_prompts) for report in reports),
        "abort a row in flight": sum(bool(report.num_aborted_in_flight) for report in reports),
        "preempt": sum(bool(report.preemptions) for report in reports),
    }
    tell(told("contiguous", counts))
    assert counts["preempt"] == 0  # whoever runs has all that it can need
    assert all(count >= 0.1 * NUM_WORLDS for what, count in counts.items() if what != "preempt")


@pytest.mark.parametrize(
    ("family", "reasons"),
    [
        ("static", ("size", "window", "memory", "flush")),
        ("dynamic", ("size", "preferred", "window", "memory", "budget", "flush")),
    ],
)
def test_two_thousand_request_level_worlds_and_what_happens_in_them(family, reasons, tell):
    reports = play_all(family)
    batches = sum((report.batches for report in reports), Counter())
    counts = {f"batches left by {reason}": batches[reason] for reason in reasons}
    counts |= {
        "worlds with pads": sum(bool(report.num_pads) for report in reports),
        "with dead rows": sum(bool(report.num_dead_rows) for report in reports),
        "abort a row in flight": sum(bool(report.num_aborted_in_flight) for report in reports),
        "abort a row withheld": sum(bool(report.num_aborted_withheld) for report in reports),
        "abort the last that runs while others are withheld": sum(bool(r.num_last_aborted) for r in reports),
        "fail a step": sum(bool(report.num_failed_steps) for report in reports),
        "fail a row": sum(bool(report.num_failed_rows) for report in reports),
        "refuse a request": sum(bool(report.num_rejected) for report in reports),
        "use several bins": sum(len(report.bins) > 1 for report in reports),
    }
    tell(told(family, counts))
    assert set(batches) == set(reasons)
    assert min(batches.values()) >= 0.1 * NUM_WORLDS
    assert counts["worlds with pads"] >= 0.2 * NUM_WORLDS
    assert counts["with dead rows"] >= 0.2 * NUM_WORLDS
    assert counts["abort a row in flight"] >= 0.1 * NUM_WORLDS
    assert counts["abort a row withheld"] >= 0.03 * NUM_WORLDS
    assert counts["abort the last that runs while others are withheld"] >= 0.01 * NUM_WORLDS
    assert counts["fail a row"] >= 0.1 * NUM_WORLDS
    assert counts["use several bins"] >= (0.4 * NUM_WORLDS if family == "dynamic" else 0)


def test_determinism_under_any_hash_seed():
    """L7: the same calls give the same outputs, byte for byte, in processes that hash differently."""
    digests = [digests_in_a_process(hash_seed) for hash_seed in ("0", "1", "4242")]
    assert digests == digests[:1] * 3


def digests_in_a_process(hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [sys.executable, "-m", "laws.digest"], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()
