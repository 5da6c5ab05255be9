// int8 keys [head_dim][PAGE] and values [PAGE][head_dim], x = q * scale with q in -127..127; scales as kv_scale.h says.
#pragma once
#include "kv_scale.h"

namespace {

struct Int8 {
  static constexpr inflight::KVLayout LAYOUT = layout_of(inflight::KVFormat::INT8);
  static constexpr float LARGEST = 127.0f;

  static void keys(const unsigned char* side, int d, F* out) {
    const int8_t* p = (const int8_t*)side + d * PAGE;
    out[0] = to_float(load_i8(p));
    out[1] = to_float(load_i8(p + PAGE));
  }
  static void values(const unsigned char* row, int d, F* out) {
    out[0] = to_float(load_i8((const int8_t*)row + d));
    out[1] = to_float(load_i8((const int8_t*)row + d + LANES));
  }
  static void store(const float* key, const float* value, int head_dim, int token, unsigned char* page) {
    store_groups<Int8>(key, head_dim, token, page, [&](const F* scaled, int d) {
      int8_t numbers[KV_GROUP];
      for (int i = 0; i < 2; i++) store_i8(numbers + i * LANES, to_int(scaled[i]));
      for (int i = 0; i < KV_GROUP; i++) page[(d + i) * PAGE + token] = (unsigned char)numbers[i];
    });
    unsigned char* side = page + LAYOUT.side_bytes(head_dim);
    store_groups<Int8>(value, head_dim, token, side, [&](const F* scaled, int d) {
      for (int i = 0; i < 2; i++) store_i8((int8_t*)side + token * head_dim + d + i * LANES, to_int(scaled[i]));
    });
  }
};

}  // namespace
