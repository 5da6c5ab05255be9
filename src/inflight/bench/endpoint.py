"""An OpenAI-compatible endpoint: what is sent to it, what it takes, and one call as an outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import httpx
import msgspec

from inflight.bench.outcome import ErrorKind, Outcome, RequestError
from inflight.bench.sse_reader import SSEReader
from inflight.bench.streamed_answer import FailedAnswer, MalformedAnswer, StreamedAnswer
from inflight.core.errors import InflightError
from inflight.workload.item import WorkItem

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_MAX_QUOTED_CHARS = 300


class Form(NamedTuple):
    """How a request is written, since not every server takes everything."""

    token_ids: bool = True  # the prompt as token ids, not as text
    ignore_eos: bool = True  # ask for ``max_tokens`` tokens whatever they are
    usage: bool = True  # ask for the usage at the end of the stream

    def __str__(self) -> str:
        eos, usage = ("with" if one else "without" for one in (self.ignore_eos, self.usage))
        return f"prompts as {'token ids' if self.token_ids else 'text'}, {eos} ignore_eos, {usage} usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go and in which form. ``decode`` turns a prompt's token ids into text.

    A request is greedy and streamed; ``extra_body`` is laid over it.
    """

    base_url: str
    path: str
    model: str
    decode: Callable[[Sequence[int]], str]
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0  # of a whole request
    form: Form = field(default_factory=Form)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def connect(self) -> httpx.AsyncClient:
        """A client with as many connections as are wanted."""
        return connect(self.base_url, self.api_key)

    def body(self, item: WorkItem) -> bytes:
        """The body of the request for one item."""
        prompt = item.prompt_token_ids if self.form.token_ids else self.decode(item.prompt_token_ids)
        asked: dict[str, Any] = {"model": self.model, "max_tokens": item.max_tokens, "temperature": 0.0, "stream": True}
        if self.path == CHAT:
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        if self.form.ignore_eos:
            asked["ignore_eos"] = True
        if self.form.usage:
            asked["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(asked | dict(self.extra_body))

    async def call(self, http: httpx.AsyncClient, item: WorkItem, scheduled_s: float, due_s: float) -> Outcome:
        """Send one request and read its answer. Whatever fails is an error in the outcome; nothing is raised."""
        content = self.body(item)
        answer = StreamedAnswer()
        began = False
        error: RequestError | None = None
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(self.timeout_s), http.stream("POST", self.path, content=content) as response:
                began = True
                error = await _refusal(response)
                if error is None:
                    await _read(response, answer)
        except TimeoutError:
            error = RequestError(ErrorKind.TIMEOUT, f"not complete after {self.timeout_s:g} s")
        except MalformedAnswer as malformed:
            error = RequestError(ErrorKind.MALFORMED, str(malformed))
        except FailedAnswer as failed:
            error = RequestError(ErrorKind.FAILED, str(failed))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as lost:
            kind = ErrorKind.BROKEN_STREAM if began else ErrorKind.CONNECTION
            error = RequestError(kind, f"{type(lost).__name__}: {lost}")
        now_s = time.monotonic()
        if error is None and not answer.is_complete:
            error = RequestError(ErrorKind.BROKEN_STREAM, "the stream ended before the answer did")
        return Outcome(
            item_id=item.item_id,
            num_prompt_tokens=len(item.prompt_token_ids)
            if answer.num_prompt_tokens is None
            else answer.num_prompt_tokens,
            scheduled_s=scheduled_s,
            due_s=due_s,
            sent_s=sent_s,
            arrivals=answer.arrivals(),
            end_s=now_s if answer.done_s is None else answer.done_s,
            text=answer.text,
            counted=answer.num_tokens is not None,
            error=None if answer.done_s is not None else error,  # what breaks after the end does not count
        )


def connect(base_url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client without limits of its own: timeouts are those of whole requests."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    encrypted = httpx.URL(base_url).scheme == "https"  # certificates take a while to load
    return httpx.AsyncClient(base_url=base_url, headers=headers, timeout=None, limits=limits, verify=encrypted)


async def _refusal(response: httpx.Response) -> RequestError | None:
    """Why a response is no stream of events; None if it is one."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code == 200 and kind == "text/event-stream":
        return None
    text = (await response.aread()).decode(errors="replace").strip()[:_MAX_QUOTED_CHARS]
    if response.status_code != 200:
        told = [
            f" ({name}: {response.headers[name]})" for name in ("Retry-After", "Location") if name in response.headers
        ]
        return RequestError(ErrorKind.HTTP_STATUS, f"{response.status_code}{''.join(told)}: {text}")
    return RequestError(ErrorKind.MALFORMED, f"the answer is {kind or 'of no type'}, not text/event-stream: {text!r}")


async def _read(response: httpx.Response, answer: StreamedAnswer) -> None:
    reader = SSEReader()
    async for piece in response.aiter_bytes():
        at_s = time.monotonic()
        for data in reader.feed(piece):
            answer.take(data, at_s)


async def first_model(base_url: str, api_key: str | None) -> tuple[str, int | None]:
    """The name of the first model that the server has, and the longest sequence that it takes, if it says so.

    Raises ``InflightError`` if the server does not answer, or names none.
    """
    try:
        async with connect(base_url, api_key) as http, asyncio.timeout(30):
            response = await http.get("/v1/models")
        if response.status_code != 200:
            raise InflightError(f"{base_url}/v1/models answers with {response.status_code}, not 200")
        model = response.json()["data"][0]
        max_len = model.get("max_model_len")
        return str(model["id"]), max_len if isinstance(max_len, int) and max_len > 0 else None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
        raise InflightError(f"{base_url}/v1/models does not answer: {type(error).__name__}: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InflightError(f"{base_url}/v1/models names no model") from error


_FORMS = (  # what is tried, in this order; the first form that is answered is the one
    Form(),
    Form(token_ids=False),
    Form(ignore_eos=False),
    Form(token_ids=False, ignore_eos=False),
    Form(token_ids=False, ignore_eos=False, usage=False),
)


async def probed(endpoint: Endpoint, item: WorkItem) -> Endpoint:
    """The endpoint in the first form that the server takes, found with requests of one token.

    A server that counts another number of prompt tokens than it was given has not taken them as token ids. Raises
    ``InflightError`` if it cannot be reached, or takes no form.
    """
    item = replace(item, max_tokens=1)
    refused = ""
    async with endpoint.connect() as http:
        for form in _FORMS:
            if form.token_ids and endpoint.path == CHAT:
                continue
            tried = replace(endpoint, form=form)
            now_s = time.monotonic()
            outcome = await tried.call(http, item, now_s, now_s)
            if outcome.error is None:
                if not form.token_ids or abs(outcome.num_prompt_tokens - len(item.prompt_token_ids)) <= 1:
                    return tried
            elif outcome.error.kind is not ErrorKind.HTTP_STATUS:
                raise InflightError(f"{endpoint.base_url}: {outcome.error.kind}: {outcome.error.message}")
            else:
                refused = outcome.error.message
    raise InflightError(f"{endpoint.base_url}{endpoint.path} takes no form of request: {refused}")
