"""The laws catch every mutant: a law that lets one through demands too little."""

from __future__ import annotations

import re

import pytest

from laws.mutants import MUTANTS, caught_by_worlds


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant, tmp_path):
    verdict = caught_by_worlds(mutant, tmp_path)
    assert re.match(r"caught in world \d+: (AssertionError: [\w-]+: |InvariantViolation: )", verdict), verdict
    assert mutant.caught_by in verdict
