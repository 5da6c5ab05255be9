"""One HTTP call as requests to the engine, and their deltas as one stream."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason
from inflight.core.request import Request, SamplingParams, TokenId
from inflight.engine.client import EngineClient
from inflight.engine.events import ChoiceDelta, State
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.server.delivery import Delivery
from inflight.server.errors import RETRY_AFTER_S, RequestLost
from inflight.server.services import Services

IndexedDelta = tuple[int, ChoiceDelta]  # the choice's index in the answer: all choices of the first prompt come first


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call: its id, and a request for each of its prompts, all of the same number of choices."""

    call_id: str
    requests: tuple[Request, ...]

    @property
    def num_choices(self) -> int:
        """Choices in the answer."""
        return sum(request.sampling.n for request in self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens, each prompt counted once whatever ``n``."""
        return sum(len(request.prompt_token_ids) for request in self.requests)


def new_seed() -> int:
    """A seed for a request without one: from here on, nothing about the request is left to chance."""
    return secrets.randbits(63)


def new_call(
    shared: Services,
    prefix: str,
    prompts: Sequence[Sequence[TokenId]],
    samplings: Sequence[SamplingParams],
    priority: int,
    arrival_s: float,
    cache_salt: str,
) -> Call:
    """Build the requests of a call, one for each prompt. Raises ``Rejected``."""
    call_id = f"{prefix}-{secrets.token_hex(16)}"
    requests = []
    for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        shared.prompts.check_length(len(prompt))
        request = Request(
            request_id=call_id if len(prompts) == 1 else f"{call_id}-{index}",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            eos_token_ids=shared.prompts.tokenizer.eos_token_ids,
            priority=priority,
            arrival_s=arrival_s,
            cache_salt=cache_salt,
        )
        request.check_token_ids(shared.client.info.vocab_size)
        requests.append(request)
    call = Call(call_id, tuple(requests))
    limit = shared.client.info.max_num_waiting_seqs
    if limit is not None and call.num_choices > limit:  # no later try would find more room
        raise Rejected(
            Reason.INVALID,
            f"{call.num_choices} sequences were asked for in one call, and no more than {limit} may wait",
            "prompt" if len(requests) > 1 else "n",
        )
    return call


async def run(client: EngineClient, call: Call, metrics: PrometheusMetrics) -> AsyncGenerator[IndexedDelta, None]:
    """The deltas of all choices, until each has finished; closing it aborts what still runs.

    A reader that takes its time holds up nobody but itself. Raises ``Rejected`` before the first delta of a request,
    ``RequestLost`` if a choice ends without a result.
    """
    indices = {request.request_id: index for index, request in enumerate(call.requests)}
    open_requests = {request.request_id: Delivery(request) for request in call.requests}
    streams = client.generate(call.requests[0]) if len(call.requests) == 1 else _merge(client, call.requests)
    try:
        async with aclosing(streams) as deltas:
            async for delta in deltas:
                if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    # A row that failed alone would fail again; where the engine is restarted, waiting helps.
                    retry_after_s = RETRY_AFTER_S if client.health().state is State.RESTARTING else None
                    raise RequestLost(delta.error or "the request was ended before it had finished", retry_after_s)
                request_id, choice = delta.seq_id
                delivery = open_requests[request_id]
                yield indices[request_id] * delivery.request.sampling.n + choice, delta
                # Here the reader has passed the delta on, to the socket if it streams.
                _observe(metrics, delivery, delta)
                if delivery.ended:
                    metrics.request_ended(open_requests.pop(request_id))
    except BaseException as error:  # a caller who hangs up, too
        for delivery in open_requests.values():
            delivery.error = error
            metrics.request_ended(delivery)
        raise


def _observe(metrics: PrometheusMetrics, delivery: Delivery, delta: ChoiceDelta) -> None:
    request, is_first = delivery.request, delivery.ttft_s is None
    now_s = time.monotonic()
    delivery.hand_on(delta, now_s)
    if is_first and delta.tokens:
        metrics.first_token_sent(request.request_id, request.arrival_s, now_s)


async def _merge(client: EngineClient, requests: Sequence[Request]) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of several requests as they come, none of them read ahead by more than one."""
    queue: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(maxsize=1)

    async def pump(request: Request) -> None:
        try:
            async with aclosing(client.generate(request)) as deltas:
                async for delta in deltas:
                    await queue.put(delta)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.create_task(pump(request)) for request in requests]
    try:
        num_running = len(pumps)
        while num_running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
