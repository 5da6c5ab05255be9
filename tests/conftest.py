import os
from collections.abc import Callable

import pytest
from hypothesis import settings

from inflight.hub.resolve import ModelFiles, resolve
from inflight.text.tokenizer import Tokenizer

# One thread, unless a test asks for more: with two, a busy neighbour costs a time slice at every barrier.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run: a change that breaks something is found by whoever makes it.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """All tests by two processes; a part of them in this one, where ``-s`` and breakpoints work."""
    return 2 if config.args == config.getini("testpaths") else 0


@pytest.fixture(scope="session")
def model_files() -> ModelFiles:
    """The real model, fetched at its first use; without it the tests that need it fail, saying why."""
    return resolve(None)


@pytest.fixture(scope="session")
def tokenizer(model_files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(model_files.path)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say something about the run, in its summary and in its report: what a worker prints is lost."""
    return lambda line: record_property("told", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    told = [line for report in reports for name, line in report.user_properties if name == "told"]
    if told:
        terminalreporter.section("told by the tests")
        for line in told:
            terminalreporter.line(line)
