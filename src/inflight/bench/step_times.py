"""A whole decode step of the model at each batch size, beside what its bytes and operations allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight.bench.programs import Matrix, matrices
from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput
from inflight.core.request import SamplingParams
from inflight.native import kernels
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor, open_checkpoint
from inflight.runtime.models.base import Checkpoint, ModelConfig
from inflight.runtime.runner import ModelExecutor

LANE = "bench"
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 256  # tokens that each row has stored
NUM_STEPS = 15  # of each batch size
_TENSORS = {  # whose packed matrix is 4 bits wide if all of them come in 4-bit blocks
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One decode step of ``batch_size`` rows. Bytes and operations are the step's; ``seconds`` is the executor's."""

    quantization: str
    batch_size: int
    seconds: float
    weight_bytes: int
    kv_bytes: int
    int8_operations: int
    fp32_operations: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return (self.int8_operations + self.fp32_operations) / (self.weight_bytes + self.kv_bytes)


def step_times(
    path: Path, quantization: str, num_threads: int, batch_sizes: Sequence[int] = BATCH_SIZES, context: int = CONTEXT
) -> Iterator[StepTime]:
    """Load the model and time it. Raises what loading raises."""
    checkpoint = open_checkpoint(path)
    model = checkpoint.config
    blocks_each = -(-(context + 1) // 16)
    config = RuntimeConfig(
        quantization=quantization, num_threads=num_threads, num_gpu_blocks_override=max(batch_sizes) * blocks_each
    )
    executor = load_executor(path, config)
    try:
        token_bytes = executor.capacity.bytes_per_block // executor.capacity.block_size
        weight_bytes = packed_bytes(checkpoint, quantization)
        num_weights = sum(_count(model, one) * one.num_outputs * one.num_inputs for one in matrices(model))
        attention = 4 * context * model.num_attention_heads * model.head_dim * model.num_hidden_layers
        for rows in _prefilled(executor, max(batch_sizes), context, blocks_each, batch_sizes):
            yield StepTime(
                quantization=quantization,
                batch_size=len(rows),
                seconds=_decode_s(executor, rows, context),
                weight_bytes=weight_bytes,
                kv_bytes=len(rows) * context * token_bytes,
                int8_operations=2 * len(rows) * num_weights,
                fp32_operations=len(rows) * attention,
            )
    finally:
        executor.close()


def packed_bytes(checkpoint: Checkpoint, quantization: str) -> int:
    """Bytes of weights that a step reads: every matrix once, the output matrix with them."""
    total = 0
    for matrix in matrices(checkpoint.config):
        for layer in range(_count(checkpoint.config, matrix)):
            names = [f"model.layers.{layer}.{name}.weight" for name in _TENSORS.get(matrix.name, ())]
            names = names or ["lm_head.weight" if "lm_head.weight" in checkpoint else "model.embed_tokens.weight"]
            in_blocks = quantization == "q4" and all(map(checkpoint.has_blocks, names))
            kind = kernels.WeightFormat.Q4 if in_blocks else kernels.WeightFormat.INT8
            total += kernels.weight_bytes(kind, matrix.num_outputs, matrix.num_inputs)
    return total


def _count(model: ModelConfig, matrix: Matrix) -> int:
    return 1 if matrix.name == "logits" else model.num_hidden_layers


def _prefilled(
    executor: ModelExecutor, num_sequences: int, context: int, blocks_each: int, batch_sizes: Sequence[int]
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Run the prompts of all sequences; then (request id, blocks) of the first few, for each batch size."""
    greedy = SamplingParams(temperature=0.0)
    sequences = []
    for number in range(num_sequences):
        blocks = tuple(range(number * blocks_each, (number + 1) * blocks_each))
        prompt = tuple((number + i) % executor.model_config.vocab_size for i in range(context))
        row = ScheduledSequence((str(number), 0), prompt, 0, blocks, 1)
        new = NewSequence(row.seq_id, prompt, greedy, ())
        executor.execute(SchedulerOutput(LANE, 0, (row,), new=(new,)))
        sequences.append((str(number), blocks))
    for batch_size in batch_sizes:
        yield sequences[:batch_size]


def _decode_s(executor: ModelExecutor, rows: Sequence[tuple[str, tuple[int, ...]]], context: int) -> float:
    """Seconds of the fastest of several steps in which each row decodes the token after its context."""
    scheduled = tuple(ScheduledSequence((name, 0), (1,), context, blocks, 1) for name, blocks in rows)
    step = SchedulerOutput(LANE, 0, scheduled)
    return min(executor.execute(step).duration_s for _ in range(NUM_STEPS))
