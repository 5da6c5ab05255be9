import os

import pytest

from inflight.native import MAX_ISA_VARIABLE


@pytest.fixture(autouse=True)
def _kernels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of the kernels, also where the rest of the suite runs without them."""
    if os.environ.get(MAX_ISA_VARIABLE) == "none":
        monkeypatch.delenv(MAX_ISA_VARIABLE)
