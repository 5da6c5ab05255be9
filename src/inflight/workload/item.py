"""One request of a workload: a prompt as token ids, the number of tokens it shall get, and when it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight.core.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request; it ends after exactly ``max_tokens`` tokens. ``arrival_s`` counts from the start of the run."""

    item_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    arrival_s: float = 0.0

    def request(self, arrival_s: float) -> Request:
        """What an engine is given: greedy, whatever the tokens are. ``arrival_s`` is on the engine's clock."""
        return Request(
            request_id=self.item_id,
            prompt_token_ids=self.prompt_token_ids,
            sampling=SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=True),
            arrival_s=arrival_s,
        )


def check_fits(workload: Sequence[WorkItem], vocab_size: int, max_model_len: int) -> None:
    """Raise ``ValueError``, naming the request, for one that the engine would refuse or cut short."""
    for item in workload:
        num_tokens = len(item.prompt_token_ids) + item.max_tokens
        if num_tokens > max_model_len:
            raise ValueError(
                f"request {item.item_id}: {len(item.prompt_token_ids)} prompt tokens and {item.max_tokens} new ones "
                f"are {num_tokens}, and max_model_len is {max_model_len}"
            )
        if max(item.prompt_token_ids) >= vocab_size:
            raise ValueError(
                f"request {item.item_id}: token id {max(item.prompt_token_ids)}; the vocabulary is [0, {vocab_size})"
            )
