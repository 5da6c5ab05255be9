import math

from hypothesis import given
from hypothesis import strategies as st

from inflight.bench.outcome import Arrival, Outcome
from inflight.compare.headlines import headlines
from inflight.compare.measure import alone_s, output_sha256
from inflight.compare.numbers import number, percent, seconds, times
from inflight.core.output import ScheduledSequence, SchedulerOutput
from inflight.sim.cost import LinearStepCost
from inflight.workload.item import WorkItem


@given(st.integers(1, 60), st.integers(1, 60), *(st.floats(0, 10) for _ in range(3)))
def test_alone_is_the_cost_of_its_steps(num_in: int, num_out: int, a: float, b: float, c: float) -> None:
    cost = LinearStepCost(a, b, c)
    runs = [(0, num_in), *((num_in + index, 1) for index in range(num_out - 1))]
    steps = [
        SchedulerOutput("main", index, (ScheduledSequence(("x", 0), (1,) * q_len, start, (), 1),))
        for index, (start, q_len) in enumerate(runs)
    ]
    item = WorkItem("x", (1,) * num_in, num_out)
    assert math.isclose(alone_s(item, cost), sum(map(cost.duration_s, steps)), rel_tol=1e-9, abs_tol=1e-9)


def _outcome(item_id: str, *token_ids: int) -> Outcome:
    arrivals = (Arrival(1.0, len(token_ids)),)
    return Outcome(
        item_id=item_id,
        num_prompt_tokens=1,
        scheduled_s=0,
        due_s=0,
        sent_s=0,
        end_s=1,
        arrivals=arrivals,
        token_ids=token_ids,
    )


def test_the_hash_is_of_the_tokens_whatever_the_order() -> None:
    one, two = _outcome("1", 3, 4), _outcome("2", 5)
    assert output_sha256([one, two]) == output_sha256([two, one])
    assert output_sha256([one, two]) != output_sha256([one, _outcome("2", 6)])
    assert output_sha256([one, two]) != output_sha256([one])


def test_different_outputs_are_said_first() -> None:
    def figures(name: str, sha: str) -> dict[str, object]:
        latency = {metric: {"p50": 1.0, "p99": 2.0} for metric in ("ttft_s", "e2e_s", "itl_s")}
        return {
            "family": name,
            "output_sha256": sha,
            "duration_s": 1.0,
            "ledger": {"padding": 0.25, "straggler": 0.25},
            "latency": {"short": latency, "long": latency, "all": latency},
        }

    families = {"static": figures("static", "aaa"), "dynamic": figures("dynamic", "bbb")}
    first, *others = headlines(families, same_output=False)
    assert first.startswith("WARNING")
    assert "static aaa, dynamic bbb" in first
    assert not any("bit for bit" in sentence for sentence in others)
    assert not any("WARNING" in sentence for sentence in headlines(families, same_output=True))
    assert "50.0 % in static batching" in " ".join(others)


def test_numbers_for_people() -> None:
    assert [seconds(value) for value in (None, 0.0, 12.34, 0.01234, 1.234e-5)] == [
        *("–", "0 s", "12.3 s", "12.3 ms", "12.3 µs")
    ]
    assert [percent(value) for value in (0.0, 0.0001, 0.12345, 1.0)] == ["0.0 %", "< 0.1 %", "12.3 %", "100.0 %"]
    assert [number(value) for value in (7, 1234.5, 99.96, 1.0, 0.1234)] == ["7", "1,234", "100", "1.00", "0.123"]
    assert times(3.2, 0.2) == "16.0 times"
    assert times(1.01, 1.0) is None
    assert times(1.0, 0.0) is None
