#include "peaks.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "clock.h"

namespace inflight {

namespace {

// work(thread) returns how much it did; the clock runs from a common start to the end of the last thread.
template <class Work>
double best_per_s(int num_threads, int num_tries, const Work& work) {
  double start_s = 0, total = 0, best = 0;
#pragma omp parallel num_threads(num_threads)
  for (int i = 0; i < num_tries + 1; i++) {  // the first one brings cores up to speed and data into caches
#pragma omp barrier
#pragma omp master
    start_s = now_s(), total = 0;
#pragma omp barrier
    const double done = work(omp_get_thread_num());
#pragma omp atomic
    total += done;
#pragma omp barrier
#pragma omp master
    if (i > 0) best = std::max(best, total / (now_s() - start_s));
  }
  return best;
}

}  // namespace

double dot_operations_per_s(const Isa& isa, int num_threads, int64_t num_rounds, int num_tries) {
  return best_per_s(num_threads, num_tries, [&](int) { return (double)isa.only_dot(num_rounds); });
}

double fma_operations_per_s(const Isa& isa, int num_threads, int64_t num_rounds, int num_tries) {
  return best_per_s(num_threads, num_tries, [&](int) { return (double)isa.only_fma(num_rounds); });
}

double read_bytes_per_s(const Isa& isa, int num_threads, size_t num_bytes, int64_t num_rounds, int num_tries) {
  const std::unique_ptr<unsigned char[]> bytes(new unsigned char[num_bytes * num_threads]);
#pragma omp parallel num_threads(num_threads)
  std::memset(bytes.get() + num_bytes * omp_get_thread_num(), 1, num_bytes);
  return best_per_s(num_threads, num_tries, [&](int thread) {
    double done = 0;
    for (int64_t i = 0; i < num_rounds; i++) done += (double)isa.only_read(bytes.get() + num_bytes * thread, num_bytes);
    return done;
  });
}

}  // namespace inflight
