// Attention of a few query rows over one tile of keys and values, and the merging of tiles.
//
// A row's scores, weights and sums are computed lane by lane in one fixed order, whichever rows share its registers.
// A value that it must not see is never multiplied, not even by a weight of zero, since it may be a NaN; the scores of
// such tokens are thrown away.
#pragma once
#include "../kv.h"

namespace {

using inflight::AttentionTile;
using inflight::KV_GROUP;
using inflight::KV_TILE;
using inflight::PAGE;
using inflight::QUERY_STRIDE;
using inflight::STATE_HEADER;
using inflight::state_stride;

constexpr int SCORE_STRIDE = KV_TILE + 16;    // off the powers of two, which share cache sets
constexpr int FEW_QUERIES = MAX_QUERIES / 3;  // so few have registers for four vectors of keys or values, all for two
constexpr int WAITING_QUERIES = 4;            // so few wait for memory, and fetch ahead
static_assert(LANES == PAGE, "a vector holds one dimension of a page's keys");

// keys(): dimensions d and d + 1 of a page's tokens. values(): dimensions d..d + 15 and d + 16..d + 31 of a token.
struct Float32 {
  static constexpr int BYTES = 4;
  static constexpr bool SCALED = false;
  static void keys(const unsigned char* page, int d, F* out) {
    const float* p = (const float*)page + d * PAGE;
    out[0] = load(p);
    out[1] = load(p + PAGE);
  }
  static void values(const unsigned char* row, int d, F* out) {
    out[0] = load((const float*)row + d);
    out[1] = load((const float*)row + d + 16);
  }
};

struct Bfloat16 {
  static constexpr int BYTES = 2;
  static constexpr bool SCALED = false;
  static void keys(const unsigned char* page, int d, F* out) { load_bf16_pair(page + d * PAGE * 2, out); }
  static void values(const unsigned char* row, int d, F* out) { load_bf16_pair(row + d * 2, out); }
};

struct Int8 {
  static constexpr int BYTES = 1;
  static constexpr bool SCALED = true;
  static void keys(const unsigned char* page, int d, F* out) {
    const int8_t* p = (const int8_t*)page + d * PAGE;
    out[0] = to_float(load_i8(p));
    out[1] = to_float(load_i8(p + PAGE));
  }
  static void values(const unsigned char* row, int d, F* out) {
    out[0] = to_float(load_i8((const int8_t*)row + d));
    out[1] = to_float(load_i8((const int8_t*)row + d + 16));
  }
  static const float* key_scales(const unsigned char* page, int head_dim) {
    return (const float*)(page + 2 * PAGE * head_dim);
  }
  static const float* value_scales(const unsigned char* page, int head_dim) {
    return key_scales(page, head_dim) + PAGE * (head_dim / KV_GROUP);
  }
};

inline void prefetch(const unsigned char* p, int num_bytes) {
  for (int i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

// scores[r][token] = q[r] . k[token] for R rows and P pages. Values are fetched meanwhile.
template <class Format, int R, int P>
void score(const float* q, const unsigned char* const* pages, int head_dim, float* scores) {
  const int group = Format::SCALED ? KV_GROUP : head_dim;
  for (int first = 0; first < head_dim; first += group) {
    F acc[R][P];
    for (auto& row : acc)
      for (auto& a : row) a = zero();
    for (int d = first; d < first + group; d += 2) {
      F keys[P][2];
      for (int p = 0; p < P; p++) {
        Format::keys(pages[p], d, keys[p]);
        if (R <= WAITING_QUERIES && d * PAGE * Format::BYTES % 64 == 0)
          prefetch(pages[p] + (head_dim + d) * PAGE * Format::BYTES, 2 * PAGE * Format::BYTES);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) {
          const F x = fill(q[r * QUERY_STRIDE + d + i]);
          for (int p = 0; p < P; p++) acc[r][p] = fma(x, keys[p][i], acc[r][p]);
        }
    }
    for (int r = 0; r < R; r++)
      for (int p = 0; p < P; p++) {
        float* out = scores + r * SCORE_STRIDE + p * PAGE;
        if constexpr (Format::SCALED) {
          const F scale = load(Format::key_scales(pages[p], head_dim) + first / KV_GROUP * PAGE);
          store(out, first == 0 ? mul(acc[r][p], scale) : fma(acc[r][p], scale, load(out)));
        } else {
          store(out, acc[r][p]);
        }
      }
  }
}

// out[r][d] += weights[r][token] * v[token][d] for tokens in [from, to), R rows, and S pairs of vectors of dimensions
// from `first` on. The next tile's keys are fetched meanwhile.
template <class Format, int R, int S>
void weigh(const float* weights, const AttentionTile& t, int first, int from, int to, float* out) {
  const int stride = state_stride(t.head_dim);
  out += first;
  F acc[R][S][2];
  for (int r = 0; r < R; r++)
    for (int s = 0; s < S; s++)
      for (int i = 0; i < 2; i++) acc[r][s][i] = load(out + r * stride + (2 * s + i) * LANES);
  const int row_bytes = t.head_dim * Format::BYTES;
  while (from < to) {
    const int end = to < (from / PAGE + 1) * PAGE ? to : (from / PAGE + 1) * PAGE;
    const unsigned char* row = t.pages[from / PAGE] + (PAGE + from % PAGE) * row_bytes;
    const unsigned char* next = t.next_pages[from / PAGE] + from % PAGE * row_bytes + first * Format::BYTES;
    for (; from < end; from++, row += row_bytes, next += row_bytes) {
      if (R <= WAITING_QUERIES) prefetch(next, S * 2 * LANES * Format::BYTES);
      F values[S][2];
      for (int s = 0; s < S; s++) Format::values(row, first + s * 2 * LANES, values[s]);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const F x = fill(weights[r * SCORE_STRIDE + from]);
        for (int s = 0; s < S; s++)
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
void weigh_visible(const float* weights, const AttentionTile& t, int from, int first, int last) {
  const int row = t.num_rows - R, to = t.num_visible[row];
  if (to > from) {
    const float* row_weights = weights + row * SCORE_STRIDE;
    float* out = t.states + row * state_stride(t.head_dim) + STATE_HEADER;
    int d = first;
    if constexpr (R <= FEW_QUERIES)
      for (; d + 4 * LANES <= last; d += 4 * LANES) weigh<Format, R, 2>(row_weights, t, d, from, to, out);
    for (; d < last; d += 2 * LANES) weigh<Format, R, 1>(row_weights, t, d, from, to, out);
    from = to;
  }
  if constexpr (R > 1)
    if (t.num_visible[t.num_rows - 1] > from) weigh_visible<Format, R - 1>(weights, t, from, first, last);
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

  if constexpr (Format::SCALED) {
    alignas(64) float scaled[R * SCORE_STRIDE];
    for (int d = 0; d < t.head_dim; d += KV_GROUP) {
      for (int p = 0; p < num_pages; p++) {
        const F scale = load(Format::value_scales(t.pages[p], t.head_dim) + d / KV_GROUP * PAGE);
        for (int at = p * PAGE; at < R * SCORE_STRIDE; at += SCORE_STRIDE)
          store(scaled + at, mul(load(scores + at), scale));
      }
      weigh_visible<Format, R>(scaled, t, 0, d, d + KV_GROUP);
    }
  } else {
    weigh_visible<Format, R>(scores, t, 0, 0, t.head_dim);
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

void finish_state(const float* state, int head_dim, float* out) {
  const F total = fill(state[1]);
  for (int i = 0; i < head_dim; i += LANES) store(out + i, div(load(state + STATE_HEADER + i), total));
}

}  // namespace
