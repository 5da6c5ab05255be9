// Sixteen lanes in two registers: AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int LANES = 16;
constexpr int MAX_ROWS = 4;     // rows of a matrix product at once: fewer would unpack the weights more often
constexpr int MAX_QUERIES = 3;  // rows of attention that fit into the registers, at two vectors of keys
constexpr int UNROLL = 4;       // steps of a product of bytes that are written out; more leave the instruction cache
struct F {
  __m256 low, high;
};
struct I {
  __m256i low, high;
};

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F a) { _mm256_storeu_ps(p, a.low), _mm256_storeu_ps(p + 8, a.high); }
inline F fill(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline F near_inverse(F a) { return div(fill(1.0f), a); }  // 1 / a to 14 bits or better; the fast one has 12
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
// b where either is NaN
inline F larger(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F smaller(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline F magnitude(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline F round_even(F a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}

inline I load_i(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
inline void store_i(void* p, I a) {
  _mm256_storeu_si256((__m256i*)p, a.low), _mm256_storeu_si256((__m256i*)p + 1, a.high);
}
inline I fill_i(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
inline I larger_i(I a, I b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
inline float first(F a) { return _mm256_cvtss_f32(a.low); }
inline I add_i(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline I and_i(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
template <int N> inline I shift_left(I a) { return {_mm256_slli_epi32(a.low, N), _mm256_slli_epi32(a.high, N)}; }
template <int N> inline I shift_right(I a) {  // zeros come in
  return {_mm256_srli_epi32(a.low, N), _mm256_srli_epi32(a.high, N)};
}
template <int N> inline I shift_right_signed(I a) {  // the sign comes in
  return {_mm256_srai_epi32(a.low, N), _mm256_srai_epi32(a.high, N)};
}
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline I to_int(F a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }  // ties to even
inline F as_float(I a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
inline I as_int(F a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
// a, which the compiler takes for another.
inline F keep(F a) { asm volatile("" : "+x"(a.low), "+x"(a.high)); return a; }
inline I keep(I a) { asm volatile("" : "+x"(a.low), "+x"(a.high)); return a; }

// a * 2**n for a near 1 and whole n in [-252, 252]: in two steps, since 2**n alone may not be a number; only the second
// one rounds.
inline F times_power_of_two(F a, F n) {
  const I whole = to_int(n), half = shift_right_signed<1>(whole);
  const I rest = {_mm256_sub_epi32(whole.low, half.low), _mm256_sub_epi32(whole.high, half.high)};
  const I bias = fill_i(127);
  return mul(mul(a, as_float(shift_left<23>(add_i(half, bias)))), as_float(shift_left<23>(add_i(rest, bias))));
}

// acc + four products of unsigned and signed bytes in each lane, exact: bytes are widened to 16 bits, odd ones and even
// ones, because vpmaddubsw would saturate.
inline __m256i dot(__m256i acc, __m256i u8, __m256i s8) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u8, _mm256_set1_epi16(0xff)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(s8, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u8, 8), _mm256_srai_epi16(s8, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
inline I dot(I acc, I u8, I s8) { return {dot(acc.low, u8.low, s8.low), dot(acc.high, u8.high, s8.high)}; }
// The same for unsigned bytes up to 15, eight times at most from zero; `small_sums` then gives the sums of the lanes.
// Sums of pairs stay within 16 bits: 8 * 2 * 15 * 128 < 2**15.
inline I dot_small(I acc, I u4, I s8) {
  return {_mm256_add_epi16(acc.low, _mm256_maddubs_epi16(u4.low, s8.low)),
          _mm256_add_epi16(acc.high, _mm256_maddubs_epi16(u4.high, s8.high))};
}
inline I small_sums(I acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(acc.low, ones), _mm256_madd_epi16(acc.high, ones)};
}
// Sixteen pairs of bfloat16, as two vectors: the low halves of each 32 bits, and the high ones.
inline void load_bf16_pair(const void* p, F* out) {
  const I both = load_i(p);
  out[0] = as_float(shift_left<16>(both));
  out[1] = as_float(and_i(both, fill_i((int32_t)0xffff0000)));
}
inline F load_bf16(const uint16_t* p) {
  const __m128i *low = (const __m128i*)p, *high = low + 1;
  return as_float(shift_left<16>({_mm256_cvtepu16_epi32(_mm_loadu_si128(low)),
                                  _mm256_cvtepu16_epi32(_mm_loadu_si128(high))}));
}
// float16 -> float32, exact.
inline F load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
// Signed bytes -> whole numbers.
inline I load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
inline I load_u8(const void* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
// Sixteen pairs of numbers of 4 bits, less 7.5, as two vectors: the low halves of each byte, and the high ones.
inline void load_u4_pair(const void* p, F* out) {
  const I both = load_u8(p);
  out[0] = sub(to_float(and_i(both, fill_i(15))), fill(7.5f));
  out[1] = sub(to_float(shift_right<4>(both)), fill(7.5f));
}
// The low bytes of sixteen whole numbers.
inline void store_i8(int8_t* p, I a) {
  a = and_i(a, fill_i(0xff));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.low, a.high), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// The first n lanes of a, 1 <= n <= LANES; `other` in the rest, whatever a holds there.
inline F keep_first(F a, int n, float other) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 rest = _mm256_set1_ps(other);
  return {_mm256_blendv_ps(rest, a.low, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes))),
          _mm256_blendv_ps(rest, a.high, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes)))};
}

// Lane i becomes lane i ^ N.
template <int N> inline F swap_lanes(F a) {
  static_assert(N == 1 || N == 2 || N == 4 || N == 8);
  if constexpr (N == 8) return {a.high, a.low};
  else if constexpr (N == 4)
    return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
  else return {_mm256_permute_ps(a.low, N == 2 ? 0x4e : 0xb1), _mm256_permute_ps(a.high, N == 2 ? 0x4e : 0xb1)};
}

// Lanes are folded in halves: (0..7) with (8..15), and so on. Every body keeps this order.
inline float sum(F a) {
  const __m256 b = _mm256_add_ps(a.low, a.high);
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float largest(F a) {
  const __m256 b = _mm256_max_ps(a.low, a.high);
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

}  // namespace
