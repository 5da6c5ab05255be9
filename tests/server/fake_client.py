"""An EngineClient whose tokens are a function of the request, and whose pace is the test's."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable

from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason, SampledToken
from inflight.core.request import Request, RequestId, TokenId
from inflight.engine.events import ChoiceDelta, EngineInfo, Health, State
from inflight.text.stream import TextStream
from server.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer

MAX_MODEL_LEN = 512

INFO = EngineInfo(
    model_name="fake-model",
    num_parameters=1,
    weight_format="none",
    device="none",
    num_threads=1,
    vocab_size=VOCAB_SIZE,
    max_model_len=MAX_MODEL_LEN,
    max_num_seqs=8,
    scheduler="continuous",
    max_num_batched_tokens=64,
    num_blocks=64,
    block_size=16,
    bytes_per_block=1,
)

Reply = Callable[[Request, int], list[TokenId]]


def hashed_reply(request: Request, choice: int) -> list[TokenId]:
    """Eight letters that depend on the prompt, the seed and the choice, and the end token."""
    seed = None if request.sampling.greedy else request.sampling.seed
    digest = hashlib.sha256(repr((request.prompt_token_ids, seed, choice)).encode()).digest()
    return [ord("a") + byte % 26 for byte in digest[:8]] + [END]


def fixed_reply(text: str) -> Reply:
    tokens = [*text.encode(), END]
    return lambda request, choice: tokens


class FakeClient:
    """Requests wait while ``admits`` is clear, and between two tokens while ``decodes`` is."""

    def __init__(self, reply: Reply = hashed_reply) -> None:
        self.info = INFO
        self.admits = asyncio.Event()
        self.decodes = asyncio.Event()
        self.admits.set()
        self.decodes.set()
        self.state = Health(State.READY)
        self.requests: list[Request] = []
        self.waiting: set[RequestId] = set()
        self.decoding: set[RequestId] = set()
        self.num_closed_early = 0
        self.num_finished = 0
        self.num_yielded = 0
        self.rejects: Rejected | None = None
        self.raises: Exception | None = None  # after the first token
        self.lost: str | None = None  # checked at every token
        self.num_cached_tokens: Callable[[Request, int], int] = lambda request, choice: 0
        self._reply = reply
        self._tokenizer = byte_tokenizer()
        self._aborted: set[RequestId] = set()

    async def generate(self, request: Request) -> AsyncGenerator[ChoiceDelta, None]:
        self._refuse(request)
        self.requests.append(request)
        self.waiting.add(request.request_id)
        finished = False
        try:
            await self.admits.wait()
            self.waiting.discard(request.request_id)
            self.decoding.add(request.request_id)
            async for delta in self._decode(request):
                self.num_yielded += 1
                yield delta
            finished = True
        finally:
            self.waiting.discard(request.request_id)
            self.decoding.discard(request.request_id)
            self.num_finished += finished
            self.num_closed_early += not finished

    def _refuse(self, request: Request) -> None:
        if self.state.state is not State.READY:
            raise Rejected(Reason.UNAVAILABLE, f"the engine is {self.state.state}", retry_after_s=2.5)
        if self.rejects is not None:
            raise self.rejects
        num_new = request.sampling.max_tokens or 1
        if len(request.prompt_token_ids) + num_new > MAX_MODEL_LEN:
            raise Rejected(
                Reason.CONTEXT_LENGTH,
                f"{len(request.prompt_token_ids)} prompt tokens and {num_new} new ones exceed {MAX_MODEL_LEN}",
                "max_tokens",
            )

    async def _decode(self, request: Request) -> AsyncGenerator[ChoiceDelta, None]:
        sampling = request.sampling
        texts = [TextStream(self._tokenizer, sampling) for _ in range(sampling.n)]
        replies = [self._reply(request, choice) for choice in range(sampling.n)]
        limit = min(sampling.max_tokens or MAX_MODEL_LEN, MAX_MODEL_LEN - len(request.prompt_token_ids))
        open_choices = set(range(sampling.n))
        for position in range(limit):
            for choice in sorted(open_choices):
                if self.lost is not None or request.request_id in self._aborted:
                    reason = FinishReason.ERROR if self.lost is not None else FinishReason.ABORT
                    yield ChoiceDelta((request.request_id, choice), "", (), reason, None, self.lost)
                    open_choices.discard(choice)
                    continue
                token_id = replies[choice][position % len(replies[choice])]
                stop = texts[choice].push([token_id])
                reason = None
                if stop or (token_id == END and not sampling.ignore_eos) or token_id in sampling.stop_token_ids:
                    reason = FinishReason.STOP
                elif position == limit - 1:
                    reason = FinishReason.LENGTH
                if reason is not None:
                    open_choices.discard(choice)
                text = texts[choice].take(reason is not None)
                yield ChoiceDelta(
                    (request.request_id, choice),
                    text,
                    (self._sampled(token_id, request),),
                    reason,
                    num_cached_tokens=self.num_cached_tokens(request, choice),
                )
                if self.raises is not None:
                    raise self.raises
            if not open_choices:
                return
            await asyncio.sleep(0)
            await self.decodes.wait()

    def _sampled(self, token_id: TokenId, request: Request) -> SampledToken:
        if request.sampling.logprobs is None:
            return SampledToken(token_id)
        top = [(token_id, -0.5), ((token_id + 1) % VOCAB_SIZE, float("-inf")), (0xFF, -3.0)]
        return SampledToken(token_id, -0.5, tuple(top[: request.sampling.logprobs]))

    def abort(self, request_id: RequestId) -> None:
        self._aborted.add(request_id)

    def health(self) -> Health:
        return self.state

    async def drain(self, timeout_s: float) -> None:
        self.state = Health(State.DRAINING, "draining")
        try:
            async with asyncio.timeout(timeout_s):
                while self.waiting or self.decoding:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass

    async def close(self) -> None:
        self.state = Health(State.FAILED, "closed")
        self._aborted |= self.waiting | self.decoding
        self.admits.set()
        self.decodes.set()
