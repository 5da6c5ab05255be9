// The machine's ceilings, measured with all threads at once: what a kernel's figures are held against.
#pragma once
#include "isa.h"

namespace inflight {

// Of all threads together, the best of num_tries, each of num_rounds; see kernels/peaks.h.
double dot_operations_per_s(const Isa& isa, int num_threads, int64_t num_rounds, int num_tries);
double fma_operations_per_s(const Isa& isa, int num_threads, int64_t num_rounds, int num_tries);
// Each thread reads num_bytes of its own, num_rounds times; they were read before.
double read_bytes_per_s(const Isa& isa, int num_threads, size_t num_bytes, int64_t num_rounds, int num_tries);

}  // namespace inflight
