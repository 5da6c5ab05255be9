"""The laws catch every mutant: a law that lets one through demands too little."""

from __future__ import annotations

import pytest

from laws.mutants import MUTANTS, caught_by_worlds


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant, tmp_path):
    assert "BrokenLaw" in (verdict := caught_by_worlds(mutant, tmp_path)) or "InvariantViolation" in verdict, verdict
