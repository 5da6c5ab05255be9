"""What a load goes to: any OpenAI-compatible server, a server of our own, or an engine in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from inflight.assemble import assemble
from inflight.bench.endpoint import CHAT, COMPLETIONS, Endpoint, Form, first_model, probed
from inflight.bench.in_process import run_in_process
from inflight.bench.interruptible import run_interruptible
from inflight.bench.load import run_load
from inflight.bench.outcome import Outcome
from inflight.bench.over_http import check_static_leaves, serving
from inflight.config import EngineConfig, flag, from_values
from inflight.hub.resolve import ModelFiles, resolve
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem

NO_LIMIT = 2**31 - 1  # tokens of a sequence, where a server does not say what it takes
PROBE = "The quick brown fox jumps over the lazy dog."


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Where the load goes. Without --base-url and --in-process a server is started.

    Raises ``ValueError`` for values out of range or at odds with each other.
    """

    base_url: str | None = field(
        default=None,
        metadata={
            "help": "a server that runs, such as http://127.0.0.1:8000, with the OpenAI API; --model is its name"
        },
    )
    in_process: bool = field(default=False, metadata={"help": "an engine in this process, without HTTP"})
    endpoint: str = field(
        default=COMPLETIONS, metadata={"help": "the route that is asked", "choices": (COMPLETIONS, CHAT)}
    )
    api_key: str | None = field(
        default=None, metadata={"help": "the server's key, sent as a bearer token; none: what OPENAI_API_KEY holds"}
    )
    tokenizer: str | None = field(
        default=None,
        metadata={
            "help": "with --base-url: a folder, file or hub name whose tokenizer is the server's; none: built-in"
        },
    )
    extra_body: str | None = field(
        default=None, metadata={"help": "a JSON object that is laid over the body of every request"}
    )
    request_timeout_s: float = field(default=600.0, metadata={"help": "seconds that a request may take, above 0"})

    def __post_init__(self) -> None:
        if self.base_url is not None:
            _check_url(self.base_url)
        if self.base_url is not None and self.in_process:
            raise ValueError("base_url and in_process exclude each other")
        if self.base_url is None and self.tokenizer is not None:
            raise ValueError("tokenizer is for --base-url: an engine of our own has its model's")
        if not self.request_timeout_s > 0:
            raise ValueError(f"request_timeout_s must be above 0, got {self.request_timeout_s}")
        self.extra_fields()

    def extra_fields(self) -> dict[str, Any]:
        """``extra_body`` as fields. Raises ``ValueError`` if it is no JSON object."""
        try:
            return msgspec.json.decode(self.extra_body or "{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError(f"extra_body must be a JSON object: {error}") from None


def _check_url(text: str) -> None:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"base_url is no URL: {error}, got {text!r}") from None
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > 65535:
        raise ValueError(f"base_url must be http:// or https:// with a host and a port that there is, got {text!r}")
    if url.query or url.fragment:
        raise ValueError(f"base_url must end with its path, got {text!r}")


Progress = Callable[[Outcome], None]
Run = Callable[[Sequence[WorkItem], int | None, Progress | None], list[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that a workload can be run on; ``run`` takes items, the most callers at once, and who is told."""

    backend: str  # vLLM's name for the API, where there is one
    model_id: str
    tokenizer_id: str
    tokenizer: Tokenizer
    vocab_size: int
    max_model_len: int
    notes: tuple[str, ...]
    run: Run


@contextmanager
def open_target(config: TargetConfig, engine_values: Mapping[str, Any]) -> Iterator[Target]:
    """Reach or start it; close it in the end.

    ``engine_values`` are settings of ``EngineConfig`` and its parts, by field name; with a base URL there is ``model``
    alone, the name that the server has for it. Raises ``ValueError`` for others, ``InflightError`` if the server
    cannot be reached or the engine not started, ``OSError`` for a file that cannot be read.
    """
    if config.base_url is not None:
        if others := sorted(engine_values.keys() - {"model"}):
            raise ValueError(f"{flag(others[0])} is an engine's, and with --base-url there is none in our hands")
        key = config.api_key or os.environ.get("OPENAI_API_KEY")
        if key is not None and not (key.isascii() and key.isprintable()):  # it would be quoted as no header's value
            raise ValueError("the API key must be printable ASCII, without a line end")
        base_url = config.base_url.rstrip("/").removesuffix("/v1")
        yield _over_http(config, base_url, key, engine_values.get("model"), resolve(config.tokenizer), probe=True)
        return
    engine_config = from_values(EngineConfig, engine_values)
    files = resolve(engine_config.model)
    if not config.in_process:
        check_static_leaves(engine_config)
        with serving(engine_values) as server:
            yield _over_http(config, server.url, None, None, files, probe=False)
        return
    tokenizer = Tokenizer.load(files.path)
    engine = assemble(engine_config, files, tokenizer)
    try:
        yield Target(
            backend="in-process",
            model_id=engine.info.model_name,
            tokenizer_id=files.name,
            tokenizer=tokenizer,
            vocab_size=engine.info.vocab_size,
            max_model_len=engine.info.max_model_len,
            notes=("an engine in this process", *engine.info.notes),
            run=lambda items, max_concurrency, progress: run_in_process(engine, items, max_concurrency, progress),
        )
    finally:
        engine.close()


def _over_http(
    config: TargetConfig, base_url: str, key: str | None, model: str | None, files: ModelFiles, *, probe: bool
) -> Target:
    tokenizer = Tokenizer.load(files.path)

    async def reach() -> tuple[Endpoint, int | None]:
        name, max_len = (model, None) if model is not None else await first_model(base_url, key)
        endpoint = Endpoint(
            base_url=base_url,
            path=config.endpoint,
            model=name,
            decode=tokenizer.decode,
            api_key=key,
            timeout_s=config.request_timeout_s,
            form=Form(token_ids=config.endpoint != CHAT),
            extra_body=config.extra_fields(),
        )
        if probe:
            endpoint = await probed(endpoint, WorkItem("probe", tuple(tokenizer.encode(PROBE)), 1))
        return endpoint, max_len

    endpoint, max_len = run_interruptible(reach())
    return Target(
        backend="openai-chat" if config.endpoint == CHAT else "openai",
        model_id=endpoint.model,
        tokenizer_id=files.name,
        tokenizer=tokenizer,
        vocab_size=tokenizer.vocab_size,
        max_model_len=NO_LIMIT if max_len is None else max_len,
        notes=(f"{base_url}{config.endpoint}: {endpoint.form}",),
        run=lambda items, callers, progress: run_interruptible(run_load(endpoint, items, callers, progress)),
    )
