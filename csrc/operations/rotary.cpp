#include "rotary.h"

#include <cmath>

#include "by_rows.h"

namespace inflight {

namespace {

class Angles : public ByRows {
 public:
  Angles(std::vector<float> inverse_frequencies, Buffer& angles)
      : ByRows("angles", Rows::TOKENS), inverse_frequencies_(std::move(inverse_frequencies)), angles_(angles) {}

 protected:
  void run_row(const Step& step, int token) override {
    float *cos = angles_.row<float>(token), *sin = cos + inverse_frequencies_.size();
    for (const float frequency : inverse_frequencies_) {
      const float angle = (float)step.positions[token] * frequency;
      *cos++ = std::cos(angle);
      *sin++ = std::sin(angle);
    }
  }

 private:
  const std::vector<float> inverse_frequencies_;
  Buffer& angles_;
};

class Rotary : public ByRows {
 public:
  Rotary(const Isa& isa, Buffer& qkv, Buffer& angles, const KVCache& kv, int layer, int num_heads)
      : ByRows("rotary", Rows::TOKENS), isa_(isa), qkv_(qkv), angles_(angles), kv_(kv), layer_(layer),
        num_heads_(num_heads), scale_(1.0f / std::sqrt((float)kv.head_dim)) {
    check(kv);
  }

 protected:
  void run_row(const Step& step, int token) override {
    const int head_dim = kv_.head_dim, position = step.positions[token];
    const float* angles = angles_.row<float>(token);
    float* x = qkv_.row<float>(token);
    for (int head = 0; head < num_heads_; head++, x += head_dim) isa_.rotate(x, angles, scale_, head_dim, x);
    const int32_t* blocks = step.sequences[step.sequence_of[token]].blocks;
    const auto store = isa_.store_kv[(int)kv_.format];
    for (int head = 0; head < kv_.num_kv_heads; head++, x += head_dim) {
      alignas(64) float key[MAX_HEAD_DIM];
      isa_.rotate(x, angles, 1.0f, head_dim, key);
      store(key, x + kv_.num_kv_heads * head_dim, head_dim, position % PAGE, kv_.page(layer_, blocks, position, head));
    }
  }

 private:
  const Isa& isa_;
  Buffer &qkv_, &angles_;
  const KVCache kv_;
  const int layer_, num_heads_;
  const float scale_;
};

}  // namespace

std::unique_ptr<Operation> make_angles(std::vector<float> inverse_frequencies, Buffer& angles) {
  return std::make_unique<Angles>(std::move(inverse_frequencies), angles);
}

std::unique_ptr<Operation> make_rotary(const Isa& isa, Buffer& qkv, Buffer& angles, const KVCache& kv, int layer,
                                       int num_heads) {
  return std::make_unique<Rotary>(isa, qkv, angles, kv, layer, num_heads);
}

}  // namespace inflight
