// Products of quantized rows with a block of COLUMNS quantized columns.
//
// Integer sums within a group are exact; each row then adds its groups from first to last in float32. Neither depends
// on the rows that share a tile, so a row has the same bits whatever the batch is.
#pragma once
#include "../formats.h"

namespace {

using inflight::ActivationGroup;
using inflight::COLUMNS;
using inflight::GROUP;
using inflight::HALF;
using inflight::Int8Group;
using inflight::Q4Group;

constexpr int VECTORS = COLUMNS / LANES;

inline I broadcast4(const int8_t* p) {  // four neighbouring inputs, in every lane
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return fill_i(four);
}

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

// out[r][n] += sum over the groups of x[r] . w[:, n]; x is [R][groups], out is [R][COLUMNS].
template <int R>
void multiply_int8(const Int8Group* w, const ActivationGroup* x, int groups, float* out) {
  RowPointers<R> rows(x, groups);
  for (int g = 0; g < groups; g++, w++, rows.next()) {
    F total[R][VECTORS];
    for (int h = 0; h < 2; h++) {
      I acc[R][VECTORS];
      for (int r = 0; r < R; r++)
        for (auto& a : acc[r]) a = fill_i(rows[r].offsets[h]);
#pragma GCC unroll UNROLL
      for (int k = 0; k < HALF / 4; k++) {
        I columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
          __builtin_prefetch(w[2].values[h * HALF / 4 + k][v * LANES]);
          columns[v] = load_i(w->values[h * HALF / 4 + k][v * LANES]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
          const I four = broadcast4(rows[r].values + h * HALF + 4 * k);
          for (int v = 0; v < VECTORS; v++) acc[r][v] = dot(acc[r][v], columns[v], four);
        }
      }
      for (int v = 0; v < VECTORS; v++) {
        const F scale = load_f16(w->scales[h] + v * LANES);
        for (int r = 0; r < R; r++) {
          const F sums = to_float(acc[r][v]);
          total[r][v] = h == 0 ? mul(sums, scale) : fma(sums, scale, total[r][v]);
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

template <int R>
void multiply_q4(const Q4Group* w, const ActivationGroup* x, int groups, float* out) {
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
        I low[VECTORS], high[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
          __builtin_prefetch(w[3].values[h][k][v * LANES]);
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

template <int R = MAX_ROWS>
void multiply_int8_rows(const void* w, const ActivationGroup* x, int rows, int groups, float* out) {
  if (rows == R) return multiply_int8<R>((const Int8Group*)w, x, groups, out);
  if constexpr (R > 1) multiply_int8_rows<R - 1>(w, x, rows, groups, out);
}

template <int R = MAX_ROWS>
void multiply_q4_rows(const void* w, const ActivationGroup* x, int rows, int groups, float* out) {
  if (rows == R) return multiply_q4<R>((const Q4Group*)w, x, groups, out);
  if constexpr (R > 1) multiply_q4_rows<R - 1>(w, x, rows, groups, out);
}

}  // namespace
