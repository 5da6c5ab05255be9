"""What the routes of one app share."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from inflight.core.errors import Reason, Rejected
from inflight.engine.client import EngineClient
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.server.config import ServerConfig
from inflight.server.prompts import PromptReader


@dataclass(frozen=True, slots=True)
class Services:
    """The engine, the tokenizer and what the server was told; ``started_at`` is Unix time in seconds."""

    client: EngineClient
    prompts: PromptReader
    config: ServerConfig
    metrics: PrometheusMetrics
    started_at: int

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names under which the model is served, the first one in answers to callers who name none."""
        return self.config.served_model_name or (self.client.info.model_name,)

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. Raises ``Rejected`` for a model that is not served."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise Rejected(
                Reason.MODEL_NOT_FOUND,
                f"the model {asked[:200]!r} does not exist here; this server has: {', '.join(self.model_names)}",
                "model",
            )
        return asked


def services(request: Request) -> Services:
    """The services of the app that handles ``request``."""
    shared: Services = request.app.state.services
    return shared
