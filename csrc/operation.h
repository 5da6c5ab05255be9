// What a forward pass is made of. An operation is cut into tiles that may run in any order and on any thread: each
// writes its own part of the output, and computes it the same way whichever thread it is.
#pragma once
#include <string>

#include "step.h"

namespace inflight {

class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string name() const = 0;
  // Called by one thread before any tile of the step runs, in the order of the operations: plan, and size what the
  // step needs. Returns the number of tiles.
  virtual int begin(const Step& step, int num_threads) = 0;
  virtual void run(const Step& step, int tile) = 0;
};

// Rows of one size; pointers into it are read at run time, because it grows with the largest step so far.
class Buffer {
 public:
  explicit Buffer(size_t row_bytes) : row_bytes_(row_bytes) {}
  Buffer(const Buffer&) = delete;
  void reserve(int rows) {
    if (row_bytes_ * rows > bytes_.size()) bytes_.resize(row_bytes_ * rows);
  }
  template <class T>
  T* row(int index) {
    return (T*)(bytes_.data() + row_bytes_ * index);
  }
  size_t row_bytes() const { return row_bytes_; }
  size_t size_bytes() const { return bytes_.size(); }

 private:
  size_t row_bytes_;
  std::vector<unsigned char> bytes_;
};

}  // namespace inflight
