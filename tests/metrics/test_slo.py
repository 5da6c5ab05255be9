"""Which requests keep an objective, and how the two counters tell."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from inflight.metrics.definitions import E2E, SLO_REQUESTS
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.slo import Slo


@dataclass(frozen=True)
class Seen:
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    error: object | None = None


times = st.none() | st.floats(0, 10)
bounds = st.none() | st.floats(0.001, 10)


def counts(metrics: PrometheusMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.labels["met"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == SLO_REQUESTS.name
    }


@given(ttft=times, tpot=times, e2el=times, bound=st.tuples(bounds, bounds, bounds), failed=st.booleans())
def test_every_bound_counts_and_a_failure_keeps_none(ttft, tpot, e2el, bound, failed) -> None:
    slo = Slo(ttft_s=bound[0], tpot_s=bound[1], e2el_s=bound[2])
    late = [
        value
        for value, limit in zip((ttft, tpot, e2el), bound, strict=True)
        if value is not None and limit is not None and value > limit
    ]
    seen = Seen(ttft, tpot, e2el, "lost" if failed else None)
    assert slo.met_by(seen) == (not late and not failed)


def test_every_request_that_ended_is_counted_once() -> None:
    metrics = PrometheusMetrics(slo=Slo.parse(["ttft:0.5", "tpot:0.1", "e2el:5"]))
    assert counts(metrics) == {"true": 0, "false": 0}  # from the start, or the first rate would be lost
    metrics.request_ended(Seen(0.5, 0.1, 5.0))
    metrics.request_ended(Seen(0.5, None, 0.5))  # one token
    metrics.request_ended(Seen(0.6, 0.1, 1.0))
    metrics.request_ended(Seen(0.1, 0.2, 1.0))
    metrics.request_ended(Seen(0.1, 0.1, 6.0))
    metrics.request_ended(Seen(0.1, 0.1, None, error="hung up"))
    assert counts(metrics) == {"true": 2, "false": 4}
    assert f"{E2E.name}_count 5.0" in metrics.render().decode()


def test_without_an_objective_there_is_no_counter() -> None:
    metrics = PrometheusMetrics(slo=Slo.parse([]))
    metrics.request_ended(Seen(0.1, 0.1, 0.1))
    assert SLO_REQUESTS.name not in metrics.render().decode()
    assert f"{E2E.name}_count 1.0" in metrics.render().decode()
