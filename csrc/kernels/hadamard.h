// The Walsh-Hadamard transform of 32 numbers: two vectors times the matrix of 1 and -1 that Sylvester's rule makes.
// Done twice, it gives 32 times the numbers.
#pragma once

namespace {

// One stage within each vector: (a, b) -> (a + b, a - b) for lanes N apart.
template <int N>
inline F butterfly(F x) {
  static constexpr auto signs = [] {
    struct { float of[LANES]; } s{};
    for (int i = 0; i < LANES; i++) s.of[i] = i & N ? -1.0f : 1.0f;
    return s;
  }();
  return fma(x, load(signs.of), swap_lanes<N>(x));
}

inline void hadamard(F* x) {
  const F sum = add(x[0], x[1]), difference = sub(x[0], x[1]);
  x[0] = butterfly<1>(butterfly<2>(butterfly<4>(butterfly<8>(sum))));
  x[1] = butterfly<1>(butterfly<2>(butterfly<4>(butterfly<8>(difference))));
}

}  // namespace
