"""The routes about the server itself: models, health, version, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from inflight import __version__
from inflight.engine.events import State
from inflight.server.errors import RETRY_AFTER_S, ErrorAnswer, retry_after
from inflight.server.services import Services, services


async def list_models(request: Request) -> dict[str, Any]:
    """The model under each of its names."""
    shared = services(request)
    return {"object": "list", "data": [_model(shared, name) for name in shared.model_names]}


async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    """One of them."""
    shared = services(request)
    return _model(shared, shared.model_name(model))


async def health(request: Request) -> Response:
    """200 while the engine runs, also while it drains; else 503 and the reason."""
    return _state(services(request), {State.READY, State.DRAINING})


async def ready(request: Request) -> Response:
    """200 while new requests are taken; else 503 and the reason."""
    return _state(services(request), {State.READY})


async def ping(request: Request) -> Response:
    """``health``, under the name that SageMaker asks for."""
    return await health(request)


async def version() -> dict[str, str]:
    """The version of inflight."""
    return {"version": __version__}


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(services(request).metrics.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _model(shared: Services, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": shared.started_at,
        "owned_by": "inflight",
        "max_model_len": shared.client.info.max_model_len,
    }


def _state(shared: Services, good: set[State]) -> Response:
    now = shared.client.health()
    if now.state in good:
        return Response(f'{{"status":"{now.state}"}}', media_type="application/json")
    message = f"the engine is {now.state}" + (f": {now.reason}" if now.reason else "")
    headers = retry_after(None if now.state is State.FAILED else RETRY_AFTER_S)
    return ErrorAnswer(503, message, "engine_unavailable", None, headers).response()
