#include "program.h"

#include <sched.h>
#include <sys/mman.h>

#include <new>

#include "clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace inflight {

namespace {

constexpr size_t HUGE_PAGE_BYTES = size_t{2} << 20;
// Where another program wants a core, it gets one now and then between two operations, while the other threads take
// the tiles; otherwise the system would take a core amid a tile, and all would wait for it.
constexpr double SLICE_S = 5e-4;
constexpr int NUM_SPINS = 4000;  // some 50 microseconds: the tail of a tile, far less than a time slice

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

void Buffer::reserve(int rows) {
  if (row_bytes_ * rows <= size_bytes_) return;
  size_bytes_ = (row_bytes_ * rows + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
  memory_.reset((unsigned char*)std::aligned_alloc(HUGE_PAGE_BYTES, size_bytes_));
  if (!memory_) {
    size_bytes_ = 0;
    throw std::bad_alloc();
  }
#if defined(MADV_HUGEPAGE)
  madvise(memory_.get(), size_bytes_, MADV_HUGEPAGE);  // only advice: a failure changes nothing
#endif
}

Buffer& Program::new_buffer(size_t row_bytes, bool of_logits) {
  auto& buffers = of_logits ? logit_buffers_ : token_buffers_;
  return *buffers.emplace_back(std::make_unique<Buffer>(row_bytes));
}

void Program::append(std::unique_ptr<Operation> operation) {
  operations_.push_back(std::move(operation));
  progress_.push_back(std::make_unique<Progress>());
  progress_.back()->seconds = &seconds_[operations_.back()->name()];
}

void Program::run(Step step) {
  step_ = std::move(step);
  for (auto& [name, seconds] : seconds_) seconds = 0;
  for (auto& buffer : token_buffers_) buffer->reserve(step_.num_tokens());
  for (auto& buffer : logit_buffers_) buffer->reserve(step_.num_logits());
  for (size_t i = 0; i < operations_.size(); i++) {
    Progress& progress = *progress_[i];
    progress.num_tiles = operations_[i]->begin(step_, num_threads_);
    progress.next.store(0, std::memory_order_relaxed);
    progress.done.store(0, std::memory_order_relaxed);
  }
  double before_s = now_s();
#pragma omp parallel num_threads(num_threads_)
  work();
  for (auto& progress : progress_) {
    if (progress->num_tiles == 0) continue;
    *progress->seconds += progress->finished_s - before_s;
    before_s = progress->finished_s;
  }
}

void Program::work() {
  double yielded_s = now_s();
  for (size_t i = 0; i < operations_.size(); i++) {
    if (const double s = now_s(); s - yielded_s > SLICE_S) {
      sched_yield();
      yielded_s = s;
    }
    Progress& progress = *progress_[i];
    const int num_tiles = progress.num_tiles;
    for (int tile; (tile = progress.next.fetch_add(1, std::memory_order_relaxed)) < num_tiles;) {
      operations_[i]->run(step_, tile);
      // Whoever ends the last tile tells when; no thread need have seen the others.
      if (progress.done.fetch_add(1, std::memory_order_acq_rel) == num_tiles - 1) progress.finished_s = now_s();
    }
    for (int spins = 0; progress.done.load(std::memory_order_acquire) < num_tiles; spins++) {
      if (spins < NUM_SPINS)
        pause_briefly();
      else
        sched_yield();
    }
  }
}

}  // namespace inflight
