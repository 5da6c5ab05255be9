// 4-bit numbers n in 0..15, x = (n - 7.5) * scale: symmetric, without a zero of its own, so that no integer is wasted
// and the steps are 1/15 of the range instead of 1/14. Scales as kv_scale.h says.
//
// Keys [head_dim / 2][PAGE] and values [PAGE][head_dim / 32][16]: a byte holds dimensions 2 * i (low) and 2 * i + 1 of
// a key, and 32 * j + i (low) and 32 * j + 16 + i of a value.
#pragma once
#include "kv_scale.h"

namespace {

struct Int4 {
  static constexpr inflight::KVLayout LAYOUT = layout_of(inflight::KVFormat::INT4);
  static constexpr float LARGEST = 7.5f;

  static void keys(const unsigned char* side, int d, F* out) { load_u4_pair(side + d / 2 * PAGE, out); }
  static void values(const unsigned char* row, int d, F* out) { load_u4_pair(row + d / 2, out); }
  static void store(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
    store_groups<Int4>(key, head_dim, token, page, [&](const F* scaled, int d) {
      alignas(64) uint16_t pairs[KV_GROUP / 2];
      for (int i = 0; i < 2; i++) store_i8((int8_t*)pairs + i * LANES, quantized(scaled[i]));
      for (int i = 0; i < KV_GROUP / 2; i++)
        page[(d / 2 + i) * PAGE + token] = (unsigned char)(pairs[i] | pairs[i] >> 4);
    });
    unsigned char* side = page + LAYOUT.side_bytes(head_dim);
    store_groups<Int4>(value, head_dim, token, side, [&](const F* scaled, int d) {
      const I pairs = add_i(quantized(scaled[0]), shift_left<4>(quantized(scaled[1])));
      store_i8((int8_t*)side + (token * head_dim + d) / 2, pairs);
    });
  }

 private:
  static I quantized(F scaled) { return to_int(add(scaled, fill(LARGEST))); }
};

}  // namespace
