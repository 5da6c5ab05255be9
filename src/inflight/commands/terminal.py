"""What the commands that talk in a terminal share: how they sample, and how an answer is written as it comes."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from inflight.config import EngineConfig, given_values
from inflight.core.errors import InflightError
from inflight.core.output import FinishReason
from inflight.core.request import SamplingParams, TokenId
from inflight.llm import LLM, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerConfig:
    """The answer."""

    max_tokens: int | None = field(
        default=None, metadata={"help": "tokens of an answer, at most, from 1; none: up to max_model_len"}
    )
    temperature: float = field(default=0.7, metadata={"help": "0 takes the likeliest token; up to 100, ever wilder"})
    seed: int | None = field(
        default=None, metadata={"help": "the same seed gives the same answers; none: others each time"}
    )

    def sampling(self) -> SamplingParams:
        """The sampling parameters of one answer. Raises ``Rejected`` for a value out of range."""
        return SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature)


def check_open(*names: str) -> None:
    """Raise ``OSError`` if one of the standard streams, by name, was closed by whoever started the command."""
    for name in names:
        if getattr(sys, name) is None:
            raise OSError(f"{name} is closed")


def open_llm(args: argparse.Namespace, config: AnswerConfig) -> LLM:
    """The model that the flags ask for."""
    seed = secrets.randbits(63) if config.seed is None else config.seed
    return LLM(seed=seed, **given_values(EngineConfig, args))


class Answer:
    """One answer, written to stdout as it comes; ``text`` is what has been written so far."""

    def __init__(self) -> None:
        self.text = ""
        self.finish_reason: FinishReason | None = None

    def write(self, llm: LLM, prompt: Prompt, sampling: SamplingParams) -> None:
        """Stream the answer. Raises ``Rejected``, or ``InflightError`` if the engine could not go on."""
        with closing(llm.stream(prompt, sampling)) as deltas:
            for delta in deltas:
                self.text += delta.text
                self.finish_reason = delta.finish_reason
                sys.stdout.write(delta.text)
                sys.stdout.flush()
                if delta.finish_reason is FinishReason.ERROR:
                    raise InflightError(f"the answer broke off: {delta.error}")


def chat_prompt(llm: LLM, messages: Sequence[Mapping[str, str]]) -> list[TokenId]:
    """The prompt, in tokens, that asks for the next answer of a conversation."""
    tokenizer = llm.get_tokenizer()
    return tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)
