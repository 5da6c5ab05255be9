// A forward pass as a list of operations, run in one parallel region.
//
// Tiles of an operation are handed out one by one, so a thread that the system has taken off its core holds up no more
// than the tile it was at; the others wait for the last tile by spinning briefly, then by yielding their core.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "operation.h"

namespace inflight {

class Program {
 public:
  explicit Program(int num_threads) : num_threads_(num_threads) {}
  Program(const Program&) = delete;

  // Rows of `row_bytes`; as many as the step has tokens, or rows that want logits.
  Buffer& new_buffer(size_t row_bytes, bool of_logits = false);
  void append(std::unique_ptr<Operation> operation);
  void run(Step step);

  // Of the last run: seconds from the end of the operation before to its own end, by name.
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  struct alignas(128) Progress {
    std::atomic<int> next{0}, done{0};
    int num_tiles = 0;
    double finished_s = 0;
    double* seconds = nullptr;  // in seconds_, shared by all operations of one name
  };
  void work();

  int num_threads_;
  Step step_;
  std::vector<std::unique_ptr<Buffer>> token_buffers_, logit_buffers_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<std::unique_ptr<Progress>> progress_;
  std::map<std::string, double> seconds_;
};

}  // namespace inflight
