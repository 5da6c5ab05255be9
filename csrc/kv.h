// The paged KV cache: what the memory of its blocks holds. The memory is the caller's, and may hold anything where
// nothing was written yet.
//
// A block is cut into pages of PAGE tokens. A page, of one layer and one head, has two sides, keys and values. A side
// is PAGE * head_dim numbers, and after them, in a format that has them, the scales: bfloat16
// [head_dim / KV_GROUP][PAGE]. How the numbers lie is the format's own: kernels/kv_*.h, one file for each.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace inflight {

// The formats: name, the struct in kernels/kv_*.h, bits of a number, whether KV_GROUP of them share a scale.
#define INFLIGHT_KV_FORMATS(X)     \
  X(FLOAT32, Float32, 32, false)   \
  X(BFLOAT16, Bfloat16, 16, false) \
  X(INT8, Int8, 8, true)           \
  X(INT4, Int4, 4, true)

#define INFLIGHT_NAME(name, ...) name,
enum class KVFormat { INFLIGHT_KV_FORMATS(INFLIGHT_NAME) };
#undef INFLIGHT_NAME

constexpr int PAGE = 16;
constexpr int KV_GROUP = 32;  // neighbouring dimensions of a key or a value; heads are whole groups in every format
constexpr int MAX_HEAD_DIM = 256;

struct KVLayout {
  int bits;
  bool scaled;

  constexpr size_t number_bytes(int numbers) const { return (size_t)numbers * bits / 8; }
  constexpr size_t side_bytes(int head_dim) const {
    return number_bytes(PAGE * head_dim) + (scaled ? PAGE * (head_dim / KV_GROUP) * sizeof(uint16_t) : 0);
  }
};

#define INFLIGHT_LAYOUT(name, type, bits, scaled) {bits, scaled},
constexpr KVLayout KV_LAYOUTS[] = {INFLIGHT_KV_FORMATS(INFLIGHT_LAYOUT)};
#undef INFLIGHT_LAYOUT
constexpr int NUM_KV_FORMATS = sizeof(KV_LAYOUTS) / sizeof(KVLayout);
constexpr KVLayout layout_of(KVFormat format) { return KV_LAYOUTS[(int)format]; }

struct KVCache {
  KVFormat format;
  unsigned char* data;
  int num_layers, num_blocks, block_size, num_kv_heads, head_dim;

  size_t page_bytes() const { return 2 * layout_of(format).side_bytes(head_dim); }
  // Of one layer, all heads.
  size_t block_bytes() const { return page_bytes() * num_kv_heads * (block_size / PAGE); }
  size_t size_bytes() const { return block_bytes() * num_blocks * num_layers; }

  // The page of one head that holds a position, by the sequence's block table.
  unsigned char* page(int layer, const int32_t* blocks, int position, int kv_head) const {
    const size_t block = (size_t)layer * num_blocks + blocks[position / block_size];
    const size_t index = (size_t)kv_head * (block_size / PAGE) + position % block_size / PAGE;
    return data + block * block_bytes() + index * page_bytes();
  }
};

// Throws std::invalid_argument where the kernels cannot serve such a cache.
inline void check(const KVCache& kv) {
  if (kv.head_dim < KV_GROUP || kv.head_dim > MAX_HEAD_DIM || kv.head_dim % KV_GROUP != 0)
    throw std::invalid_argument("head_dim must be a multiple of " + std::to_string(KV_GROUP) + " up to " +
                                std::to_string(MAX_HEAD_DIM) + ", not " + std::to_string(kv.head_dim));
  if (kv.block_size < PAGE || kv.block_size % PAGE != 0)
    throw std::invalid_argument("block_size must be a multiple of " + std::to_string(PAGE) + ", not " +
                                std::to_string(kv.block_size));
  if (kv.num_layers < 1 || kv.num_blocks < 1 || kv.num_kv_heads < 1)
    throw std::invalid_argument("a KV cache needs at least one layer, one block and one head");
}

}  // namespace inflight
