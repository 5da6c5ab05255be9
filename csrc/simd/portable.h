// Sixteen lanes in four of the 128-bit vectors of GCC and Clang, for whatever processor they compile for.
//
// Not-a-number, infinity and overflow come out as in the x86 bodies. Integers that may overflow are unsigned inside.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 16;
constexpr int MAX_ROWS = 4;     // rows of a matrix product at once: fewer would unpack the weights more often
constexpr int MAX_QUERIES = 3;  // rows of attention at once
constexpr int UNROLL = 4;       // steps of a product of bytes that are written out; more leave the instruction cache
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));
typedef int16_t I8 __attribute__((vector_size(16)));
typedef uint16_t U8 __attribute__((vector_size(16)));
struct F {
  F4 a, b, c, d;
};
struct I {
  I4 a, b, c, d;
};

template <class Out, class Function, class... Vectors>
inline Out each(Function function, const Vectors&... x) {
  return {function(x.a...), function(x.b...), function(x.c...), function(x.d...)};
}

inline F load(const float* p) {
  F out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
inline void store(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
inline F fill(float x) {
  const F4 four = {x, x, x, x};
  return {four, four, four, four};
}
inline F zero() { return fill(0.0f); }
inline F add(F x, F y) { return each<F>([](F4 a, F4 b) { return a + b; }, x, y); }
inline F sub(F x, F y) { return each<F>([](F4 a, F4 b) { return a - b; }, x, y); }
inline F mul(F x, F y) { return each<F>([](F4 a, F4 b) { return a * b; }, x, y); }
inline F div(F x, F y) { return each<F>([](F4 a, F4 b) { return a / b; }, x, y); }
inline F near_inverse(F x) { return div(fill(1.0f), x); }  // 1 / x to 14 bits or better
// Rounds twice: one rounding would take a call for each lane where the processor has no such instruction.
inline F fma(F x, F y, F z) { return each<F>([](F4 a, F4 b, F4 c) { return a * b + c; }, x, y, z); }
// b where either is NaN
inline F larger(F x, F y) { return each<F>([](F4 a, F4 b) { return a > b ? a : b; }, x, y); }
inline F smaller(F x, F y) { return each<F>([](F4 a, F4 b) { return a < b ? a : b; }, x, y); }
inline F magnitude(F x) { return each<F>([](F4 a) { return (F4)((I4)a & 0x7fffffff); }, x); }

// Numbers of 2**23 or more are whole; adding that to a smaller one rounds it.
inline F4 round_even(F4 a) {
  const I4 size_bits = (I4)a & 0x7fffffff, sign = (I4)a ^ size_bits;
  const F4 size = (F4)size_bits;
  const F4 rounded = size < 8388608.0f ? (size + 8388608.0f) - 8388608.0f : size;
  return (F4)((I4)rounded | sign);
}
inline F round_even(F x) { return each<F>([](F4 a) { return round_even(a); }, x); }

inline I load_i(const void* p) {
  I out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}
inline void store_i(void* p, I x) { std::memcpy(p, &x, sizeof(x)); }
inline I fill_i(int32_t x) {
  const I4 four = {x, x, x, x};
  return {four, four, four, four};
}
inline float first(F x) { return x.a[0]; }
inline I larger_i(I x, I y) { return each<I>([](I4 a, I4 b) { return a > b ? a : b; }, x, y); }
inline I add_i(I x, I y) { return each<I>([](I4 a, I4 b) { return (I4)((U4)a + (U4)b); }, x, y); }
inline I and_i(I x, I y) { return each<I>([](I4 a, I4 b) { return a & b; }, x, y); }
template <int N> inline I shift_left(I x) { return each<I>([](I4 a) { return (I4)((U4)a << N); }, x); }
template <int N> inline I shift_right(I x) {  // zeros come in
  return each<I>([](I4 a) { return (I4)((U4)a >> N); }, x);
}
inline F to_float(I x) { return each<F>([](I4 a) { return __builtin_convertvector(a, F4); }, x); }
// Rounds to nearest, ties to even; INT32_MIN where that is not an int32.
inline I to_int(F x) {
  return each<I>([](F4 a) {
    const F4 rounded = round_even(a), least = F4{} - 2147483648.0f;
    return __builtin_convertvector(((rounded > least) & (rounded < -least)) ? rounded : least, I4);
  }, x);
}
inline F as_float(I x) { return each<F>([](I4 a) { return (F4)a; }, x); }
inline I as_int(F x) { return each<I>([](F4 a) { return (I4)a; }, x); }
#if defined(__x86_64__)
#define IN_REGISTER "+x"
#elif defined(__aarch64__)
#define IN_REGISTER "+w"
#else
#define IN_REGISTER "+m"
#endif
template <class Vector> inline Vector keep(Vector x) {  // x, which the compiler takes for another
  asm volatile("" : IN_REGISTER(x.a), IN_REGISTER(x.b), IN_REGISTER(x.c), IN_REGISTER(x.d));
  return x;
}

// a * 2**n for a near 1 and whole n in [-252, 252]: in two steps, since 2**n alone may not be a number; only the second
// one rounds.
inline F times_power_of_two(F x, F n) {
  return each<F>([](F4 a, I4 whole) {
    const I4 half = whole >> 1, rest = whole - half;
    return a * (F4)((U4)(half + 127) << 23) * (F4)((U4)(rest + 127) << 23);
  }, x, to_int(n));
}

// The even bytes and the odd ones as 16 bits.
inline I8 even_unsigned(I4 a) { return (I8)a & (int16_t)0xff; }
inline I8 odd_unsigned(I4 a) { return (I8)((U8)a >> 8); }
inline I8 even_signed(I4 a) { return (I8)((U8)a << 8) >> 8; }
inline I8 odd_signed(I4 a) { return (I8)a >> 8; }
// The two 16-bit numbers of each lane, added up.
inline I4 add_pairs(I8 a) { return ((I4)((U4)a << 16) >> 16) + ((I4)a >> 16); }

// acc + four products of unsigned and signed bytes in each lane, exact: a product fits 16 bits.
inline I dot(I acc, I u8, I s8) {
  return each<I>([](I4 sum, I4 w, I4 x) {
    const I8 even = even_unsigned(w) * even_signed(x), odd = odd_unsigned(w) * odd_signed(x);
    return sum + add_pairs(even) + add_pairs(odd);
  }, acc, u8, s8);
}
// The same for unsigned bytes up to 15, eight times at most from zero; `small_sums` then gives the sums of the lanes.
// Sums of pairs stay within 16 bits: 8 * 2 * 15 * 128 < 2**15.
inline I dot_small(I acc, I u4, I s8) {
  return each<I>([](I4 sum, I4 w, I4 x) {
    return (I4)((I8)sum + even_unsigned(w) * even_signed(x) + odd_unsigned(w) * odd_signed(x));
  }, acc, u4, s8);
}
inline I small_sums(I acc) { return each<I>([](I4 sum) { return add_pairs((I8)sum); }, acc); }
// Sixteen pairs of bfloat16, as two vectors: the low halves of each 32 bits, and the high ones.
inline void load_bf16_pair(const void* p, F* out) {
  const I both = load_i(p);
  out[0] = as_float(shift_left<16>(both));
  out[1] = as_float(and_i(both, fill_i((int32_t)0xffff0000)));
}
inline F load_bf16(const uint16_t* p) {
  int32_t words[LANES];
  for (int i = 0; i < LANES; i++) words[i] = (int32_t)((uint32_t)p[i] << 16);
  return as_float(load_i(words));
}
// float16 -> float32, exact.
inline F load_f16(const uint16_t* p) {
  int32_t words[LANES];
  for (int i = 0; i < LANES; i++) words[i] = p[i];
  return each<F>([](I4 h) {
    const I4 rest = h & 0x7fff, sign = (I4)((U4)(h ^ rest) << 16), wide = rest << 13;
    const I4 small = (I4)(__builtin_convertvector(rest, F4) * (1.0f / 16777216.0f));
    const I4 normal = wide + (112 << 23);  // 112 = 127 - 15
    const I4 special = wide | 0x7f800000 | ((rest > 0x7c00) & 0x400000);  // infinity; NaN, made quiet
    return (F4)(sign | (rest < 0x400 ? small : rest < 0x7c00 ? normal : special));
  }, load_i(words));
}
// Signed bytes -> whole numbers.
inline I load_i8(const int8_t* p) {
  int32_t words[LANES];
  for (int i = 0; i < LANES; i++) words[i] = p[i];
  return load_i(words);
}
// Sixteen pairs of numbers of 4 bits, less 7.5, as two vectors: the low halves of each byte, and the high ones.
inline void load_u4_pair(const void* p, F* out) {
  const uint8_t* bytes = (const uint8_t*)p;
  int32_t words[LANES];
  for (int i = 0; i < LANES; i++) words[i] = bytes[i];
  const I both = load_i(words);
  out[0] = sub(to_float(and_i(both, fill_i(15))), fill(7.5f));
  out[1] = sub(to_float(shift_right<4>(both)), fill(7.5f));
}
// The low bytes of sixteen whole numbers.
inline void store_i8(int8_t* p, I x) {
  int32_t words[LANES];
  store_i(words, x);
  for (int i = 0; i < LANES; i++) p[i] = (int8_t)words[i];
}

// The first n lanes of x, 1 <= n <= LANES; `other` in the rest, whatever x holds there.
inline F keep_first(F x, int n, float other) {
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < LANES; i++) lanes[i] = i < n ? lanes[i] : other;
  return load(lanes);
}

// Lane i becomes lane i ^ N.
template <int N> inline F swap_lanes(F x) {
  static_assert(N == 1 || N == 2 || N == 4 || N == 8);
  if constexpr (N == 8) return {x.c, x.d, x.a, x.b};
  else if constexpr (N == 4) return {x.b, x.a, x.d, x.c};
  else return each<F>([](F4 a) { return F4{a[0 ^ N], a[1 ^ N], a[2 ^ N], a[3 ^ N]}; }, x);
}

// Lanes are folded in halves: (0..7) with (8..15), and so on. Every body keeps this order.
template <class Vector, class Function>
inline auto fold(const Vector& x, Function function) {
  const auto four = function(function(x.a, x.c), function(x.b, x.d));
  return function(function(four[0], four[2]), function(four[1], four[3]));
}
inline float sum(F x) { return fold(x, [](auto a, auto b) { return a + b; }); }
inline float largest(F x) { return fold(x, [](auto a, auto b) { return a > b ? a : b; }); }

}  // namespace
