"""The laws of scheduling, over random worlds; ``worlds.py`` says what each law demands."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.mutants import MUTANTS, caught_by_worlds
from laws.worlds import random_world, run_world

TESTS = Path(__file__).parents[1]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_every_law_holds_and_a_broken_one_shrinks(rng):
    run_world(random_world(rng))


def test_two_thousand_worlds_and_what_happens_in_them(capsys):
    num_worlds = 2000
    reports = [run_world(random_world(random.Random(seed))) for seed in range(num_worlds)]
    counts = {
        "preempt": sum(bool(report.preemptions) for report in reports),
        "abort a row in flight": sum(bool(report.num_aborted_in_flight) for report in reports),
        "split a prompt": sum(bool(report.num_split_prompts) for report in reports),
        "fail a step": sum(bool(report.num_failed_steps) for report in reports),
        "refuse a request": sum(bool(report.num_rejected) for report in reports),
    }
    with capsys.disabled():
        print(f"\n  of {num_worlds} worlds: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    assert counts["preempt"] >= 0.3 * num_worlds
    assert counts["abort a row in flight"] >= 0.2 * num_worlds
    assert counts["split a prompt"] >= 0.2 * num_worlds
    assert counts["fail a step"] >= 0.2 * num_worlds
    assert counts["refuse a request"] >= 0.1 * num_worlds


def test_determinism_under_any_hash_seed():
    """L7: the same calls give the same outputs, byte for byte, in processes that hash differently."""
    assert len({digest_in_a_process(hash_seed) for hash_seed in ("0", "1", "4242")}) == 1


def digest_in_a_process(hash_seed: str) -> str:
    script = "from laws.test_laws import print_digest; print_digest()"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def print_digest() -> None:
    digest = hashlib.sha256()
    for seed in range(100):
        for output in run_world(random_world(random.Random(seed))).outputs:
            digest.update(repr(output).encode())
    print(digest.hexdigest())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant, tmp_path):
    assert "BrokenLaw" in (verdict := caught_by_worlds(mutant, tmp_path)) or "InvariantViolation" in verdict, verdict
