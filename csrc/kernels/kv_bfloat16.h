// bfloat16 keys [head_dim / 2][PAGE][2] and values [PAGE][head_dim / 32][16][2]: 32 bits hold dimensions 2 * i (low)
// and 2 * i + 1 of a key, and 32 * j + i (low) and 32 * j + 16 + i of a value.
#pragma once
#include "../kv.h"

namespace {

using inflight::PAGE;

struct Bfloat16 {
  static constexpr inflight::KVLayout LAYOUT = layout_of(inflight::KVFormat::BFLOAT16);

  static void keys(const unsigned char* side, int d, F* out) { load_bf16_pair(side + d * PAGE * 2, out); }
  static void values(const unsigned char* row, int d, F* out) { load_bf16_pair(row + d * 2, out); }
  static void store(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
    uint32_t *keys = (uint32_t*)page + token, *values = (uint32_t*)(page + LAYOUT.side_bytes(head_dim));
    for (int d = 0; d < head_dim; d += 2) keys[d / 2 * PAGE] = nearest(key[d]) | nearest(key[d + 1]) << 16;
    values += token * head_dim / 2;
    for (int j = 0; j < head_dim; j += 32)
      for (int i = 0; i < 16; i++) values[j / 2 + i] = nearest(value[j + i]) | nearest(value[j + 16 + i]) << 16;
  }

 private:
  static uint32_t nearest(float x) {  // ties to even; any NaN becomes the quiet one
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return x == x ? rounded : 0x7fc0;
  }
};

}  // namespace
