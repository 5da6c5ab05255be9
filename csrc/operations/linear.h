// Matrix products, with what follows them fused in: storing, adding to the residual, or SwiGLU and quantizing.
#pragma once
#include <memory>

#include "../operation.h"
#include "weights.h"

namespace inflight {

enum class Rows { TOKENS, LOGITS };

inline int count(const Step& step, Rows rows) {
  return rows == Rows::TOKENS ? step.num_tokens() : step.num_logits();
}

// out[row][:] = (or += if `add`) x[row] . w + bias; x is quantized, out is float32.
std::unique_ptr<Operation> make_linear(std::string name, const Isa& isa, Weights weights, Buffer& x, Buffer& out,
                                       bool add, Rows rows);

// out[row] = quantize(silu(gate) * up) in the given basis. The weights hold gate and up by turns, GROUP columns of
// each.
std::unique_ptr<Operation> make_swiglu(std::string name, const Isa& isa, Weights weights, Buffer& x, Buffer& out,
                                       Basis basis, Rows rows);

}  // namespace inflight
