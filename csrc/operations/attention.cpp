#include "attention.h"

#include <algorithm>
#include <stdexcept>

namespace inflight {

namespace {

constexpr int REGISTERS_FULL = 4;    // of rows, in a query tile: the second and later ones read from the cache
constexpr int MAX_ROWS = 48;         // of a query tile
constexpr int ITEMS_PER_THREAD = 8;  // enough that no thread waits long for the last one
constexpr int ROW_COST = 4;          // reading a tile of keys and values costs about as much as so many rows

int count_group(const KVCache& kv, int num_heads) {
  check(kv);
  if (num_heads < 1 || num_heads % kv.num_kv_heads != 0)
    throw std::invalid_argument("num_heads must be a multiple of num_kv_heads");
  return num_heads / kv.num_kv_heads;
}

int count_max_rows(const Isa& isa) { return std::min(MAX_ROWS, REGISTERS_FULL * isa.max_queries); }

}  // namespace

int AttentionPlan::QueryTile::num_visible(int row, int kv_tile) const {
  return std::clamp(position + row / num_heads + 1 - kv_tile * KV_TILE, 0, KV_TILE);
}

AttentionPlan::AttentionPlan(const Isa& isa, const KVCache& kv, int num_heads)
    : num_heads(num_heads), group_heads(count_group(kv, num_heads)),
      tiles_per_token(kv.num_kv_heads * ceil_div(group_heads, count_max_rows(isa))), format(kv.format),
      head_dim_(kv.head_dim), max_rows_(count_max_rows(isa)) {}

void AttentionPlan::make(const Step& step, int num_threads) {
  query_tiles.clear();
  items.clear();
  const int pieces = ceil_div(group_heads, max_rows_);  // of a group of heads
  const int tile_tokens = std::max(1, max_rows_ / group_heads);
  int64_t whole_cost = 0;
  for (const Sequence& sequence : step.sequences)
    for (int at = 0; at < sequence.num_tokens; at += tile_tokens)
      for (int head = 0; head < num_heads; head += group_heads)
        for (int piece = 0; piece < pieces; piece++) {
          const int first = group_heads * piece / pieces, last = group_heads * (piece + 1) / pieces;
          query_tiles.push_back({sequence.blocks, sequence.first_row + at,
                                 std::min(tile_tokens, sequence.num_tokens - at), sequence.start + at, head + first,
                                 last - first, false, 0});
          const QueryTile& tile = query_tiles.back();
          whole_cost += (int64_t)tile.num_kv_tiles() * (tile.num_rows() + ROW_COST);
        }

  const int64_t item_cost = num_threads == 1 ? whole_cost : whole_cost / (num_threads * ITEMS_PER_THREAD);
  size_t num_states = 0;
  for (size_t i = 0; i < query_tiles.size(); i++) {
    QueryTile& tile = query_tiles[i];
    const int num_kv_tiles = tile.num_kv_tiles();
    const int most = (int)std::max<int64_t>(1, item_cost / (tile.num_rows() + ROW_COST));
    const int num_items = ceil_div(num_kv_tiles, most);
    tile.split = num_items > 1;
    if (tile.split) {
      tile.first_state = num_states;
      num_states += (size_t)num_kv_tiles * tile.num_rows();
    }
    for (int j = 0; j < num_items; j++)
      items.push_back({(int)i, (int)((int64_t)num_kv_tiles * j / num_items),
                       (int)((int64_t)num_kv_tiles * (j + 1) / num_items)});
  }
  const auto cost = [this](const Item& item) {
    return (item.last_kv_tile - item.first_kv_tile) * (query_tiles[item.query_tile].num_rows() + ROW_COST);
  };
  std::stable_sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return cost(a) > cost(b); });
  if (states_.size() < num_states * state_stride(head_dim_)) states_.resize(num_states * state_stride(head_dim_));
}

namespace {

using QueryTile = AttentionPlan::QueryTile;
using Item = AttentionPlan::Item;

void finish(const Isa& isa, const AttentionPlan& plan, const QueryTile& tile, const float* states, Buffer& attended) {
  const int head_dim = plan.head_dim();
  for (int row = 0; row < tile.num_rows(); row++) {
    const int head = tile.first_head + row % tile.num_heads;
    float* out = attended.row<float>(tile.first_token + row / tile.num_heads) + head * head_dim;
    isa.finish_state[(int)plan.format](states + row * state_stride(head_dim), head_dim, out);
  }
}

// Left to right; a tile that a row cannot see has left it no state.
void merge(const Isa& isa, const QueryTile& tile, int head_dim, int kv_tile, const float* states, float* into) {
  for (int row = 0; row < tile.num_rows(); row++)
    if (tile.num_visible(row, kv_tile) > 0)
      isa.merge_states(states + row * state_stride(head_dim), head_dim, into + row * state_stride(head_dim));
}

class Plan : public Operation {
 public:
  explicit Plan(AttentionPlan& plan) : plan_(plan) {}
  std::string name() const override { return "attention_plan"; }
  int begin(const Step& step, int num_threads) override {
    plan_.make(step, num_threads);
    return 0;
  }
  void run(const Step&, int) override {}

 private:
  AttentionPlan& plan_;
};

class Attention : public Operation {
 public:
  Attention(const Isa& isa, AttentionPlan& plan, Buffer& qkv, const KVCache& kv, int layer, Buffer& attended)
      : isa_(isa), plan_(plan), qkv_(qkv), kv_(kv), layer_(layer), attended_(attended) {}

  std::string name() const override { return "attention"; }
  int begin(const Step&, int num_threads) override {
    num_threads_ = num_threads;
    return (int)plan_.items.size();
  }

  void run(const Step&, int index) override {
    const Item& item = plan_.items[index];
    const QueryTile& tile = plan_.query_tiles[item.query_tile];
    const int num_rows = tile.num_rows(), head_dim = kv_.head_dim;
    alignas(64) float queries[MAX_ROWS * QUERY_STRIDE];
    for (int row = 0; row < num_rows; row++) {
      const float* q = qkv_.row<float>(tile.first_token + row / tile.num_heads);
      q += (tile.first_head + row % tile.num_heads) * head_dim;
      isa_.turn_query[(int)kv_.format](q, head_dim, queries + row * QUERY_STRIDE);
    }
    alignas(64) float running[MAX_ROWS * state_stride(MAX_HEAD_DIM)], fresh[MAX_ROWS * state_stride(MAX_HEAD_DIM)];
    const Item& likely = plan_.items[std::min(index + num_threads_, (int)plan_.items.size() - 1)];  // to come next
    const unsigned char* pages[2][KV_TILE / PAGE];
    find_pages(tile, item.first_kv_tile, pages[item.first_kv_tile % 2]);
    for (int kv_tile = item.first_kv_tile; kv_tile < item.last_kv_tile; kv_tile++) {
      const bool first = kv_tile == item.first_kv_tile;
      float* states = tile.split ? plan_.state(tile.first_state + (size_t)kv_tile * num_rows) : first ? running : fresh;
      auto &here = pages[kv_tile % 2], &next = pages[(kv_tile + 1) % 2];
      if (kv_tile + 1 < item.last_kv_tile)
        find_pages(tile, kv_tile + 1, next);
      else
        find_pages(plan_.query_tiles[likely.query_tile], likely.first_kv_tile, next);
      attend(tile, kv_tile, queries, here, next, states);
      if (!tile.split && !first) merge(isa_, tile, head_dim, kv_tile, states, running);
    }
    if (!tile.split) finish(isa_, plan_, tile, running, attended_);
  }

 private:
  // Of a tile of keys; the last one again where it has fewer.
  void find_pages(const QueryTile& tile, int kv_tile, const unsigned char** pages) const {
    const int last_page = (tile.position + tile.num_tokens - 1) / PAGE;
    for (int i = 0; i < KV_TILE / PAGE; i++) {
      const int page = std::min(kv_tile * (KV_TILE / PAGE) + i, last_page);
      pages[i] = kv_.page(layer_, tile.blocks, page * PAGE, tile.first_head / plan_.group_heads);
    }
  }

  void attend(const QueryTile& tile, int kv_tile, const float* queries, const unsigned char* const* pages,
              const unsigned char* const* next_pages, float* states) const {
    const int num_rows = tile.num_rows();
    int num_visible[MAX_ROWS];
    for (int row = 0; row < num_rows; row++) num_visible[row] = tile.num_visible(row, kv_tile);
    const int num_pieces = ceil_div(num_rows, isa_.max_queries);  // of equal heights
    for (int piece = 0; piece < num_pieces; piece++) {
      const int row = num_rows * piece / num_pieces, last = num_rows * (piece + 1) / num_pieces;
      if (num_visible[last - 1] > 0)
        isa_.attend[(int)kv_.format]({queries + row * QUERY_STRIDE, last - row, kv_.head_dim, pages, next_pages,
                                      num_visible + row, states + row * state_stride(kv_.head_dim)});
    }
  }

  const Isa& isa_;
  AttentionPlan& plan_;
  Buffer& qkv_;
  const KVCache kv_;
  const int layer_;
  Buffer& attended_;
  int num_threads_ = 1;
};

class Output : public Operation {
 public:
  Output(const Isa& isa, AttentionPlan& plan, Buffer& attended, Buffer& out, Basis basis)
      : isa_(isa), plan_(plan), attended_(attended), out_(out), basis_(basis) {}

  std::string name() const override { return "attention_output"; }

  int begin(const Step&, int num_threads) override {
    num_tiles_ = std::min((int)plan_.query_tiles.size() / plan_.tiles_per_token, num_threads * ITEMS_PER_THREAD / 2);
    return num_tiles_;
  }

  void run(const Step&, int index) override {
    const int64_t num_groups = plan_.query_tiles.size() / plan_.tiles_per_token;
    const int from = (int)(num_groups * index / num_tiles_), to = (int)(num_groups * (index + 1) / num_tiles_);
    for (int i = from * plan_.tiles_per_token; i < to * plan_.tiles_per_token; i++) {
      const QueryTile& tile = plan_.query_tiles[i];
      if (!tile.split) continue;
      float* states = plan_.state(tile.first_state);
      for (int kv_tile = 1; kv_tile < tile.num_kv_tiles(); kv_tile++) {
        const float* from_right = plan_.state(tile.first_state + (size_t)kv_tile * tile.num_rows());
        merge(isa_, tile, plan_.head_dim(), kv_tile, from_right, states);
      }
      finish(isa_, plan_, tile, states, attended_);
    }
    for (int i = from * plan_.tiles_per_token; i < to * plan_.tiles_per_token; i += plan_.tiles_per_token) {
      const QueryTile& tile = plan_.query_tiles[i];
      for (int token = tile.first_token; token < tile.first_token + tile.num_tokens; token++)
        isa_.quantize[(int)basis_](attended_.row<float>(token), plan_.num_heads * plan_.head_dim(),
                                   out_.row<ActivationGroup>(token));
    }
  }

 private:
  const Isa& isa_;
  AttentionPlan& plan_;
  Buffer &attended_, &out_;
  const Basis basis_;
  int num_tiles_ = 0;
};

}  // namespace

std::unique_ptr<Operation> make_attention_plan(AttentionPlan& plan) { return std::make_unique<Plan>(plan); }

std::unique_ptr<Operation> make_attention(const Isa& isa, AttentionPlan& plan, Buffer& qkv, const KVCache& kv,
                                          int layer, Buffer& attended) {
  return std::make_unique<Attention>(isa, plan, qkv, kv, layer, attended);
}

std::unique_ptr<Operation> make_attention_output(const Isa& isa, AttentionPlan& plan, Buffer& attended, Buffer& out,
                                                 Basis basis) {
  return std::make_unique<Output>(isa, plan, attended, out, basis);
}

}  // namespace inflight
