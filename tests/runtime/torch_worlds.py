"""Models, steps and a plain driver that the tests of the runtime share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from inflight.core.errors import InvariantViolation
from inflight.core.output import NewSequence, SampledToken, ScheduledSequence, SchedulerOutput, StepResult
from inflight.core.request import SamplingParams, SeqId
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor
from inflight.runtime.runner import ModelExecutor

VOCAB_SIZE = 97


def make_llama(folder: Path, seed: int = 0, **overrides: Any) -> transformers.LlamaForCausalLM:
    """A small random llama, saved to ``folder``."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(settings | overrides))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return model


def load(path: Path, **settings: Any) -> ModelExecutor:
    settings = {"num_threads": 1, "num_gpu_blocks_override": 256, "block_size": 4} | settings
    return load_executor(path, RuntimeConfig(**settings))


def seq(name: str = "r", choice: int = 0) -> SeqId:
    return (name, choice)


class Driver:
    """Runs sequences on an executor in any chunks, with block tables of its own: no scheduler."""

    def __init__(self, executor: ModelExecutor) -> None:
        self.executor = executor
        self.step = 0
        self.free = list(range(executor.capacity.num_blocks))
        self.tables: dict[SeqId, list[int]] = {}
        self.tokens: dict[SeqId, list[int]] = {}
        self.computed: dict[SeqId, int] = {}
        self.sampled: dict[SeqId, list[SampledToken]] = {}
        self._new: list[NewSequence] = []

    def add(self, seq_id: SeqId, prompt: Sequence[int], sampling: SamplingParams, eos: tuple[int, ...] = ()) -> None:
        self._new.append(NewSequence(seq_id, tuple(prompt), sampling, eos))
        self.tables[seq_id], self.tokens[seq_id] = [], list(prompt)
        self.computed[seq_id], self.sampled[seq_id] = 0, []

    def preempt(self, seq_id: SeqId) -> None:
        self.free += self.tables[seq_id]
        self.tables[seq_id], self.computed[seq_id] = [], 0

    def run(self, chunks: Mapping[SeqId, int]) -> StepResult:
        """One step: so many tokens of each sequence, at most those that are known."""
        rows = []
        for seq_id, wanted in chunks.items():
            start, known = self.computed[seq_id], self.tokens[seq_id]
            token_ids = tuple(known[start : start + wanted])
            end, table = start + len(token_ids), self.tables[seq_id]
            while len(table) * self.executor.capacity.block_size < end:
                table.append(self.free.pop())
            rows.append(ScheduledSequence(seq_id, token_ids, start, tuple(table), int(end == len(known))))
            self.computed[seq_id] = end
        new, self._new = tuple(self._new), []
        result = self.executor.execute(SchedulerOutput("main", self.step, tuple(rows), new=new))
        self.step += 1
        for row in result.sampled:
            self.sampled[row.seq_id] += row.tokens
            self.tokens[row.seq_id] += [token.token_id for token in row.tokens]
        return result

    def finish(self, num_new_tokens: int, chunk: int = 10_000) -> dict[SeqId, list[int]]:
        """Run every sequence until it has so many new tokens."""
        while chunks := {s: chunk for s in self.tokens if len(self.sampled[s]) < num_new_tokens}:
            self.run(chunks)
        return {s: [token.token_id for token in tokens] for s, tokens in self.sampled.items()}

    def end(self) -> None:
        self.executor.execute(SchedulerOutput("main", self.step, (), finished=tuple(self.tokens)))


def greedy(**settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=None, **settings)


def knows(executor: ModelExecutor, seq_id: SeqId) -> bool:
    """Whether the sequence's state is held: one that is not cannot be scheduled."""
    try:
        executor.execute(SchedulerOutput("main", 0, (ScheduledSequence(seq_id, (2,), 0, (0,), 0),)))
    except InvariantViolation:
        return False
    return True
