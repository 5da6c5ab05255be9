"""``inflight bench kernels``: the roofline of the kernels and of a whole step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from inflight.bench.kernel_times import CHUNKS, DECODES, KV_FORMATS, ROWS, KernelTime, attention, products, row_kernels
from inflight.bench.machine import versions
from inflight.bench.peaks import NUM_TRIES, READ_SIZES, Peaks, measure_peaks
from inflight.bench.programs import Setup
from inflight.bench.step_times import BATCH_SIZES, StepTime, step_times
from inflight.core.errors import InflightError
from inflight.hub.resolve import resolve
from inflight.native import NativeUnavailable, isa
from inflight.runtime.load import default_num_threads, open_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsConfig:
    """The kernels. Raises ``ValueError`` for a value out of range."""

    model: str | None = field(
        default=None, metadata={"help": "the model whose shapes are measured, as for serve; absent: the built-in one"}
    )
    num_threads: int | None = field(
        default=None, metadata={"help": "threads, 1 to 1024; none: the physical cores that this process may use"}
    )

    def __post_init__(self) -> None:
        if self.num_threads is not None and not 1 <= self.num_threads <= 1024:
            raise ValueError(f"num_threads must be in [1, 1024], got {self.num_threads}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured; the command measures all of it."""

    rows: Sequence[int] = ROWS
    decodes: Sequence[tuple[int, int]] = DECODES
    chunks: Sequence[tuple[int, int]] = CHUNKS
    batch_sizes: Sequence[int] = BATCH_SIZES
    context: int = 256
    read_sizes: Sequence[int] = READ_SIZES
    num_tries: int = NUM_TRIES  # of each of the ceilings
    budget_s: float = 0.05  # of each kernel and size


def measure(config: KernelsConfig, sizes: Sizes | None = None) -> dict[str, Any]:
    """Measure; return the report, ready for JSON.

    Raises ``InflightError`` if there are no native kernels here, or they cannot run the model; and what loading raises.
    """
    sizes = sizes or Sizes()
    try:
        best_isa = isa()
    except NativeUnavailable as error:
        raise InflightError(f"there are no native kernels to measure: {error}") from error
    num_threads = config.num_threads or default_num_threads()
    path = resolve(config.model).path
    checkpoint = open_checkpoint(path)
    setup = Setup(checkpoint.config, best_isa, num_threads, budget_s=sizes.budget_s)
    in_blocks = checkpoint.has_blocks("model.layers.0.mlp.down_proj.weight")
    peaks = measure_peaks(best_isa, num_threads, sizes.num_tries, sizes.read_sizes)
    times = [one for format in ("int8", "q4") for one in products(setup, format, sizes.rows)]
    for format in KV_FORMATS:
        times += attention(setup, format, sizes.decodes, sizes.chunks)
    times += row_kernels(setup, sizes.rows)
    steps = [
        one
        for quantization in ("int8", "q4")[: 1 + in_blocks]
        for one in step_times(path, quantization, num_threads, sizes.batch_sizes, sizes.context)
    ]
    return {
        "benchmark": "kernels",
        "settings": {"num_threads": num_threads, "model": str(path), **asdict(sizes)},
        "versions": versions(),
        "peaks": asdict(peaks),
        "kernels": [_kernel(peaks, one) for one in times],
        "steps": [_step(peaks, one) for one in steps],
    }


def _kernel(peaks: Peaks, one: KernelTime) -> dict[str, Any]:
    bound = peaks.bound(one.int8_operations, one.fp32_operations, one.num_bytes, one.working_set_bytes)
    operations = one.int8_operations + one.fp32_operations
    return {
        **asdict(one),
        "operations_per_s": operations / one.seconds,
        "bytes_per_s": one.num_bytes / one.seconds,
        "intensity": operations / one.num_bytes,
        "bound": bound.by,
        "share_of_bound": bound.seconds / one.seconds,
    }


def _step(peaks: Peaks, one: StepTime) -> dict[str, Any]:
    num_bytes = one.weight_bytes + one.kv_bytes
    bound = peaks.bound(one.int8_operations, one.fp32_operations, num_bytes, num_bytes)
    return {
        **asdict(one),
        "intensity": one.intensity,
        "tokens_per_s": one.batch_size / one.seconds,
        "bound": bound.by,
        "bound_tokens_per_s": one.batch_size / bound.seconds,
        "share_of_bound": bound.seconds / one.seconds,
    }


def as_text(report: Mapping[str, Any]) -> str:
    """Return a report as tables for people."""
    settings, versions_, peaks = report["settings"], report["versions"], report["peaks"]
    lines = [
        f"inflight {versions_['inflight']}, kernels {versions_['kernels']}, {settings['num_threads']} threads, "
        f"{versions_['cpu']}",
        "",
        f"int8 dot products  {peaks['int8_operations_per_s'] / 1e9:8.1f} GOPS",
        f"float32 FMA        {peaks['fp32_operations_per_s'] / 1e9:8.1f} GFLOP/s",
        *(f"reading {_size(size):>9}  {rate / 1e9:8.1f} GB/s" for size, rate in peaks["read_bytes_per_s"]),
        "",
        f"{'kernel':<21}{'format':<9}{'shape':<14}{'rows':>5}{'us':>11}{'GOPS':>8}{'GB/s':>7}{'op/byte':>9}  bound",
    ]
    lines += [
        f"{one['kernel']:<21}{one['format']:<9}{one['shape']:<14}{one['num_rows']:>5}{one['seconds'] * 1e6:>11.1f}"
        f"{one['operations_per_s'] / 1e9:>8.1f}{one['bytes_per_s'] / 1e9:>7.1f}{one['intensity']:>9.1f}"
        f"  {one['share_of_bound'] * 100:.0f} % of {one['bound']}"
        for one in report["kernels"]
    ]
    lines += [
        "",
        f"decode steps of the whole model, {settings['context']} tokens stored for each row",
        f"{'weights':<9}{'rows':>5}{'ms':>8}{'MB weights':>12}{'MB KV':>8}{'Gop':>8}{'op/byte':>9}"
        f"{'tokens/s':>10}{'allowed':>9}  bound",
    ]
    lines += [
        f"{one['quantization']:<9}{one['batch_size']:>5}{one['seconds'] * 1e3:>8.2f}{one['weight_bytes'] / 1e6:>12.1f}"
        f"{one['kv_bytes'] / 1e6:>8.1f}{(one['int8_operations'] + one['fp32_operations']) / 1e9:>8.2f}"
        f"{one['intensity']:>9.1f}{one['tokens_per_s']:>10.0f}{one['bound_tokens_per_s']:>9.0f}"
        f"  {one['share_of_bound'] * 100:.0f} % of {one['bound']}"
        for one in report["steps"]
    ]
    return "\n".join(lines)


def _size(num_bytes: int) -> str:
    return f"{num_bytes // 2**20} MiB" if num_bytes >= 2**20 else f"{num_bytes // 2**10} KiB"
