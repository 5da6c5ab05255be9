"""What ``LLM`` returns: ``RequestOutput`` and its parts, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.core.output import SampledToken
from inflight.core.request import Request, TokenId
from inflight.engine.events import ChoiceDelta
from inflight.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural log of a token's probability, and its place among all tokens (1 = most likely) where it is known."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of one request. ``logprobs`` has, for each token, the sampled one and the alternatives asked for."""

    index: int
    text: str
    token_ids: list[TokenId]
    cumulative_logprob: float | None
    logprobs: list[dict[TokenId, Logprob]] | None
    finish_reason: str | None  # "stop", "length", or "error" with its message in ``error``
    stop_reason: TokenId | str | None  # the stop token or stop string that ended it
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one prompt gave: ``SamplingParams.n`` choices. ``prompt`` is None where the caller gave token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[TokenId]
    outputs: list[CompletionOutput]
    finished: bool = True
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache; the first choice's


@dataclass(slots=True)
class ChoiceText:
    """One choice while it runs: its deltas, to be joined once."""

    text: list[str] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    last: ChoiceDelta | None = None

    def push(self, delta: ChoiceDelta) -> None:
        """Take in what one step gave."""
        self.text.append(delta.text)
        self.tokens.extend(delta.tokens)
        self.last = delta


def request_output(
    request: Request, prompt: str | None, choices: Sequence[ChoiceText], tokenizer: Tokenizer
) -> RequestOutput:
    """Join what the choices of a request gave, in the order of their indices."""
    wants_logprobs = request.sampling.logprobs is not None
    outputs = [
        CompletionOutput(
            index=index,
            text="".join(choice.text),
            token_ids=[token.token_id for token in choice.tokens],
            cumulative_logprob=sum(token.logprob or 0.0 for token in choice.tokens) if wants_logprobs else None,
            logprobs=[_logprobs(token, tokenizer) for token in choice.tokens] if wants_logprobs else None,
            finish_reason=choice.last.finish_reason.value if choice.last and choice.last.finish_reason else None,
            stop_reason=choice.last.stop_reason if choice.last else None,
            error=choice.last.error if choice.last else None,
        )
        for index, choice in enumerate(choices)
    ]
    first = choices[0].last
    return RequestOutput(
        request.request_id,
        prompt,
        list(request.prompt_token_ids),
        outputs,
        num_cached_tokens=first.num_cached_tokens if first else 0,
    )


def _logprobs(token: SampledToken, tokenizer: Tokenizer) -> dict[TokenId, Logprob]:
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(token.top_logprobs, start=1)}
    values = {token.token_id: token.logprob or 0.0, **dict(token.top_logprobs)}
    return {
        token_id: Logprob(value, ranks.get(token_id), tokenizer.decode([token_id], skip_special_tokens=False))
        for token_id, value in values.items()
    }
