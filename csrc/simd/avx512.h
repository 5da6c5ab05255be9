// Sixteen lanes in one register: AVX-512 F, BW, DQ, VL and VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int LANES = 16;
constexpr int MAX_ROWS = 8;       // rows of a matrix product that fit into the registers, at two vectors of columns
constexpr int MAX_QUERIES = 12;   // rows of attention that fit, at two vectors of keys
constexpr int UNROLL = 16;        // steps of a product of bytes that are written out
using F = __m512;
using I = __m512i;

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
inline F fill(float a) { return _mm512_set1_ps(a); }
inline F zero() { return _mm512_setzero_ps(); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F near_inverse(F a) { return _mm512_rcp14_ps(a); }  // 1 / a to 14 bits or better
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F larger(F a, F b) { return _mm512_max_ps(a, b); }   // b where either is NaN
inline F smaller(F a, F b) { return _mm512_min_ps(a, b); }  // b where either is NaN
inline F magnitude(F a) { return _mm512_abs_ps(a); }
inline F round_even(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F times_power_of_two(F a, F n) { return _mm512_scalef_ps(a, n); }  // a * 2**n, n a whole number

inline I load_i(const void* p) { return _mm512_loadu_si512(p); }
inline void store_i(void* p, I a) { _mm512_storeu_si512(p, a); }
inline I fill_i(int32_t a) { return _mm512_set1_epi32(a); }
inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
inline I and_i(I a, I b) { return _mm512_and_si512(a, b); }
template <int N> inline I shift_left(I a) { return _mm512_slli_epi32(a, N); }
template <int N> inline I shift_right(I a) { return _mm512_srli_epi32(a, N); }  // zeros come in
inline I larger_i(I a, I b) { return _mm512_max_epi32(a, b); }
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I to_int(F a) { return _mm512_cvtps_epi32(a); }  // rounds to nearest, ties to even
inline F as_float(I a) { return _mm512_castsi512_ps(a); }
inline I as_int(F a) { return _mm512_castps_si512(a); }
// a, which the compiler takes for another.
inline F keep(F a) { asm volatile("" : "+v"(a)); return a; }
inline I keep(I a) { asm volatile("" : "+v"(a)); return a; }

// acc + four products of unsigned and signed bytes in each lane, exact.
inline I dot(I acc, I u8, I s8) { return _mm512_dpbusd_epi32(acc, u8, s8); }
// The same for unsigned bytes up to 15, eight times at most from zero; `small_sums` then gives the sums of the lanes.
inline I dot_small(I acc, I u4, I s8) { return dot(acc, u4, s8); }
inline I small_sums(I acc) { return acc; }
// Sixteen pairs of bfloat16, as two vectors: the low halves of each 32 bits, and the high ones.
inline void load_bf16_pair(const void* p, F* out) {
  const I both = load_i(p);
  out[0] = as_float(shift_left<16>(both));
  out[1] = as_float(and_i(both, fill_i((int32_t)0xffff0000)));
}
inline F load_bf16(const uint16_t* p) {
  return as_float(shift_left<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))));
}
// Signed bytes -> whole numbers.
inline I load_i8(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)); }
// Sixteen pairs of numbers of 4 bits, less 7.5, as two vectors: the low halves of each byte, and the high ones.
inline void load_u4_pair(const void* p, F* out) {
  const I both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  const F table = _mm512_setr_ps(-7.5f, -6.5f, -5.5f, -4.5f, -3.5f, -2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f, 3.5f, 4.5f,
                                 5.5f, 6.5f, 7.5f);
  out[0] = _mm512_permutexvar_ps(both, table);  // by the low 4 bits of each lane
  out[1] = _mm512_permutexvar_ps(shift_right<4>(both), table);
}
// The first n lanes of a, 1 <= n <= LANES; `other` in the rest, whatever a holds there.
inline F keep_first(F a, int n, float other) {
  return _mm512_mask_mov_ps(fill(other), (__mmask16)(0xffff >> (16 - n)), a);
}
// float16 -> float32, exact.
inline F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
// The low bytes of sixteen whole numbers.
inline void store_i8(int8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }

// Lane i takes lane i ^ N.
template <int N> inline F swap_lanes(F a) {
  if (N == 8) return _mm512_shuffle_f32x4(a, a, _MM_SHUFFLE(1, 0, 3, 2));
  if (N == 4) return _mm512_shuffle_f32x4(a, a, _MM_SHUFFLE(2, 3, 0, 1));
  return _mm512_permute_ps(a, N == 2 ? _MM_SHUFFLE(1, 0, 3, 2) : _MM_SHUFFLE(2, 3, 0, 1));
}
inline float first(F a) { return _mm512_cvtss_f32(a); }
// Lanes are folded in halves: (0..7) with (8..15), and so on. Every body keeps this order.
inline float sum(F a) {
  __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float largest(F a) {
  __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  c = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

}  // namespace
