"""Error of the runtime's matrix products on matrices that were never 4 bits wide, next to float64.

python bench/quality_matrices.py

The perplexity of a model says nothing about weights that its format happens to hold exactly. Here they are random:
normal; Student's t with 3 degrees of freedom, whose tails are heavy; and with channels of the input 20 times as large
as the others, which language models have (Dettmers et al., arXiv:2208.07339, find such in 0.1 % of the channels).
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from inflight.native import NativeUnavailable, isa, kernels
from inflight.runtime.linear.base import Linear
from inflight.runtime.linear.dense import DenseLinear

SHAPES = ((576, 1536), (1536, 576), (2048, 2048))  # in_features, out_features
OUTLIER = 20.0


class NativeInt8:
    """See ``Linear``: the native product, 8 bits on both sides.

    The kernels quantize a row while they normalize it. Its scale follows the row's size, so that nothing changes but
    the size itself, which is multiplied back in.
    """

    def __init__(self, weight: Tensor) -> None:
        num_outputs, num_inputs = weight.shape
        packed = np.zeros(kernels.weight_bytes(kernels.WeightFormat.INT8, num_outputs, num_inputs), dtype=np.uint8)
        kernels.pack_int8(weight.numpy(), packed)
        weights = kernels.Weights(kernels.WeightFormat.INT8, packed, num_outputs, num_inputs)
        self._program = kernels.ForwardPass(1, isa(), vocab_size=1, block_size=16, num_blocks=1)
        self._x = self._program.buffer(num_inputs * 4)
        self._out = self._program.buffer(num_outputs * 4)
        quantized = self._program.buffer(kernels.quantized_bytes(num_inputs))
        self._program.rms_norm("norm", self._x, np.ones(num_inputs, dtype=np.float32), 0.0, quantized, weights.basis)
        self._program.linear("product", quantized, weights, self._out)

    def __call__(self, x: Tensor) -> Tensor:
        num_rows = len(x)
        self._x.rows(num_rows).view(np.float32)[:] = x.numpy()
        # A step of so many sequences of one token each.
        zeros, ones = np.zeros(num_rows, dtype=np.int32), np.ones(num_rows, dtype=np.int32)
        self._program.run(zeros, zeros, ones, zeros, zeros)
        size = x.square().mean(-1, keepdim=True).sqrt()
        return torch.from_numpy(self._out.rows(num_rows).view(np.float32).copy()) * size


PRODUCTS: dict[str, tuple[torch.dtype, Callable[[Tensor], Linear]]] = {
    "float32": (torch.float32, DenseLinear),
    "bfloat16": (torch.bfloat16, lambda weight: DenseLinear(weight.bfloat16())),
    "int8": (torch.float32, NativeInt8),
}


def normal(rng: np.random.Generator, rows: int, columns: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal((rows, columns)))


def heavy_tailed(rng: np.random.Generator, rows: int, columns: int) -> Tensor:
    return torch.from_numpy(rng.standard_t(3, (rows, columns)))


def with_outliers(rng: np.random.Generator, rows: int, columns: int, share: float) -> Tensor:
    x = normal(rng, rows, columns)
    x[:, rng.choice(columns, max(1, round(share * columns)), replace=False)] *= OUTLIER
    return x


CASES: dict[str, Callable[[np.random.Generator, int, int, int], tuple[Tensor, Tensor]]] = {
    "normal": lambda rng, m, n, k: (normal(rng, m, k), normal(rng, n, k)),
    "heavy-tailed weights": lambda rng, m, n, k: (normal(rng, m, k), heavy_tailed(rng, n, k)),
    "heavy-tailed input": lambda rng, m, n, k: (heavy_tailed(rng, m, k), normal(rng, n, k)),
    "outliers in 0.1 % of the input": lambda rng, m, n, k: (with_outliers(rng, m, k, 0.001), normal(rng, n, k)),
    "outliers in 1 % of the input": lambda rng, m, n, k: (with_outliers(rng, m, k, 0.01), normal(rng, n, k)),
    "outliers in 1 % of the weights": lambda rng, m, n, k: (normal(rng, m, k), with_outliers(rng, n, k, 0.01)),
}


def errors(product: Callable[[Tensor], Linear], dtype: torch.dtype, x: Tensor, weight: Tensor) -> tuple[float, float]:
    """Error of ``x @ weight.T``: root mean square and largest, each relative to the root mean square of the result.

    Both operands are rounded to float32 first, so that every format starts from the same numbers.
    """
    x, weight = x.float(), weight.float()
    exact = x.double() @ weight.double().T
    error = product(weight)(x.to(dtype)).double() - exact
    scale = exact.square().mean().sqrt()
    return (error.square().mean().sqrt() / scale).item(), (error.abs().max() / scale).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        isa_name = isa().name
    except NativeUnavailable as error:
        parser.error(str(error))
    print(
        f"error of {args.rows} rows, root mean square (largest), in % of the result's root mean square; "
        f"{isa_name}, torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}, "
        f"seed {args.seed}\n"
    )
    print(f"{'in x out':11}  {'matrices':31}" + "".join(f"{name:>20}" for name in PRODUCTS))
    for in_features, out_features in SHAPES:
        for case, make in CASES.items():
            x, weight = make(np.random.default_rng(args.seed), args.rows, out_features, in_features)
            cells = []
            for dtype, product in PRODUCTS.values():
                mean, largest = errors(product, dtype, x, weight)
                cells.append(f"{100 * mean:.3g} ({100 * largest:.3g})")
            print(f"{in_features:4} x {out_features:4}  {case:31}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
