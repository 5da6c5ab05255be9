"""Goodput over a real socket: every request that was asked of the engine is one of the two, however it ended."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason, SampledToken
from inflight.core.request import Request, SamplingParams
from inflight.engine.events import ChoiceDelta
from inflight.server.config import ServerConfig
from inflight.server.delivery import Delivery
from server.live import Live, in_loop, live, until

PATH = "/v1/completions"
AMPLE = ("ttft:1000", "tpot:1000", "e2el:1000")


async def counts(server: Live) -> tuple[float, float]:
    """Met, not met."""
    text = (await server.http.get("/metrics")).text
    seen = {
        sample.labels["met"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "inflight_slo_requests_total"
    }
    return seen["true"], seen["false"]


@in_loop
async def test_every_end_is_counted() -> None:
    async with live(slo=AMPLE) as server:
        assert await counts(server) == (0, 0)
        await server.post(PATH, {"prompt": "x"})
        await server.events(PATH, {"prompt": "x"})
        await server.post(PATH, {"prompt": ["x", "y", "z"], "n": 2})  # three requests of two choices
        assert await counts(server) == (5, 0)
        await server.post(PATH, {"prompt": "x", "max_tokens": -1})  # the engine never heard of it
        assert await counts(server) == (5, 0)
        server.client.rejects = Rejected(Reason.QUEUE_FULL, "full", retry_after_s=1.0)
        assert (await server.post(PATH, {"prompt": "x"})).status_code == 503
        assert await counts(server) == (5, 1)
        server.client.rejects = None
        server.client.lost = "the engine died"
        assert (await server.post(PATH, {"prompt": ["x", "y"]})).status_code == 503
        assert await counts(server) == (5, 3)
        server.client.lost = None
        await server.post(PATH, {"prompt": "x"})
        assert await counts(server) == (6, 3)


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_a_caller_who_hangs_up_was_not_served_well(stream: bool) -> None:
    async with live(slo=AMPLE) as server:
        server.client.decodes.clear()
        asked = asyncio.create_task(server.post(PATH, {"prompt": "x", "stream": stream}))
        await until(lambda: bool(server.client.decoding))
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        await until(lambda: server.client.num_closed_early == 1)
        assert await counts(server) == (0, 1)


@in_loop
async def test_who_is_late_is_answered_and_not_met() -> None:
    for slo, good in (("ttft:1e-9", 0), ("tpot:1e-9", 1), ("e2el:1e-9", 0)):
        async with live(slo=(slo,)) as server:
            await server.post(PATH, {"prompt": "x", "max_tokens": 8})
            assert await counts(server) == (0, 1)
            await server.post(PATH, {"prompt": "x", "max_tokens": 1})  # which has no TPOT
            assert await counts(server) == (good, 2 - good)


@in_loop
async def test_nobody_asked() -> None:
    async with live() as server:
        await server.post(PATH, {"prompt": "x"})
        assert "inflight_slo" not in (await server.http.get("/metrics")).text


def test_an_objective_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="itl:1"):
        ServerConfig(slo=("itl:1",))


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 3)), min_size=1, max_size=8), min_size=1, max_size=4)
)
def test_the_slowest_choice_is_the_tpot_and_the_first_token_of_any_the_ttft(choices) -> None:
    """Each choice is a list of (sixteenths of a second since its last delta, tokens); the last delta ends it."""
    request = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams(n=len(choices)), arrival_s=10.0)
    delivery = Delivery(request)
    stamps: list[list[float]] = [[] for _ in choices]
    deltas = []
    for index, gaps in enumerate(choices):
        now_s = 10.0
        for position, (gap, num_tokens) in enumerate(gaps):
            now_s += gap / 16
            stamps[index] += [now_s] * num_tokens
            reason = FinishReason.STOP if position == len(gaps) - 1 else None
            deltas.append((now_s, ChoiceDelta(("a", index), "", (SampledToken(7),) * num_tokens, reason)))
    for now_s, delta in sorted(deltas, key=lambda one: one[0]):
        assert not delivery.ended
        delivery.hand_on(delta, now_s)
    assert delivery.ended
    assert delivery.e2el_s == max(now_s for now_s, _ in deltas) - 10.0
    every = [stamp for of_choice in stamps for stamp in of_choice]
    assert delivery.ttft_s == (min(every) - 10.0 if every else None)
    each = [(one[-1] - one[0]) / (len(one) - 1) for one in stamps if len(one) > 1]
    assert delivery.tpot_s == (max(each) if each else None)
