"""Types of the compiled module; see ``csrc/bindings.cpp``."""

import enum

import numpy as np
from numpy.typing import NDArray

class WeightFormat(enum.Enum):
    INT8 = 0
    Q4 = 1

class BlockFormat(enum.Enum):
    Q4_0 = 0
    Q4_1 = 1

class Basis(enum.Enum):
    PLAIN = 0
    ROTATED = 1

class KVFormat(enum.Enum):
    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2

class Rows(enum.Enum):
    TOKENS = 0
    LOGITS = 1

COLUMNS: int
GROUP: int

class Isa:
    @property
    def name(self) -> str: ...

class Weights:
    def __init__(
        self,
        format: WeightFormat,
        groups: NDArray[np.uint8],
        num_outputs: int,
        num_inputs: int,
        bias: NDArray[np.float32] | None = None,
    ) -> None: ...
    @property
    def basis(self) -> Basis: ...

class KVCache:
    def __init__(
        self,
        format: KVFormat,
        data: NDArray[np.uint8],
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None: ...

class AttentionPlan: ...

class Buffer:
    @property
    def row_bytes(self) -> int: ...
    def rows(self, num_rows: int) -> NDArray[np.uint8]: ...

def choose_isa(limit: str | None = None) -> Isa: ...
def quantized_bytes(size: int) -> int: ...
def weight_bytes(format: WeightFormat, num_outputs: int, num_inputs: int) -> int: ...
def kv_block_bytes(format: KVFormat, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int) -> int: ...
def pack_int8(rows: NDArray[np.float32], out: NDArray[np.uint8]) -> None: ...
def pack_blocks(
    format: WeightFormat, blocks: BlockFormat, rows: NDArray[np.uint8], num_inputs: int, out: NDArray[np.uint8]
) -> None: ...

def dot_operations_per_s(isa: Isa, num_threads: int, num_rounds: int, num_tries: int) -> float: ...
def fma_operations_per_s(isa: Isa, num_threads: int, num_rounds: int, num_tries: int) -> float: ...
def read_bytes_per_s(isa: Isa, num_threads: int, num_bytes: int, num_rounds: int, num_tries: int) -> float: ...

class ForwardPass:
    def __init__(
        self, num_threads: int, isa: Isa, vocab_size: int, block_size: int, num_blocks: int
    ) -> None: ...
    def buffer(self, row_bytes: int, rows: Rows = ...) -> Buffer: ...
    def embedding(self, weights: Weights, out: Buffer) -> None: ...
    def rms_norm(
        self, name: str, x: Buffer, weight: NDArray[np.float32], eps: float, out: Buffer, basis: Basis, rows: Rows = ...
    ) -> None: ...
    def linear(
        self, name: str, x: Buffer, weights: Weights, out: Buffer, add: bool = False, rows: Rows = ...
    ) -> None: ...
    def swiglu(self, name: str, x: Buffer, weights: Weights, out: Buffer, basis: Basis, rows: Rows = ...) -> None: ...
    def angles(self, inverse_frequencies: NDArray[np.float32], out: Buffer) -> None: ...
    def rotary(self, qkv: Buffer, angles: Buffer, kv: KVCache, layer: int, num_heads: int) -> None: ...
    def attention_plan(self, kv: KVCache, num_heads: int) -> AttentionPlan: ...
    def attention(self, plan: AttentionPlan, qkv: Buffer, kv: KVCache, layer: int, out: Buffer) -> None: ...
    def attention_output(self, plan: AttentionPlan, kv: KVCache, attended: Buffer, out: Buffer) -> None: ...
    def attention_output(
        self, plan: AttentionPlan, kv: KVCache, attended: Buffer, out: Buffer, basis: Basis
    ) -> None: ...
    def argmax(self, x: Buffer, size: int, out: Buffer) -> None: ...
    def run(
        self,
        token_ids: NDArray[np.int32],
        starts: NDArray[np.int32],
        q_lens: NDArray[np.int32],
        num_logits: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> None: ...
    def take_seconds(self) -> dict[str, float]: ...
