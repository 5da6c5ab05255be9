// Rotary positions (Su et al., arXiv:2104.09864), in the half-split layout, and the writing of keys and values.
#pragma once
#include <memory>

#include "../isa.h"
#include "../operation.h"

namespace inflight {

// angles[token] = cos, then sin, of position * inverse_frequencies [head_dim / 2]; float32 rows of head_dim.
std::unique_ptr<Operation> make_angles(std::vector<float> inverse_frequencies, Buffer& angles);

// Rows of qkv are float32 [num_heads + 2 * num_kv_heads][head_dim]. Queries are turned in place and scaled by
// head_dim^-0.5; keys are turned, and stored with the values where the block tables say.
std::unique_ptr<Operation> make_rotary(const Isa& isa, Buffer& qkv, Buffer& angles, const KVCache& kv, int layer,
                                       int num_heads);

}  // namespace inflight
