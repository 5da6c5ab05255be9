// Which body of the kernels this processor runs.
#include <stdexcept>
#include <string>

#include "isa.h"
#ifdef INFLIGHT_X86
#include <cpuid.h>
#endif

namespace inflight {

// Filled by isa.cpp, compiled once for each.
#ifdef INFLIGHT_X86
extern const Isa ISA_AVX512, ISA_AVX2;
#endif
extern const Isa ISA_PORTABLE;

namespace {

const char* const NAMES[] = {"portable", "avx2", "avx512_vnni"};  // from the slowest to the fastest
constexpr int NUM_NAMES = 3;

int level(const char* limit) {
  if (limit == nullptr) return NUM_NAMES - 1;
  std::string known;
  for (int i = NUM_NAMES - 1; i >= 0; i--) {
    if (limit == std::string(NAMES[i])) return i;
    known += std::string(i == NUM_NAMES - 1 ? "" : ", ") + NAMES[i];
  }
  throw std::invalid_argument("unknown instruction set '" + std::string(limit) + "'; known are " + known);
}

}  // namespace

const Isa& choose_isa(const char* limit) {
  const int highest = level(limit);
#ifdef INFLIGHT_X86
  // The builtin asks, too, whether the operating system saves the wider registers. Not every compiler's knows "f16c".
  unsigned eax, ebx, ecx, edx;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx512 && highest >= 2) return ISA_AVX512;
  if (avx2 && highest >= 1) return ISA_AVX2;
#else
  (void)highest;
#endif
  return ISA_PORTABLE;
}

}  // namespace inflight
