// What a forward pass is made of. An operation is cut into tiles that may run in any order and on any thread: each
// writes its own part of the output, and computes it the same way whichever thread it is.
#pragma once
#include <cstdlib>
#include <memory>
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
  void reserve(int rows);  // throws std::bad_alloc; what the rows held is lost
  template <class T>
  T* row(int index) {
    return (T*)(memory_.get() + row_bytes_ * index);
  }
  size_t row_bytes() const { return row_bytes_; }

 private:
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  const size_t row_bytes_;
  size_t size_bytes_ = 0;
  std::unique_ptr<unsigned char, Free> memory_;
};

}  // namespace inflight
