// Operations on whole rows: embedding, RMS-norm, choice of rows, argmax.
#pragma once
#include <memory>

#include "linear.h"

namespace inflight {

// out[token] = the weights' row of its token id, float32. Ids must be in [0, num_outputs).
std::unique_ptr<Operation> make_embedding(Weights weights, Buffer& out);

// out[i] = quantize(rms_norm(x[i]) * weight).
std::unique_ptr<Operation> make_rms_norm(std::string name, const Isa& isa, Buffer& x, const float* weight, int size,
                                         float eps, Buffer& out, Basis basis, Rows rows);

// out[i] = x[row], byte by byte, for the i-th row whose logits are wanted.
std::unique_ptr<Operation> make_select(Buffer& x, Buffer& out);

// out[i] = place of the largest of `size` numbers of x[i], -1 if one is not finite; rows of logits.
std::unique_ptr<Operation> make_argmax(const Isa& isa, Buffer& x, int size, Buffer& out);

}  // namespace inflight
