#include "rows.h"

#include <algorithm>
#include <cstring>

namespace inflight {

namespace {

constexpr int TILES_PER_THREAD = 4;

// Tiles are ranges of rows.
class ByRows : public Operation {
 public:
  ByRows(std::string name, Rows rows) : rows_(rows), name_(std::move(name)) {}

  std::string name() const override { return name_; }

  int begin(const Step& step, int num_threads) override {
    const int rows = count(step, rows_);
    rows_per_tile_ = std::max(1, rows / (num_threads * TILES_PER_THREAD));
    return ceil_div(rows, rows_per_tile_);
  }

  void run(const Step& step, int tile) override {
    const int to = std::min(count(step, rows_), (tile + 1) * rows_per_tile_);
    for (int row = tile * rows_per_tile_; row < to; row++) run_row(step, row);
  }

 protected:
  virtual void run_row(const Step& step, int row) = 0;

 private:
  const Rows rows_;
  const std::string name_;
  int rows_per_tile_ = 1;
};

class Embedding : public ByRows {
 public:
  Embedding(Weights weights, Buffer& out) : ByRows("embedding", Rows::TOKENS), weights_(weights), out_(out) {}

 protected:
  void run_row(const Step& step, int row) override { weights_.read(step.token_ids[row], out_.row<float>(row)); }

 private:
  const Weights weights_;
  Buffer& out_;
};

class RmsNorm : public ByRows {
 public:
  RmsNorm(std::string name, const Isa& isa, Buffer& x, const float* weight, int size, float eps, Buffer& out,
          Basis basis, Rows rows)
      : ByRows(std::move(name), rows), quantize_(isa.rms_norm_quantize[(int)basis]), x_(x), weight_(weight),
        size_(size), eps_(eps), out_(out) {}

 protected:
  void run_row(const Step&, int row) override {
    quantize_(x_.row<float>(row), weight_, eps_, size_, out_.row<ActivationGroup>(row));
  }

 private:
  void (*const quantize_)(const float*, const float*, float, int, ActivationGroup*);
  Buffer& x_;
  const float* weight_;
  const int size_;
  const float eps_;
  Buffer& out_;
};

class Select : public ByRows {
 public:
  Select(Buffer& x, Buffer& out) : ByRows("select", Rows::LOGITS), x_(x), out_(out) {}

 protected:
  void run_row(const Step& step, int row) override {
    std::memcpy(out_.row<char>(row), x_.row<char>(step.logit_rows[row]), out_.row_bytes());
  }

 private:
  Buffer &x_, &out_;
};

class Argmax : public ByRows {
 public:
  Argmax(const Isa& isa, Buffer& x, int size, Buffer& out)
      : ByRows("argmax", Rows::LOGITS), isa_(isa), x_(x), size_(size), out_(out) {}

 protected:
  void run_row(const Step&, int row) override { *out_.row<int32_t>(row) = isa_.argmax(x_.row<float>(row), size_); }

 private:
  const Isa& isa_;
  Buffer& x_;
  const int size_;
  Buffer& out_;
};

}  // namespace

std::unique_ptr<Operation> make_embedding(Weights weights, Buffer& out) {
  return std::make_unique<Embedding>(weights, out);
}

std::unique_ptr<Operation> make_rms_norm(std::string name, const Isa& isa, Buffer& x, const float* weight, int size,
                                         float eps, Buffer& out, Basis basis, Rows rows) {
  return std::make_unique<RmsNorm>(std::move(name), isa, x, weight, size, eps, out, basis, rows);
}

std::unique_ptr<Operation> make_select(Buffer& x, Buffer& out) { return std::make_unique<Select>(x, out); }

std::unique_ptr<Operation> make_argmax(const Isa& isa, Buffer& x, int size, Buffer& out) {
  return std::make_unique<Argmax>(isa, x, size, out);
}

}  // namespace inflight
