// Loops that do one thing only: the ceilings of the kernels, in their own instructions.
//
// Sums are kept in registers as a tile of a product keeps them, so that what a real product shares among its rows and
// columns is shared here too; `keep` makes the compiler believe that a number has changed.
#pragma once
#include "../formats.h"

namespace {

constexpr int PEAK_ROWS = MAX_ROWS > 4 ? MAX_ROWS : 2;  // enough sums to hide latencies, and registers for all of them
constexpr int PEAK_VECTORS = inflight::COLUMNS / LANES;
constexpr int READS_AT_ONCE = 8;

// One tile of sums, num_rounds times; returns the operations: a multiplication and an addition for each number.
template <class Vector, class MultiplyAdd>
int64_t only_multiply(int64_t num_rounds, Vector zero, Vector one, int numbers_per_vector, MultiplyAdd multiply_add) {
  Vector acc[PEAK_ROWS][PEAK_VECTORS], columns[PEAK_VECTORS], row = one;
  for (int v = 0; v < PEAK_VECTORS; v++) columns[v] = one;
  for (int r = 0; r < PEAK_ROWS; r++)
    for (int v = 0; v < PEAK_VECTORS; v++) acc[r][v] = zero;
  for (int64_t i = 0; i < num_rounds; i++) {
    for (int v = 0; v < PEAK_VECTORS; v++) columns[v] = keep(columns[v]);
#pragma GCC unroll 16
    for (int r = 0; r < PEAK_ROWS; r++) {
      row = keep(row);
      for (int v = 0; v < PEAK_VECTORS; v++) acc[r][v] = keep(multiply_add(acc[r][v], columns[v], row));
    }
  }
  return num_rounds * PEAK_ROWS * PEAK_VECTORS * numbers_per_vector * 2;
}

int64_t only_dot(int64_t num_rounds) {
  return only_multiply(num_rounds, fill_i(0), fill_i(0x01010101), 4 * LANES,
                       [](I sum, I columns, I row) { return dot(sum, columns, row); });
}

int64_t only_fma(int64_t num_rounds) {
  return only_multiply(num_rounds, zero(), fill(1.0f), LANES,
                       [](F sum, F columns, F row) { return fma(row, columns, sum); });
}

// Reads the whole vectors of READS_AT_ONCE in num_bytes; returns how many bytes that were.
size_t only_read(const void* p, size_t num_bytes) {
  constexpr size_t vector = sizeof(int32_t) * LANES, stride = READS_AT_ONCE * vector;
  I sums[READS_AT_ONCE];
  for (int i = 0; i < READS_AT_ONCE; i++) sums[i] = fill_i(0);
  size_t at = 0;
  for (; at + stride <= num_bytes; at += stride)
#pragma GCC unroll 16
    for (int i = 0; i < READS_AT_ONCE; i++) sums[i] = add_i(sums[i], load_i((const char*)p + at + i * vector));
  for (int i = 0; i < READS_AT_ONCE; i++) sums[i] = keep(sums[i]);
  return at;
}

}  // namespace
