// float32 keys [head_dim][PAGE] and values [PAGE][head_dim].
#pragma once
#include "../kv.h"

namespace {

using inflight::PAGE;

struct Float32 {
  static constexpr inflight::KVLayout LAYOUT = layout_of(inflight::KVFormat::FLOAT32);

  static void keys(const unsigned char* side, int d, F* out) {
    const float* p = (const float*)side + d * PAGE;
    out[0] = load(p);
    out[1] = load(p + PAGE);
  }
  static void values(const unsigned char* row, int d, F* out) {
    out[0] = load((const float*)row + d);
    out[1] = load((const float*)row + d + 16);
  }
  static void store(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
    float *keys = (float*)page + token, *values = (float*)(page + LAYOUT.side_bytes(head_dim)) + token * head_dim;
    for (int d = 0; d < head_dim; d++) keys[d * PAGE] = key[d];
    __builtin_memcpy(values, value, sizeof(float) * head_dim);
  }
};

}  // namespace
