"""The HTTP server's options."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.metrics.slo import SLO_HELP, Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server. Raises ``ValueError`` for a value out of range."""

    host: str = field(default="127.0.0.1", metadata={"help": "the address to listen on; 0.0.0.0 for all"})
    port: int = field(default=8000, metadata={"help": "the port to listen on, 0 to 65535; 0 picks a free one"})
    api_key: tuple[str, ...] = field(
        default=(), metadata={"help": "keys of which callers must send one as a bearer token; absent: no key is needed"}
    )
    served_model_name: tuple[str, ...] = field(
        default=(),
        metadata={"help": "the names that callers may use for the model, the first in answers; absent: its own name"},
    )
    drain_timeout: float = field(
        default=30.0, metadata={"help": "seconds that running requests have to finish at shutdown, from 0"}
    )
    max_body_bytes: int = field(
        default=8 * 1024 * 1024, metadata={"help": "the largest request body in bytes, from 1; a larger one is a 413"}
    )
    keep_alive_s: float = field(
        default=15.0, metadata={"help": "seconds of silence after which a stream gets a comment, above 0"}
    )
    request_timeout_s: float = field(
        default=30.0,
        metadata={"help": "seconds that a caller may take to send a request's head, and as many for its body, above 0"},
    )
    log_prompts: bool = field(default=False, metadata={"help": "put the prompts' text into the log's request records"})
    log_interval_s: float = field(
        default=10.0, metadata={"help": "seconds between two lines of figures in the log, above 0"}
    )

    slo: tuple[str, ...] = field(
        default=(),
        metadata={"help": f"{SLO_HELP}; /metrics then counts the requests that did, and those that did not"},
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be in [0, 65535], got {self.port}")
        if self.max_body_bytes < 1:
            raise ValueError(f"max_body_bytes must be at least 1, got {self.max_body_bytes}")
        if not self.drain_timeout >= 0:
            raise ValueError(f"drain_timeout must be at least 0 s, got {self.drain_timeout}")
        for name in ("keep_alive_s", "request_timeout_s", "log_interval_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 s, got {getattr(self, name)}")
        if any(not name for name in (*self.api_key, *self.served_model_name)):
            raise ValueError("api_key and served_model_name must not hold an empty string")
        Slo.parse(self.slo)
