// The paged KV cache: what the memory of its blocks holds. The memory is the caller's, and may hold anything where
// nothing was written yet.
//
// A block is cut into pages of PAGE tokens. A page, of one layer and one head, holds
//   keys    float32 [head_dim][PAGE]; bfloat16 [head_dim / 2][PAGE][2]; int8 [head_dim][PAGE]
//   values  float32 [PAGE][head_dim]; bfloat16 [PAGE][head_dim / 32][16][2]; int8 [PAGE][head_dim]
//   int8 only: float32 scales of the keys and of the values, [head_dim / KV_GROUP][PAGE] each
// so that one load gives a dimension of many keys, or many dimensions of a value. 32 bits of bfloat16 hold dimensions
// 2 * i (low) and 2 * i + 1 of a key, and 32 * j + i (low) and 32 * j + 16 + i of a value.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace inflight {

enum class KVFormat { FLOAT32, BFLOAT16, INT8 };
constexpr int NUM_KV_FORMATS = 3;

constexpr int PAGE = 16;
constexpr int KV_GROUP = 64;  // dimensions of an int8 key or value that share a scale
constexpr int MAX_HEAD_DIM = 256;

struct KVCache {
  KVFormat format;
  unsigned char* data;
  int num_layers, num_blocks, block_size, num_kv_heads, head_dim;

  size_t page_bytes() const {
    const size_t numbers = (size_t)2 * PAGE * head_dim;
    if (format == KVFormat::FLOAT32) return numbers * 4;
    if (format == KVFormat::BFLOAT16) return numbers * 2;
    return numbers + numbers / KV_GROUP * sizeof(float);
  }
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
  const int unit = kv.format == KVFormat::INT8 ? KV_GROUP : 32;
  if (kv.head_dim < unit || kv.head_dim > MAX_HEAD_DIM || kv.head_dim % unit != 0)
    throw std::invalid_argument("head_dim must be a multiple of " + std::to_string(unit) + " up to " +
                                std::to_string(MAX_HEAD_DIM) + ", not " + std::to_string(kv.head_dim));
  if (kv.block_size < PAGE || kv.block_size % PAGE != 0)
    throw std::invalid_argument("block_size must be a multiple of " + std::to_string(PAGE) + ", not " +
                                std::to_string(kv.block_size));
  if (kv.num_layers < 1 || kv.num_blocks < 1 || kv.num_kv_heads < 1)
    throw std::invalid_argument("a KV cache needs at least one layer, one block and one head");
}

}  // namespace inflight
