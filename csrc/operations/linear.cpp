#include "linear.h"

#include <algorithm>

namespace inflight {

namespace {

constexpr int MAX_TILE_ROWS = 256;   // their activations stay in a core's cache while the columns pass by
constexpr int TILES_PER_THREAD = 8;  // enough that no thread waits long for the last one
constexpr int BLOCKS_PER_SWIGLU = 2 * GROUP / COLUMNS;

// Tiles are ranges of columns by ranges of rows. How rows are cut changes no bit of them.
class Product : public Operation {
 public:
  Product(std::string name, const Isa& isa, Weights weights, Buffer& x, Rows rows, int unit)
      : isa_(isa), weights_(weights), x_(x), name_(std::move(name)), rows_(rows), unit_(unit) {}

  std::string name() const override { return name_; }

  int begin(const Step& step, int num_threads) override {
    const int rows = count(step, rows_);
    if (rows == 0) return 0;
    num_row_tiles_ = ceil_div(rows, MAX_TILE_ROWS);
    num_threads_ = num_threads;
    const int num_units = weights_.num_blocks() / unit_;
    const int wanted = std::max(1, num_threads * TILES_PER_THREAD / num_row_tiles_);
    units_per_tile_ = std::max(1, num_units / wanted);
    return num_row_tiles_ * ceil_div(num_units, units_per_tile_);
  }

  void run(const Step& step, int tile) override {
    const int rows = count(step, rows_);
    const int row_tile = tile % num_row_tiles_, first_unit = tile / num_row_tiles_ * units_per_tile_;
    const int from = (int)((int64_t)rows * row_tile / num_row_tiles_);
    const int to = (int)((int64_t)rows * (row_tile + 1) / num_row_tiles_);
    const int last_unit = std::min(first_unit + units_per_tile_, weights_.num_blocks() / unit_);
    const int next = (tile + num_threads_) / num_row_tiles_ * units_per_tile_ * unit_;
    const int first = first_unit * unit_, num_blocks = (last_unit - first_unit) * unit_;
    run_product(weights_.product(first, num_blocks, x_.row<ActivationGroup>(from), to - from, next), first, from);
  }

 protected:
  virtual void run_product(const BlockProduct& product, int first_block, int first_row) = 0;

  const Isa& isa_;
  const Weights weights_;
  Buffer& x_;

 private:
  const std::string name_;
  const Rows rows_;
  const int unit_;  // blocks that are computed together
  int num_threads_ = 1, num_row_tiles_ = 1, units_per_tile_ = 1;
};

class Linear : public Product {
 public:
  Linear(std::string name, const Isa& isa, Weights weights, Buffer& x, Buffer& out, bool add, Rows rows)
      : Product(std::move(name), isa, weights, x, rows, 1), out_(out), add_(add) {}

 protected:
  void run_product(const BlockProduct& product, int first_block, int row) override {
    const int at = first_block * COLUMNS, width = weights_.num_outputs - at;
    isa_.linear[(int)weights_.format](product, out_.row<float>(row) + at, out_.row_bytes() / sizeof(float), width,
                                      add_);
  }

 private:
  Buffer& out_;
  const bool add_;
};

class Swiglu : public Product {
 public:
  Swiglu(std::string name, const Isa& isa, Weights weights, Buffer& x, Buffer& out, Basis basis, Rows rows)
      : Product(std::move(name), isa, weights, x, rows, BLOCKS_PER_SWIGLU), out_(out), basis_((int)basis) {}

 protected:
  void run_product(const BlockProduct& product, int first_block, int row) override {
    isa_.swiglu[(int)weights_.format][basis_](product, out_.row<ActivationGroup>(row) + first_block / BLOCKS_PER_SWIGLU,
                                             out_.row_bytes() / sizeof(ActivationGroup));
  }

 private:
  Buffer& out_;
  const int basis_;
};

}  // namespace

std::unique_ptr<Operation> make_linear(std::string name, const Isa& isa, Weights weights, Buffer& x, Buffer& out,
                                       bool add, Rows rows) {
  return std::make_unique<Linear>(std::move(name), isa, weights, x, out, add, rows);
}

std::unique_ptr<Operation> make_swiglu(std::string name, const Isa& isa, Weights weights, Buffer& x, Buffer& out,
                                       Basis basis, Rows rows) {
  return std::make_unique<Swiglu>(std::move(name), isa, weights, x, out, basis, rows);
}

}  // namespace inflight
