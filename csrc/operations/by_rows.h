// An operation that treats each row by itself: tiles are ranges of rows.
#pragma once
#include <algorithm>

#include "linear.h"

namespace inflight {

class ByRows : public Operation {
 public:
  ByRows(std::string name, Rows rows) : name_(std::move(name)), rows_(rows) {}

  std::string name() const override { return name_; }

  int begin(const Step& step, int num_threads) override {
    const int rows = count(step, rows_);
    rows_per_tile_ = std::clamp(rows / (num_threads * TILES_PER_THREAD), 1, MAX_TILE_ROWS);
    return ceil_div(rows, rows_per_tile_);
  }

  void run(const Step& step, int tile) override {
    const int to = std::min(count(step, rows_), (tile + 1) * rows_per_tile_);
    for (int row = tile * rows_per_tile_; row < to; row++) run_row(step, row);
  }

 protected:
  virtual void run_row(const Step& step, int row) = 0;

 private:
  static constexpr int TILES_PER_THREAD = 4, MAX_TILE_ROWS = 16;

  const std::string name_;
  const Rows rows_;
  int rows_per_tile_ = 1;
};

}  // namespace inflight
