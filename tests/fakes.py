"""The PaperExecutor: a language model small enough to be checked by hand, over a KV memory made of lists.

Its next token is a hash of the tokens read back *through the block table*, so that a wrong table, an early free, a
stale prefix or a swapped block becomes a wrong token. It imports nothing but the contracts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inflight.core.errors import StepFailed
from inflight.core.output import BlockCopy, FailedRow, SampledRow, SampledToken, SchedulerOutput, StepResult, Stop
from inflight.core.request import Request, SeqId
from inflight.engine.executor import KVCapacity

NEVER_WRITTEN = -1
GARBAGE = -2


def next_token(tokens: Sequence[int], choice: int, vocab_size: int) -> int:
    """The whole model."""
    return zlib.crc32(repr((tuple(tokens), choice)).encode()) % vocab_size


@dataclass(frozen=True)
class Failure:
    """How one step goes wrong: as a whole, after so many copies, or after so many rows; or only the row at ``row``."""

    after_copies: int | None = None
    after_rows: int | None = None
    row: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.row is None


@dataclass(frozen=True)
class Cost:
    """How long a step takes on paper."""

    token_s: float = 0.0
    copy_s: float = 0.0


class PaperExecutor:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int = 2,
        failure: Callable[[SchedulerOutput], Failure | None] = lambda output: None,
        num_host_blocks: int = 0,
        cost: Callable[[SchedulerOutput], Cost] = lambda output: Cost(),
    ) -> None:
        self.capacity = KVCapacity(num_blocks, block_size, 8 * block_size, num_host_blocks)
        self.known: set[SeqId] = set()
        self._memory = [[NEVER_WRITTEN] * block_size for _ in range(num_blocks)]
        self._host = [[NEVER_WRITTEN] * block_size for _ in range(num_host_blocks)]
        self._vocab_size = vocab_size
        self._failure = failure
        self._cost = cost
        self._num_written = 0  # tokens, in this step

    def execute(self, output: SchedulerOutput) -> StepResult:
        failure, cost = self._failure(output), self._cost(output)
        self.known -= set(output.finished)
        self.known |= {new.seq_id for new in output.new}
        if failure is not None and failure.is_whole:
            self._tear(output, failure)
        self._copy(output.copies)
        self._write_scratch(output)
        for row in output.scheduled:
            if row.seq_id not in self.known:
                raise AssertionError(f"{row.seq_id} was never introduced")
            self._write(row.block_table, row.start, row.token_ids)
        sampled, failed = [], []
        for index, row in enumerate(output.scheduled):
            if failure is not None and failure.row == index and row.num_logits:
                failed.append(FailedRow(row.seq_id, "a blot on this row"))
            elif row.num_logits:
                tokens = self._read(row.block_table, row.start + len(row.token_ids))
                token = next_token(tokens, row.seq_id[1], self._vocab_size)
                sampled.append(SampledRow(row.seq_id, (SampledToken(token),)))
        copies_s = cost.copy_s * len(output.copies)
        return StepResult(
            output.step,
            tuple(sampled),
            duration_s=cost.token_s * output.num_computed_tokens + copies_s,
            failed=tuple(failed),
            num_computed_tokens=self._num_written,
            copies_s=copies_s,
        )

    def spoil(self, blocks: Iterable[int], host_blocks: Iterable[int]) -> None:
        """Leave rubbish in blocks that nobody may count on."""
        for block in blocks:
            self._memory[block] = [GARBAGE] * self.capacity.block_size
        for host_block in host_blocks:
            self._host[host_block] = [GARBAGE] * self.capacity.block_size

    def close(self) -> None:
        self.known.clear()

    def _tear(self, output: SchedulerOutput, failure: Failure) -> None:
        """Do a part of a step, and leave rubbish where it should have written."""
        if failure.after_copies is None:
            self._write_scratch(output)
            for row in output.scheduled[: failure.after_rows]:
                self._write(row.block_table, row.start, [GARBAGE] * len(row.token_ids))
        else:
            self._copy(output.copies[: failure.after_copies])
        self.spoil(
            [copy.block for copy in output.copies if not copy.to_host],
            [copy.host_block for copy in output.copies if copy.to_host],
        )
        raise StepFailed("the paper tore")

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            if copy.to_host:
                self._host[copy.host_block] = list(self._memory[copy.block])
        for copy in copies:
            if not copy.to_host:
                self._memory[copy.block] = list(self._host[copy.host_block])

    def _write_scratch(self, output: SchedulerOutput) -> None:
        """Pads and dead rows leave rubbish behind them."""
        self._num_written = 0
        if output.padded_to is not None:
            for row in output.scheduled:
                self._write(output.scratch_table, 0, [GARBAGE] * (output.padded_to - len(row.token_ids)))
            for dead in output.dead:
                self._write(output.scratch_table, dead.start, [GARBAGE] * output.padded_to)

    def _write(self, table: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        size = self.capacity.block_size
        self._num_written += len(tokens)
        for position, token in enumerate(tokens, start):
            self._memory[table[position // size]][position % size] = token

    def _read(self, table: Sequence[int], num_tokens: int) -> list[int]:
        size = self.capacity.block_size
        return [self._memory[table[position // size]][position % size] for position in range(num_tokens)]


def unbatched(request: Request, choice: int, max_model_len: int, vocab_size: int = 2) -> list[int]:
    """The tokens of one choice, made one at a time with nobody else around: the reference of every scheduler."""
    sampling = request.sampling
    tokens = list(request.prompt_token_ids)
    limit = max_model_len if sampling.max_tokens is None else len(tokens) + sampling.max_tokens
    output: list[int] = []
    while len(tokens) < limit:
        token = next_token(tokens, choice, vocab_size)
        tokens.append(token)
        output.append(token)
        if len(output) >= sampling.min_tokens:
            if not sampling.ignore_eos and token in request.eos_token_ids:
                break
            if token in sampling.stop_token_ids or any(ends_with(output, stop) for stop in sampling.stop):
                break
    return output


def ends_with(output: Sequence[int], stop: str) -> bool:
    """On paper the text of a token is its digit."""
    return "".join(map(str, output)).endswith(stop)


class PaperText:
    """The text of tokens on paper: each token is its digits. Fulfils the engine's ``Text``."""

    def __init__(self, sampling) -> None:
        self._sampling = sampling
        self._output: list[int] = []
        self._released = 0

    def push(self, token_ids):
        for count, token_id in enumerate(token_ids, 1):
            self._output.append(token_id)
            for stop in self._sampling.stop:
                if len(self._output) >= self._sampling.min_tokens and ends_with(self._output, stop):
                    return Stop(count, stop)
        return None

    def take(self, final: bool) -> str:
        new = self._output[self._released :]
        self._released = len(self._output)
        return "".join(map(str, new))
