import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

import inflight
from inflight.engine.events import Health, State
from inflight.metrics.delta import FirstToken, MetricsDelta
from server.live import in_loop, live, until


@in_loop
async def test_models() -> None:
    async with live(served_model_name=("first", "org/second")) as server:
        models = (await server.http.get("/v1/models")).json()
        assert models["object"] == "list"
        assert [model["id"] for model in models["data"]] == ["first", "org/second"]
        assert models["data"][0]["max_model_len"] == 512
        assert [model.id async for model in server.openai.models.list()] == ["first", "org/second"]
        assert (await server.openai.models.retrieve("org/second")).owned_by == "inflight"
        assert (await server.http.get("/v1/models/third")).json()["error"]["code"] == "model_not_found"
        for name, answered in ((None, "first"), ("org/second", "org/second")):
            answer = await server.post("/v1/completions", {"prompt": "x", "model": name})
            assert answer.json()["model"] == answered
        assert (await server.post("/v1/completions", {"prompt": "x", "model": "fake-model"})).status_code == 404


@pytest.mark.parametrize(
    ("state", "healthy", "ready"),
    [
        (State.STARTING, False, False),
        (State.READY, True, True),
        (State.DRAINING, True, False),
        (State.RESTARTING, False, False),
        (State.FAILED, False, False),
    ],
)
@in_loop
async def test_health_and_readiness(state: State, healthy: bool, ready: bool) -> None:
    async with live() as server:
        server.client.state = Health(state, "because")
        for path, good in (("/health", healthy), ("/ping", healthy), ("/ready", ready)):
            response = await server.http.get(path)
            assert response.status_code == (200 if good else 503)
            if good:
                assert response.json() == {"status": state.value}
            else:
                assert "because" in response.json()["error"]["message"]
                assert ("retry-after" in response.headers) == (state is not State.FAILED)


@in_loop
async def test_version_and_ping() -> None:
    async with live() as server:
        assert (await server.http.get("/version")).json() == {"version": inflight.__version__}
        assert (await server.http.post("/ping")).status_code == 200


@in_loop
async def test_metrics_say_when_callers_got_their_first_token_and_their_last() -> None:
    async with live() as server:

        async def samples() -> dict[str, float]:
            exposition = await server.http.get("/metrics")
            assert exposition.headers["content-type"].startswith("text/plain; version=0.0.4")
            return {
                sample.name: sample.value
                for family in text_string_to_metric_families(exposition.text)
                for sample in family.samples
                if not sample.labels
            }

        server.client.admits.clear()
        stream = asyncio.create_task(server.events("/v1/completions", {"prompt": "x"}))
        await until(lambda: bool(server.client.waiting))
        request = server.client.requests[0]
        # What the engine's collector would say of this request: its first token came 0.25 s before it is sent.
        queued_s = time.monotonic() - request.arrival_s - 0.25
        first = FirstToken(request.request_id, queued_s, 0.0, request.arrival_s + queued_s)
        server.metrics.apply(MetricsDelta(first_tokens=(first,)))
        server.client.admits.set()
        await stream
        await server.post("/v1/completions", {"prompt": ["x", "y"], "n": 2})
        await server.post("/v1/completions", {"prompt": "x", "n": 200})
        seen = await samples()
        assert seen["inflight_time_to_first_token_seconds_count"] == 3
        assert seen["inflight_e2e_request_latency_seconds_count"] == 3
        assert seen["inflight_emit_time_seconds_count"] == 1
        assert seen["inflight_emit_time_seconds_sum"] >= 0.25


@in_loop
async def test_tokenize_and_detokenize() -> None:
    async with live() as server:
        answer = (await server.post("/tokenize", {"prompt": "hé<|end|>"})).json()
        assert answer == {"count": 4, "max_model_len": 512, "tokens": [104, 195, 169, 256]}
        back = (await server.post("/detokenize", {"tokens": answer["tokens"]})).json()
        assert back == {"prompt": "hé<|end|>"}
        chat = {"messages": [{"role": "user", "content": "hi"}], "model": "fake-model"}
        assert bytes((await server.post("/tokenize", chat)).json()["tokens"]) == b"user: hi\nassistant: "
        long = (await server.post("/tokenize", {"prompt": "x" * 90_000})).json()
        assert long["count"] == 90_000
        assert (await server.post("/detokenize", {"tokens": long["tokens"]})).json()["prompt"] == "x" * 90_000
        for body in ({"tokens": [257]}, {"tokens": [-1]}, {"tokens": ["a"]}, {}, {"tokens": [1], "model": "no"}):
            response = await server.post("/detokenize", body)
            assert response.status_code in (400, 404)
        assert (await server.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}
