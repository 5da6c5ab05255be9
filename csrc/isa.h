// The kernels of one instruction set: one table for each, filled by isa.cpp, which is compiled once for each.
#pragma once
#include "formats.h"
#include "kv.h"

namespace inflight {

// Rows of attention that share keys and values: those of KV_TILE tokens at most. Tiles are anchored at position 0 of a
// sequence, each gives a state, and states are merged from left to right.
constexpr int KV_TILE = 128;
constexpr int QUERY_STRIDE = MAX_HEAD_DIM + 16;  // float32; off the powers of two, which share cache sets
constexpr int STATE_HEADER = 16;                 // a row's state: the largest score, the sum of weights; then output
constexpr int state_stride(int head_dim) { return STATE_HEADER + head_dim; }

struct AttentionTile {
  const float* queries;  // [num_rows][QUERY_STRIDE], scaled and turned
  int num_rows, head_dim;
  const unsigned char *const *pages, *const *next_pages;  // next: as many, to be fetched ahead
  const int* num_visible;  // [num_rows], ascending, the last one in [1, KV_TILE]; rows with none are left alone
  float* states;           // [num_rows][state_stride(head_dim)]
};

// Rows of activations by neighbouring blocks of weights.
struct BlockProduct {
  const void* weights;  // [num_blocks][num_groups]
  int num_blocks;
  const ActivationGroup* x;  // [num_rows][num_groups]
  int num_rows, num_groups;
  const float* bias;         // [num_blocks][COLUMNS], or null
  const void* next_weights;  // the block that this thread will probably read next, or null
};

struct Isa {
  const char* name;
  // out[row][:width] = (or += if `add`) bias + x[row] . w; rows of out are `stride` apart. Indexed by WeightFormat.
  void (*linear[NUM_WEIGHT_FORMATS])(const BlockProduct&, float* out, size_t stride, int width, bool add);
  // out[row][:] = quantize(silu(gate) * up): a group from GROUP columns of gate and those of up after them, and so on.
  // Rows of out are `stride` groups apart. Indexed by WeightFormat and Basis.
  void (*swiglu[NUM_WEIGHT_FORMATS][NUM_BASES])(const BlockProduct&, ActivationGroup* out, size_t stride);
  // Indexed by Basis.
  void (*quantize[NUM_BASES])(const float* x, int n, ActivationGroup* out);
  void (*rms_norm_quantize[NUM_BASES])(const float* x, const float* weight, float eps, int n, ActivationGroup* out);
  // The place of the largest of n numbers, the first of equals; -1 if any is NaN or infinite.
  int (*argmax)(const float* x, int n);
  int max_queries;  // rows that attend takes at once
  // What is indexed by KVFormat: a query in the basis of the stored keys; a tile; the attended values of a row's state.
  void (*turn_query[NUM_KV_FORMATS])(const float* query, int head_dim, float* out);
  void (*attend[NUM_KV_FORMATS])(const AttentionTile&);
  void (*merge_states)(const float* from, int head_dim, float* into);  // one row's, of tiles to the left and right
  void (*finish_state[NUM_KV_FORMATS])(const float* state, int head_dim, float* out);
  // out = x turned by angles, times scale; angles: cos [head_dim / 2], then sin. In place, or not.
  void (*rotate)(const float* x, const float* angles, float scale, int head_dim, float* out);
  void (*store_kv[NUM_KV_FORMATS])(const float* key, const float* value, int head_dim, int token, unsigned char* page);
  // The processor's ceilings: these return the operations, the operations and the bytes that they did.
  int64_t (*only_dot)(int64_t num_rounds);
  int64_t (*only_fma)(int64_t num_rounds);
  size_t (*only_read)(const void* p, size_t num_bytes);
};

// The best one that this processor has and that is not above `limit` ("avx512_vnni", "avx2", "portable"; null: none).
// Throws std::invalid_argument for another name.
const Isa& choose_isa(const char* limit);

}  // namespace inflight
