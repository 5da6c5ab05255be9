// Products of quantized rows with a block of COLUMNS quantized columns, and what follows them fused in: storing, adding
// to the residual, or SwiGLU (Shazeer, arXiv:2002.05202) and quantizing.
//
// Integer sums within half a group are exact; each row then adds its two halves and its groups, from first to last, in
// float32. Neither depends on the rows that share a tile, so a row has the same bits whatever the batch is.
#pragma once
#include "../isa.h"
#include "quantize.h"

namespace {

using inflight::BlockProduct;
using inflight::COLUMNS;
using inflight::HALF;
using inflight::Int8Group;
using inflight::Q4Group;

constexpr int VECTORS = COLUMNS / LANES;

inline I broadcast4(const int8_t* p) {  // four neighbouring inputs, in every lane
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return fill_i(four);
}

// The compiler would load a whole group of weights ahead of its use, and spill it.
inline void no_loads_ahead() { asm volatile("" ::: "memory"); }

// R row pointers from two registers more than R / 4: the compiler keeps R of them otherwise, and spills.
template <int R>
struct RowPointers {
  const char* base[(R + 3) / 4];
  size_t stride, three;
  RowPointers(const ActivationGroup* x, int groups) : stride(sizeof(ActivationGroup) * groups), three(3 * stride) {
    for (int i = 0; i < (R + 3) / 4; i++) base[i] = (const char*)x + 4 * i * stride;
    asm("" : "+r"(stride), "+r"(three));
  }
  const ActivationGroup& operator[](int r) const {
    const int i = r % 4;
    return *(const ActivationGroup*)(base[r / 4] + (i == 0 ? 0 : i == 1 ? stride : i == 2 ? 2 * stride : three));
  }
  void next() {
    for (auto& b : base) b += sizeof(ActivationGroup);
  }
};

// Weights that will be wanted next are fetched into the core's own cache while those at hand are multiplied: two cache
// lines at each step k of half a group where k has none of the bits of `skip`.
struct Ahead {
  const char* at;
  int skip;
  void fetch(int k) {
    if (k & skip) return;
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at + 64, 0, 2);
    at += 128;
  }
};

// out[r][n] += sum over the groups of x[r] . w[:, n]; x is [R][groups], out is [R][COLUMNS].
template <int R>
void multiply(const Int8Group* w, const ActivationGroup* x, int groups, float* out, Ahead ahead) {
  RowPointers<R> rows(x, groups);
  alignas(64) float first[R * COLUMNS];  // of the first half; there are no registers left for them
  for (int g = 0; g < groups; g++, w++, rows.next()) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      I acc[R][VECTORS];
      for (int r = 0; r < R; r++)
        for (auto& a : acc[r]) a = fill_i(rows[r].offsets[h]);
#pragma GCC unroll UNROLL
      for (int k = 0; k < HALF / 4; k++) {
        no_loads_ahead();
        ahead.fetch(k);
        I columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) columns[v] = load_i(w->values[h * HALF / 4 + k][v * LANES]);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const I four = broadcast4(rows[r].values + h * HALF + 4 * k);
          for (int v = 0; v < VECTORS; v++) acc[r][v] = dot(acc[r][v], columns[v], four);
        }
      }
      F scales[VECTORS];
      for (int v = 0; v < VECTORS; v++) scales[v] = load_f16(w->scales[h] + v * LANES);
      for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) {
          float* f = first + r * COLUMNS + v * LANES;
          float* o = out + r * COLUMNS + v * LANES;
          if (h == 0)
            store(f, mul(to_float(acc[r][v]), scales[v]));
          else
            store(o, fma(fma(to_float(acc[r][v]), scales[v], load(f)), fill(rows[r].scale), load(o)));
        }
    }
  }
}

template <int R>
void multiply(const Q4Group* w, const ActivationGroup* x, int groups, float* out, Ahead ahead) {
  RowPointers<R> rows(x, groups);
  const I low_bits = fill_i(0x0f0f0f0f);
  for (int g = 0; g < groups; g++, w++, rows.next()) {
    F total[R][VECTORS];
    for (int h = 0; h < 2; h++) {
      I acc[R][VECTORS];
      for (int r = 0; r < R; r++)
        for (auto& a : acc[r]) a = fill_i(0);
#pragma GCC unroll 4
      for (int k = 0; k < HALF / 8; k++) {
        no_loads_ahead();
        ahead.fetch(k);
        I low[VECTORS], high[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
          const I both = load_i(w->values[h][k][v * LANES]);
          low[v] = and_i(both, low_bits);
          high[v] = and_i(shift_right<4>(both), low_bits);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const int8_t* values = rows[r].values + h * HALF + 4 * k;
          const I first = broadcast4(values), second = broadcast4(values + HALF / 2);
          for (int v = 0; v < VECTORS; v++) acc[r][v] = dot_small(dot_small(acc[r][v], low[v], first), high[v], second);
        }
      }
      for (int v = 0; v < VECTORS; v++) {
        const F scale = load_f16(w->scales[h] + v * LANES), minimum = load_f16(w->minimums[h] + v * LANES);
        for (int r = 0; r < R; r++) {
          const F paid = mul(minimum, fill(rows[r].sums[h]));
          const F half = fma(to_float(small_sums(acc[r][v])), scale, paid);
          total[r][v] = h == 0 ? half : add(total[r][v], half);
        }
      }
    }
    for (int r = 0; r < R; r++)
      for (int v = 0; v < VECTORS; v++) {
        float* o = out + r * COLUMNS + v * LANES;
        store(o, fma(total[r][v], fill(rows[r].scale), load(o)));
      }
  }
}

// Rows that go through the registers together.
struct Piece {
  int first_row, num_rows, index, num_pieces;
};

// Calls run(piece) for pieces of equal heights: 7 rows are 4 and 3, not 6 and 1.
template <class Run>
inline void in_pieces(int num_rows, Run run) {
  const int num_pieces = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
  for (int i = 0; i < num_pieces; i++) {
    const int first = num_rows * i / num_pieces;
    run(Piece{first, num_rows * (i + 1) / num_pieces - first, i, num_pieces});
  }
}

// Each of the first pieces fetches a part of the block that comes next.
template <class Weights>
inline Ahead fetch_part(const BlockProduct& p, const Weights* w, int block, const Piece& piece) {
  const char* next = block + 1 < p.num_blocks ? (const char*)(w + p.num_groups) : (const char*)p.next_weights;
  const int skip = piece.num_pieces < 2 ? 0 : piece.num_pieces < 4 ? 1 : piece.num_pieces < 8 ? 3 : 7;
  if (next == nullptr || piece.index > skip) return {(const char*)w, 7};  // what is here already
  return {next + sizeof(Weights) * p.num_groups / (skip + 1) * piece.index, skip};
}

// product[rows][COLUMNS] = bias + x . w of one block.
template <class Weights, int R = MAX_ROWS>
inline void multiply_piece(const BlockProduct& p, int block, const Piece& piece, float* product) {
  if (piece.num_rows == R) {
    for (int r = 0; r < R; r++)
      for (int v = 0; v < COLUMNS; v += LANES)
        store(product + r * COLUMNS + v, p.bias ? load(p.bias + block * COLUMNS + v) : zero());
    const Weights* w = (const Weights*)p.weights + (size_t)block * p.num_groups;
    const ActivationGroup* x = p.x + (size_t)piece.first_row * p.num_groups;
    multiply<R>(w, x, p.num_groups, product, fetch_part(p, w, block, piece));
  } else if constexpr (R > 1) {
    multiply_piece<Weights, R - 1>(p, block, piece, product);
  }
}

template <class Weights>
void linear(const BlockProduct& p, float* out, size_t stride, int width, bool add_to) {
  alignas(64) float product[MAX_ROWS * COLUMNS];
  for (int block = 0; block < p.num_blocks; block++, out += COLUMNS, width -= COLUMNS)
    in_pieces(p.num_rows, [&](const Piece& piece) {
      multiply_piece<Weights>(p, block, piece, product);
      for (int r = 0; r < piece.num_rows; r++) {
        float* o = out + stride * (piece.first_row + r);
        const float* from = product + r * COLUMNS;
        if (width >= COLUMNS)
          for (int v = 0; v < COLUMNS; v += LANES)
            store(o + v, add_to ? add(load(o + v), load(from + v)) : load(from + v));
        else
          for (int i = 0; i < width; i++) o[i] = add_to ? o[i] + from[i] : from[i];
      }
    });
}

template <class Weights, Basis B>
void swiglu(const BlockProduct& p, ActivationGroup* out, size_t stride) {
  constexpr int BLOCKS = GROUP / COLUMNS;
  alignas(64) float product[2 * BLOCKS][MAX_ROWS * COLUMNS];
  for (int block = 0; block < p.num_blocks; block += 2 * BLOCKS, out++)
    in_pieces(p.num_rows, [&](const Piece& piece) {
      for (int b = 0; b < 2 * BLOCKS; b++) multiply_piece<Weights>(p, block + b, piece, product[b]);
      for (int r = 0; r < piece.num_rows; r++) {
        Group group;
        for (int i = 0; i < GROUP_VECTORS; i++) {
          const int b = i * LANES / COLUMNS, at = r * COLUMNS + i * LANES % COLUMNS;
          group[i] = mul(silu(load(product[b] + at)), load(product[BLOCKS + b] + at));
        }
        quantize_group<B>(group, out[stride * (piece.first_row + r)]);
      }
    });
}

}  // namespace
