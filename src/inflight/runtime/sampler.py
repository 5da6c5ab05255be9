"""From logits to tokens, each row by its own ``SamplingParams``.

The order is vLLM's: bias and forbidden end tokens, penalties, temperature, min_p, top_k, top_p. Reported logprobs are
the model's own, before any of it. A token depends on its row's logits, its sequence's tokens and (seed, choice,
position); on nothing else.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inflight.core.output import NewSequence, SampledToken
from inflight.core.request import TokenId
from inflight.runtime.draw import uniform
from inflight.runtime.forward import StepLogits

FIRST_CANDIDATES = 1024  # top_p looks at so many likely tokens before it sorts the whole vocabulary
SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
ROW_ERRORS = (ArithmeticError, IndexError, RuntimeError, ValueError)  # of one row; the others go on

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """One row of logits: whose it is, and the tokens before the one to draw."""

    sequence: NewSequence
    token_ids: Sequence[TokenId]  # prompt and output so far; the new token's position is their number


class UnusableLogits(Exception):
    """A row from which no token can be drawn; the others are not concerned."""


def sample(logits: StepLogits, rows: Sequence[SamplerRow]) -> list[SampledToken | UnusableLogits]:
    """Draw one token for each row of ``logits``, which is left unchanged.

    What goes wrong with one row is that row's result, never an exception. Greedy rows cost nothing here.
    """
    failed: dict[int, UnusableLogits] = {}
    drawn: dict[int, TokenId] = {}
    rest: list[int] = []  # rows whose token is not simply the likeliest
    for i, (row, best) in enumerate(zip(rows, logits.best, strict=True)):
        if best < 0:
            failed[i] = UnusableLogits("the model's logits are not finite")
        elif row.sequence.sampling.greedy and not _adjusts(row):
            drawn[i] = best
        else:
            rest.append(i)
    with torch.inference_mode():
        if rest:
            _sample_rest(logits.values, rows, rest, drawn, failed)
        results: dict[int, SampledToken | UnusableLogits] = dict(failed)
        results.update(zip(drawn, _with_logprobs(logits.values, rows, drawn), strict=True))
    return [results[i] for i in range(len(rows))]


def _sample_rest(
    logits: Tensor,
    rows: Sequence[SamplerRow],
    rest: Sequence[int],
    drawn: dict[int, TokenId],
    failed: dict[int, UnusableLogits],
) -> None:
    """Draw for the rows in ``rest``: into ``drawn`` or ``failed``."""
    adjusted = logits[rest]
    for own, i in zip(adjusted, rest, strict=True):
        try:
            _adjust(own, rows[i])
        except ROW_ERRORS as error:
            failed[i] = UnusableLogits(f"cannot adjust the logits: {error}")
    best = adjusted.max(-1)
    random: list[tuple[int, int]] = []  # place in ``rest``, row
    for place, (i, value, token_id) in enumerate(zip(rest, best.values.tolist(), best.indices.tolist(), strict=True)):
        if i in failed:
            continue
        if not math.isfinite(value):
            failed[i] = UnusableLogits("every token is forbidden")
        elif rows[i].sequence.sampling.greedy:
            drawn[i] = token_id
        else:
            random.append((place, i))
    if not random:
        return
    places, indices = zip(*random, strict=True)
    temperatures = adjusted.new_tensor([[rows[i].sequence.sampling.temperature] for i in indices])
    for i, probs in zip(indices, _probabilities(adjusted[list(places)], temperatures), strict=True):
        try:
            drawn[i] = _draw(probs, rows[i])
        except ROW_ERRORS as error:
            failed[i] = UnusableLogits(f"cannot draw a token: {error}")


def _probabilities(logits: Tensor, temperatures: Tensor) -> FloatArray:
    """The softmax of ``logits`` ``[n, vocab_size]``, which it uses up, at ``temperatures`` ``[n, 1]``."""
    # The best token is 0 and stays so however small the temperature is; one that float32 cannot hold must not be 0.
    logits.sub_(logits.amax(-1, keepdim=True)).div_(temperatures.clamp_(min=SMALLEST))
    return np.asarray(torch.softmax(logits, -1).cpu().numpy())


def _adjusts(row: SamplerRow) -> bool:
    """Whether ``_adjust`` has anything to do."""
    sampling = row.sequence.sampling
    return (
        bool(sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty)
        or sampling.repetition_penalty != 1.0
        or len(row.token_ids) - len(row.sequence.prompt_token_ids) < sampling.min_tokens
    )


def _adjust(logits: Tensor, row: SamplerRow) -> None:
    """Bias, forbidden end tokens and penalties, in place on one row ``[vocab_size]``."""
    sampling, vocab_size = row.sequence.sampling, logits.shape[0]
    num_prompt_tokens = len(row.sequence.prompt_token_ids)
    if sampling.logit_bias:
        biased, bias = zip(*sampling.logit_bias, strict=True)
        logits.index_add_(0, _ids(biased, logits), logits.new_tensor(bias))
    if len(row.token_ids) - num_prompt_tokens < sampling.min_tokens:
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(row.sequence.eos_token_ids))
        forbidden = [token_id for token_id in ends if 0 <= token_id < vocab_size]
        logits.index_fill_(0, _ids(forbidden, logits), -math.inf)
    if sampling.repetition_penalty != 1.0:
        seen = _ids(np.unique(row.token_ids), logits)
        values = logits[seen]
        factor = max(sampling.repetition_penalty, SMALLEST)  # 0 in float32 would make NaN of a forbidden token
        penalised = torch.where(values > 0, values / factor, values * factor)
        logits.index_copy_(0, seen, penalised.clamp_(max=LARGEST))
    if (sampling.presence_penalty or sampling.frequency_penalty) and len(row.token_ids) > num_prompt_tokens:
        token_ids, counts = np.unique(row.token_ids[num_prompt_tokens:], return_counts=True)
        penalty = sampling.presence_penalty + sampling.frequency_penalty * logits.new_tensor(counts)
        logits.index_add_(0, _ids(token_ids, logits), -penalty)


def _ids(token_ids: Sequence[TokenId] | NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.as_tensor(token_ids, dtype=torch.long, device=like.device)


def _draw(probs: FloatArray, row: SamplerRow) -> TokenId:
    """Invert the distribution function at the row's number, over the tokens that min_p, top_k and top_p leave."""
    sampling = row.sequence.sampling
    if sampling.min_p > 0.0:
        probs = np.where(probs >= np.float32(sampling.min_p) * probs.max(), probs, np.float32(0))
    token_ids = None
    if sampling.top_p < 1.0 or 0 < sampling.top_k < len(probs):
        token_ids = _likeliest(probs, sampling.top_k or len(probs), sampling.top_p)
        probs = probs[token_ids]
    cumulated = np.cumsum(probs, dtype=np.float64)
    request_id, choice = row.sequence.seq_id
    seed = zlib.crc32(request_id.encode()) if sampling.seed is None else sampling.seed
    point = uniform(seed, choice, len(row.token_ids)) * cumulated[-1]
    # Strictly above the point, so that a token of probability 0 is never drawn; rounding may reach the very end.
    index = min(int(np.searchsorted(cumulated, point, side="right")), int(np.flatnonzero(probs)[-1]))
    return index if token_ids is None else int(token_ids[index])


def _likeliest(probs: FloatArray, top_k: int, top_p: float) -> NDArray[np.int64]:
    """The ``top_k`` likeliest tokens, of them the fewest that hold ``top_p`` of their mass; ties by token id."""
    vocab_size = len(probs)
    num_candidates = min(top_k, vocab_size) if top_k < vocab_size else min(FIRST_CANDIDATES, vocab_size)
    mass = None if top_k < vocab_size else probs.sum(dtype=np.float64)
    while True:
        lowest = np.partition(probs, vocab_size - num_candidates)[vocab_size - num_candidates]
        candidates = np.flatnonzero(probs >= lowest)
        order = candidates[np.argsort(-probs[candidates], kind="stable")][:top_k]
        cumulated = np.cumsum(probs[order], dtype=np.float64)
        wanted = top_p * (cumulated[-1] if mass is None else mass)
        if mass is None or cumulated[-1] >= wanted or len(order) == vocab_size:
            return order[: int(np.searchsorted(cumulated, wanted, side="left")) + 1]
        num_candidates = vocab_size


def _with_logprobs(logits: Tensor, rows: Sequence[SamplerRow], drawn: dict[int, TokenId]) -> list[SampledToken]:
    """The drawn tokens in their order, with the logprobs that their rows ask for."""
    wanted = [i for i in drawn if rows[i].sequence.sampling.logprobs is not None]
    logprobs = dict(zip(wanted, torch.log_softmax(logits[wanted], -1), strict=True)) if wanted else {}
    tokens = []
    for i, token_id in drawn.items():
        if i not in logprobs:
            tokens.append(SampledToken(token_id))
            continue
        top = logprobs[i].topk(min(rows[i].sequence.sampling.logprobs or 0, logits.shape[1]))
        alternatives = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
        tokens.append(SampledToken(token_id, logprobs[i][token_id].item(), alternatives))
    return tokens
