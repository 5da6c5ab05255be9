// Paged attention: each token's queries over the keys and values that its own sequence has stored so far.
//
// Keys are cut into tiles of KV_TILE tokens from position 0. Each tile gives a row a state of its own, and states are
// merged from left to right. So a token's bits depend on what its sequence stored, and on nothing else: not on how
// the prompt was cut, nor on the batch, the threads, or the blocks.
#pragma once
#include <memory>

#include "../isa.h"
#include "../operation.h"

namespace inflight {

// How a step's attention is cut into work, the same for every layer.
class AttentionPlan {
 public:
  // Some query heads, of one key head, of a few neighbouring tokens: rows, token by token, that share what they read.
  struct QueryTile {
    const int32_t* blocks;
    int first_token, num_tokens, position;  // of the first token
    int first_head, num_heads;
    bool split;          // among several items, which leave a state for each tile of keys, and the output merges them
    size_t first_state;  // [num_kv_tiles][num_rows]

    int num_rows() const { return num_tokens * num_heads; }
    int num_kv_tiles() const { return ceil_div(position + num_tokens, KV_TILE); }
    int num_visible(int row, int kv_tile) const;  // tokens of the tile of keys
  };
  struct Item {
    int query_tile, first_kv_tile, last_kv_tile;
  };

  // Throws std::invalid_argument for shapes that the kernels cannot serve.
  AttentionPlan(const Isa& isa, const KVCache& kv, int num_heads);

  void make(const Step& step, int num_threads);

  int head_dim() const { return head_dim_; }
  float* state(size_t index) { return states_.data() + index * state_stride(head_dim_); }
  std::vector<QueryTile> query_tiles;  // those of the same tokens are neighbours, tiles_per_token of them
  std::vector<Item> items;             // the largest first
  const int num_heads, group_heads;    // group: query heads that share a key head
  const int tiles_per_token;
  const KVFormat format;

 private:
  const int head_dim_, max_rows_;
  std::vector<float> states_;
};

// Makes the plan, and has no tiles; stands before the first layer's attention.
std::unique_ptr<Operation> make_attention_plan(AttentionPlan& plan);

// Rows of qkv are as make_rotary leaves them; attended is float32 [num_heads][head_dim]. Rows that are split among
// items are left to make_attention_output.
std::unique_ptr<Operation> make_attention(const Isa& isa, AttentionPlan& plan, Buffer& qkv, const KVCache& kv,
                                          int layer, Buffer& attended);

// out[token] = quantize(attended[token]) in the given basis.
std::unique_ptr<Operation> make_attention_output(const Isa& isa, AttentionPlan& plan, Buffer& attended, Buffer& out,
                                                 Basis basis);

}  // namespace inflight
