"""Attention in plain torch, correct for any mixture of chunks and decodes, and the same bits for any mixture.

The queries of a sequence are cut into tiles of ``tile_rows`` rows: a few tokens times the query heads that share a KV
head. Keys are cut into tiles of ``KV_TILE`` tokens from position 0. Every product has one of two fixed shapes,
``[tile_rows, head_dim] x [head_dim, KV_TILE]`` and ``[tile_rows, KV_TILE] x [KV_TILE, head_dim]``; only how many of
them run at once varies. Key tiles are folded in from left to right with the running maximum and sum of Milakov and
Gimelshein (arXiv:1805.02867); a tile that a row cannot see multiplies by one and adds zero, exactly. So how a sequence
is chunked, and who else is in the batch, changes no bit. Arithmetic is float32 whatever the dtypes are.

Measured with torch 2.13 on one AVX-512 processor (7 head sizes; 1, 2 and 3 threads; also 2 threads held to AVX2 by
environment variables): a product of 16 rows keeps its bits for any number of products from two on. Held to AVX2, one
product alone, or 8 or 32 rows, did not. Groups of more than 16 query heads use a larger multiple of 16 rows, which
was not measured apart from the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inflight.runtime.attention.base import AttentionSequence
from inflight.runtime.kv.base import KVStore

KV_TILE = 128
TILE_ROWS = 16
MIN_PRODUCTS = 2
SHARED_FROM_TILES = 8  # from so many query tiles on, a chunk reads each key tile once for all of them
GATHER_BYTES = 16 * 2**20  # bound on the key tiles that are copied at once


@dataclass(frozen=True, slots=True)
class _Fold:
    """One key tile of the first ``num_tiles`` query tiles of a group."""

    num_tiles: int
    slots: Tensor  # [num_tiles * KV_TILE], or [KV_TILE] where all tiles share it
    hidden: Tensor | None  # [num_tiles, tile_rows, KV_TILE]: True where a row must not look


@dataclass(frozen=True, slots=True)
class _Group:
    """Query tiles that run together, those with the most key tiles first."""

    tokens: Tensor  # [num_tiles, tokens_per_tile]: rows of the batch; a tile's gaps repeat its first token
    shared: bool  # all tiles are of one sequence
    folds: tuple[_Fold, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
    sequence: AttentionSequence
    first_row: int  # in the batch
    start: int  # position of its first token
    num_tokens: int

    @property
    def num_folds(self) -> int:
        return -(-(self.start + self.num_tokens) // KV_TILE)


class ReferencePlan:
    """See the module's docstring and ``AttentionPlan``."""

    def __init__(
        self, sequences: Sequence[AttentionSequence], num_heads: int, kv: KVStore, device: torch.device
    ) -> None:
        self._num_queries_per_kv = num_heads // kv.num_kv_heads
        self._tile_rows = -(-self._num_queries_per_kv // TILE_ROWS) * TILE_ROWS
        self._tokens_per_tile = self._tile_rows // self._num_queries_per_kv
        self._num_kv_heads = kv.num_kv_heads
        self._null_slot = kv.null_slot
        self._device = device
        self._groups: list[_Group] = []
        places = np.empty(sum(sequence.q_len for sequence in sequences), dtype=np.int64)
        num_placed = 0
        for tiles, shared in self._split(sequences, kv):
            group = self._group(tiles, shared)
            for index, tile in enumerate(tiles):
                first = num_placed + index * self._tokens_per_tile
                places[tile.first_row : tile.first_row + tile.num_tokens] = np.arange(first, first + tile.num_tokens)
            num_placed += group.tokens.numel()
            self._groups.append(group)
        self._places = torch.from_numpy(places).to(device)

    def run(self, layer: int, q: Tensor, kv: KVStore) -> Tensor:
        """Attend with every query token of the step; see ``AttentionPlan``."""
        num_tokens, num_heads, head_dim = q.shape
        queries = (q.float() * head_dim**-0.5).view(num_tokens, self._num_kv_heads, self._num_queries_per_kv, head_dim)
        out = [self._run_group(layer, group, queries, kv).view(-1, num_heads, head_dim) for group in self._groups]
        return torch.cat(out).index_select(0, self._places).to(q.dtype)

    def _run_group(self, layer: int, group: _Group, queries: Tensor, kv: KVStore) -> Tensor:
        """Return ``[num_tiles, tokens_per_tile, num_kv_heads, num_queries_per_kv, head_dim]``."""
        num_tiles, head_dim = group.tokens.shape[0], queries.shape[-1]
        used_rows = self._tokens_per_tile * self._num_queries_per_kv
        rows = queries.new_zeros(self._num_kv_heads, num_tiles, self._tile_rows, head_dim)
        rows[:, :, :used_rows] = queries[group.tokens].permute(2, 0, 1, 3, 4).flatten(2, 3)
        top = rows.new_full((*rows.shape[:3], 1), -math.inf)  # running maximum of a row's scores
        total = torch.zeros_like(top)  # running sum of exp(score - top)
        out = torch.zeros_like(rows)
        for fold in group.folds:
            n = fold.num_tiles
            k, v = (side.view(self._num_kv_heads, -1, KV_TILE, head_dim) for side in kv.gather(layer, fold.slots))
            scores = _products(rows[:, :n], k.transpose(2, 3), group.shared)
            if fold.hidden is not None:
                scores.masked_fill_(fold.hidden, -math.inf)
            new_top = torch.maximum(top[:, :n], scores.amax(-1, keepdim=True))
            scores.sub_(new_top).exp_()
            shrink = (top[:, :n] - new_top).exp_()
            total[:, :n] = total[:, :n] * shrink + scores.sum(-1, keepdim=True)
            out[:, :n] = out[:, :n] * shrink + _products(scores, v, group.shared)
            top[:, :n] = new_top
        out = (out / total)[:, :, :used_rows]
        shape = (self._num_kv_heads, num_tiles, self._tokens_per_tile, self._num_queries_per_kv, head_dim)
        return out.reshape(shape).permute(1, 2, 0, 3, 4).contiguous()

    def _split(self, sequences: Sequence[AttentionSequence], kv: KVStore) -> list[tuple[list[_Tile], bool]]:
        """Long chunks stand alone; all other tiles are pooled, a bounded number at a time."""
        groups: list[tuple[list[_Tile], bool]] = []
        pool: list[_Tile] = []
        row = 0
        for sequence in sequences:
            tiles = [
                _Tile(sequence, row + i, sequence.start + i, min(self._tokens_per_tile, sequence.q_len - i))
                for i in range(0, sequence.q_len, self._tokens_per_tile)
            ]
            row += sequence.q_len
            if len(tiles) >= SHARED_FROM_TILES:
                groups.append((tiles[::-1], True))
            else:
                pool += tiles
        pool.sort(key=lambda tile: -tile.num_folds)
        bytes_per_tile = 2 * kv.num_kv_heads * KV_TILE * kv.head_dim * 4
        at_once = max(MIN_PRODUCTS, GATHER_BYTES // bytes_per_tile)
        groups += [(pool[i : i + at_once], False) for i in range(0, len(pool), at_once)]
        return groups

    def _group(self, tiles: list[_Tile], shared: bool) -> _Group:
        fewest = MIN_PRODUCTS if shared or self._num_kv_heads < MIN_PRODUCTS else 1
        tiles = tiles + tiles[:1] * (fewest - len(tiles))
        offsets = np.arange(self._tokens_per_tile)
        lengths = np.array([tile.num_tokens for tile in tiles])[:, None]
        gaps = np.where(offsets < lengths, offsets, 0)
        positions = np.array([tile.start for tile in tiles])[:, None] + gaps
        row_positions = np.zeros((len(tiles), self._tile_rows), dtype=np.int64)
        row_positions[:, : gaps.shape[1] * self._num_queries_per_kv] = positions.repeat(self._num_queries_per_kv, 1)
        folds = []
        for index in range(tiles[0].num_folds):
            num_tiles = max(fewest, sum(tile.num_folds > index for tile in tiles))
            first, last = index * KV_TILE, (index + 1) * KV_TILE
            owners = tiles[:1] if shared else tiles[:num_tiles]
            slots = np.full((len(owners), KV_TILE), self._null_slot, dtype=np.int64)
            for row, tile in zip(slots, owners, strict=True):
                seen = tile.sequence.slots[first:last]
                row[: len(seen)] = seen
            hidden = None
            if positions[:num_tiles].min() < last - 1:
                hidden = np.arange(first, last) > row_positions[:num_tiles, :, None]
            folds.append(
                _Fold(num_tiles, self._tensor(slots.reshape(-1)), None if hidden is None else self._tensor(hidden))
            )
        tokens = np.array([tile.first_row for tile in tiles])[:, None] + gaps
        return _Group(self._tensor(tokens), shared, tuple(folds))

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _products(left: Tensor, right: Tensor, shared: bool) -> Tensor:
    """``[heads, tiles, m, k] x [heads, tiles or 1, k, n]``, without copying a shared right side."""
    heads, tiles = left.shape[:2]
    if shared:
        return torch.stack([torch.bmm(left[h], right[h].expand(tiles, -1, -1)) for h in range(heads)])
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).view(heads, tiles, left.shape[2], right.shape[3])
