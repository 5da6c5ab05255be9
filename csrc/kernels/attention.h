// Attention of a few query rows over one tile of keys and values, and the merging of tiles.
//
// A row's scores, weights and sums are computed lane by lane in one fixed order, whichever rows share its registers.
// A value that it must not see is never multiplied, not even by a weight of zero, since it may be a NaN; the scores of
// such tokens are thrown away.
#pragma once
#include "kv_scale.h"

namespace {

using inflight::AttentionTile;
using inflight::KV_TILE;
using inflight::QUERY_STRIDE;
using inflight::STATE_HEADER;
using inflight::state_stride;

constexpr int SCORE_STRIDE = KV_TILE + 16;    // off the powers of two, which share cache sets
constexpr int FEW_QUERIES = MAX_QUERIES / 3;  // so few have registers for four vectors of keys or values, all for two
constexpr int WAITING_QUERIES = 4;            // so few wait for memory, and fetch ahead
static_assert(LANES == PAGE, "a vector holds one dimension of a page's keys");

// A Format (kv_*.h) has a LAYOUT; keys(side, d): dimensions d and d + 1 of a page's tokens; values(row, d): dimensions
// d..d + 15 and d + 16..d + 31 of a token; store: one token's key and value into a page.

inline void prefetch(const unsigned char* p, int num_bytes) {
  for (int i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

// scores[r][token] = q[r] . k[token] for R rows and P pages. Values are fetched meanwhile.
template <class Format, int R, int P>
void score(const float* q, const unsigned char* const* pages, int head_dim, float* scores) {
  constexpr auto layout = Format::LAYOUT;
  constexpr int dimension_bytes = PAGE * layout.bits / 8;
  const int group = layout.scaled ? KV_GROUP : head_dim;
  const size_t value_side = layout.side_bytes(head_dim);
  for (int first = 0; first < head_dim; first += group) {
    F acc[R][P];
    for (auto& row : acc)
      for (auto& a : row) a = zero();
    for (int d = first; d < first + group; d += 2) {
      F keys[P][2];
      for (int p = 0; p < P; p++) {
        Format::keys(pages[p], d, keys[p]);
        if (R <= WAITING_QUERIES && d * dimension_bytes % 64 == 0)
          prefetch(pages[p] + value_side + d * dimension_bytes, 2 * dimension_bytes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) {
          const F x = fill(q[r * QUERY_STRIDE + d + i]);
          for (int p = 0; p < P; p++) acc[r][p] = fma(x, keys[p][i], acc[r][p]);
        }
    }
    for (int p = 0; p < P; p++) {
      float* out = scores + p * PAGE;
      if constexpr (layout.scaled) {
        const F scale = load_scales<Format>(pages[p], head_dim, first);
        for (int r = 0; r < R; r++, out += SCORE_STRIDE)
          store(out, first == 0 ? mul(acc[r][p], scale) : fma(acc[r][p], scale, load(out)));
      } else {
        for (int r = 0; r < R; r++, out += SCORE_STRIDE) store(out, acc[r][p]);
      }
    }
  }
}

// out[r][d] += weights[r][token] * v[token][d] for tokens in [from, to), R rows, and S pairs of vectors of dimensions
// from `first` on; the weights of the next pair are `pair_stride` further. The next tile's keys are fetched meanwhile.
template <class Format, int R, int S>
void weigh(const float* weights, int pair_stride, const AttentionTile& t, int first, int from, int to, float* out) {
  constexpr auto layout = Format::LAYOUT;
  const int stride = state_stride(t.head_dim);
  out += first;
  F acc[R][S][2];
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++)
      for (int i = 0; i < 2; i++) acc[r][s][i] = load(out + r * stride + (2 * s + i) * LANES);
  const int row_bytes = t.head_dim * layout.bits / 8;
  const size_t value_side = layout.side_bytes(t.head_dim);
  while (from < to) {
    const int end = to < (from / PAGE + 1) * PAGE ? to : (from / PAGE + 1) * PAGE;
    const unsigned char* row = t.pages[from / PAGE] + value_side + from % PAGE * row_bytes;
    const unsigned char* next = t.next_pages[from / PAGE] + from % PAGE * row_bytes + first * layout.bits / 8;
    for (; from < end; from++, row += row_bytes, next += row_bytes) {
      if (R <= WAITING_QUERIES) prefetch(next, S * 2 * LANES * layout.bits / 8);
      F values[S][2];
      for (int s = 0; s < S; s++) Format::values(row, first + s * 2 * LANES, values[s]);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int s = 0; s < S; s++) {
          const F x = fill(weights[r * SCORE_STRIDE + (layout.scaled ? s * pair_stride : 0) + from]);
          for (int i = 0; i < 2; i++) acc[r][s][i] = fma(x, values[s][i], acc[r][s][i]);
        }
    }
  }
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++)
      for (int i = 0; i < 2; i++) store(out + r * stride + (2 * s + i) * LANES, acc[r][s][i]);
}

// Scores of n visible tokens -> weights exp(score - top), and zeros up to a whole vector. A score that is not finite
// leaves the sum NaN: -infinity too, which would hide a key's infinity behind a weight of zero.
void soften(float* scores, int n, float* state) {
  F tops = fill(-__builtin_inff()), total = zero();
  if (n % LANES != 0) {
    float* last = scores + n / LANES * LANES;
    store(last, keep_first(load(last), n % LANES, scores[n - 1]));
  }
  for (int i = 0; i < n; i += LANES) {
    const F score = load(scores + i);
    tops = larger(score, tops);
    total = fma(score, zero(), total);
  }
  const float top = largest(tops);
  for (int i = 0; i < n; i += LANES) {
    F weight = exp(sub(load(scores + i), fill(top)));
    if (i + LANES > n) weight = keep_first(weight, n - i, 0.0f);
    total = add(total, weight);
    store(scores + i, weight);
  }
  state[0] = top;
  state[1] = sum(total);
}

// Dimensions [first, last) of the last R rows. Later rows see more: a chunk's last tokens are hidden from its first.
template <class Format, int R>
void weigh_visible(const float* weights, int pair_stride, const AttentionTile& t, int from, int first, int last) {
  const int row = t.num_rows - R, to = t.num_visible[row];
  if (to > from) {
    const float* row_weights = weights + row * SCORE_STRIDE;
    float* out = t.states + row * state_stride(t.head_dim) + STATE_HEADER;
    int d = first;
    if constexpr (R <= FEW_QUERIES)
      for (; d + 4 * LANES <= last; d += 4 * LANES, row_weights += 2 * pair_stride)
        weigh<Format, R, 2>(row_weights, pair_stride, t, d, from, to, out);
    for (; d < last; d += 2 * LANES, row_weights += pair_stride)
      weigh<Format, R, 1>(row_weights, pair_stride, t, d, from, to, out);
    from = to;
  }
  if constexpr (R > 1)
    if (t.num_visible[t.num_rows - 1] > from) weigh_visible<Format, R - 1>(weights, pair_stride, t, from, first, last);
}

template <class Format, int R>
void attend_tile(const AttentionTile& t) {
  alignas(64) float scores[R * SCORE_STRIDE];
  const int num_pages = (t.num_visible[R - 1] + PAGE - 1) / PAGE;
  constexpr int P = R <= FEW_QUERIES ? 4 : 2;
  int page = 0;
  for (; page + P <= num_pages; page += P)
    score<Format, R, P>(t.queries, t.pages + page, t.head_dim, scores + page * PAGE);
  if constexpr (P > 2)
    for (; page + 2 <= num_pages; page += 2)
      score<Format, R, 2>(t.queries, t.pages + page, t.head_dim, scores + page * PAGE);
  for (; page < num_pages; page++)
    score<Format, R, 1>(t.queries, t.pages + page, t.head_dim, scores + page * PAGE);

  for (int r = 0; r < R; r++) {
    if (t.num_visible[r] <= 0) continue;
    float* state = t.states + r * state_stride(t.head_dim);
    soften(scores + r * SCORE_STRIDE, t.num_visible[r], state);
    for (int i = 0; i < t.head_dim; i += LANES) store(state + STATE_HEADER + i, zero());
  }

  if constexpr (Format::LAYOUT.scaled) {
    constexpr int GROUPS = 2;  // at once, as many as `weigh` takes
    alignas(64) float scaled[GROUPS * R * SCORE_STRIDE];
    for (int first = 0; first < t.head_dim; first += GROUPS * KV_GROUP) {
      const int last = first + GROUPS * KV_GROUP < t.head_dim ? first + GROUPS * KV_GROUP : t.head_dim;
      float* out = scaled;
      for (int d = first; d < last; d += KV_GROUP, out += R * SCORE_STRIDE)
        for (int p = 0; p < num_pages; p++) {
          const unsigned char* values = t.pages[p] + Format::LAYOUT.side_bytes(t.head_dim);
          const F scale = load_scales<Format>(values, t.head_dim, d);
          for (int at = p * PAGE; at < R * SCORE_STRIDE; at += SCORE_STRIDE)
            store(out + at, mul(load(scores + at), scale));
        }
      weigh_visible<Format, R>(scaled, R * SCORE_STRIDE, t, 0, first, last);
    }
  } else {
    weigh_visible<Format, R>(scores, 0, t, 0, 0, t.head_dim);
  }
}

template <class Format, int R = MAX_QUERIES>
void attend(const AttentionTile& t) {
  if (t.num_rows == R) return attend_tile<Format, R>(t);
  if constexpr (R > 1) attend<Format, R - 1>(t);
}

// into = the softmax over the tokens of both (Milakov and Gimelshein, arXiv:1805.02867).
void merge_states(const float* from, int head_dim, float* into) {
  const float top = from[0] > into[0] ? from[0] : into[0];
  const F a = exp(sub(fill(into[0]), fill(top))), b = exp(sub(fill(from[0]), fill(top)));
  alignas(64) float sums[LANES];
  store(sums, fma(fill(into[1]), a, mul(fill(from[1]), b)));
  into[0] = top;
  into[1] = sums[0];
  for (int i = STATE_HEADER; i < state_stride(head_dim); i += LANES)
    store(into + i, fma(load(into + i), a, mul(load(from + i), b)));
}

template <class Format>
void finish_state(const float* state, int head_dim, float* out) {
  const F total = fill(state[1]);
  for (int i = 0; i < head_dim; i += KV_GROUP) {
    F x[2];
    for (int j = 0; j < 2; j++) x[j] = div(load(state + STATE_HEADER + i + j * LANES), total);
    if constexpr (Format::LAYOUT.scaled) hadamard(x);
    for (int j = 0; j < 2; j++) store(out + i + j * LANES, x[j]);
  }
}

// A query in the basis of the stored keys.
template <class Format>
void turn_query(const float* x, int head_dim, float* out) {
  for (int i = 0; i < head_dim; i += KV_GROUP) {
    F group[2] = {load(x + i), load(x + i + LANES)};
    if constexpr (Format::LAYOUT.scaled) hadamard(group);
    for (int j = 0; j < 2; j++) store(out + i + j * LANES, group[j]);
  }
}

}  // namespace
