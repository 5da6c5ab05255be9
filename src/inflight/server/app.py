"""The HTTP app: its routes and what they share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from inflight.engine.client import EngineClient
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.server import chat, completions, system, tokens
from inflight.server.config import ServerConfig
from inflight.server.edge import Edge
from inflight.server.errors import handle
from inflight.server.prompts import PromptReader
from inflight.server.services import Services
from inflight.text.tokenizer import Tokenizer


def create_app(client: EngineClient, tokenizer: Tokenizer, config: ServerConfig, metrics: PrometheusMetrics) -> FastAPI:
    """The app in front of ``client``, which the caller closes."""
    prompts = PromptReader(tokenizer, client)
    metrics.set_block_size(client.info.block_size, client.info.bytes_per_block)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        yield
        prompts.close()

    app = FastAPI(
        title="inflight", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.state.services = Services(client, prompts, config, metrics, int(time.time()))
    app.add_middleware(Edge, api_keys=config.api_key)
    app.add_exception_handler(HTTPException, handle)
    app.add_api_route("/v1/completions", completions.create_completion, methods=["POST"], response_model=None)
    app.add_api_route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"], response_model=None)
    app.add_api_route("/tokenize", tokens.tokenize, methods=["POST"], response_model=None)
    app.add_api_route("/detokenize", tokens.detokenize, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", system.list_models)
    app.add_api_route("/v1/models/{model:path}", system.retrieve_model)
    app.add_api_route("/health", system.health, response_model=None)
    app.add_api_route("/ready", system.ready, response_model=None)
    app.add_api_route("/ping", system.ping, methods=["GET", "POST"], response_model=None)
    app.add_api_route("/version", system.version)
    app.add_api_route("/metrics", system.metrics, response_model=None)
    return app
