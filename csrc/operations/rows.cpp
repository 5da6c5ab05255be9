#include "rows.h"

#include <cstring>

#include "by_rows.h"

namespace inflight {

namespace {

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
