// Packed weights: [num_blocks][num_groups] groups of one format; see formats.h. The memory is the caller's.
#pragma once
#include "../isa.h"

namespace inflight {

inline size_t group_bytes(WeightFormat format) {
  return format == WeightFormat::INT8 ? sizeof(Int8Group) : sizeof(Q4Group);
}

struct Weights {
  WeightFormat format;
  const unsigned char* groups;
  int num_outputs, num_inputs;
  const float* bias;  // [num_blocks][COLUMNS], or null

  Basis basis() const { return format == WeightFormat::INT8 ? Basis::ROTATED : Basis::PLAIN; }  // of activations
  int num_blocks() const { return ceil_div(num_outputs, COLUMNS); }
  int num_groups() const { return ceil_div(num_inputs, GROUP); }
  const unsigned char* block(int index) const { return groups + group_bytes(format) * num_groups() * index; }

  BlockProduct product(int first_block, int num_blocks, const ActivationGroup* x, int num_rows,
                       int next_block) const {
    return {block(first_block), num_blocks, x, num_rows, num_groups(), bias ? bias + first_block * COLUMNS : nullptr,
            next_block < this->num_blocks() ? block(next_block) : nullptr};
  }
  // out[num_inputs] = the weights of one output.
  void read(int output, float* out) const;
};

// Packing writes the blocks of `count` outputs; columns of the last one that are not outputs become zeros.
//
// From float32 [count][num_inputs]: scale = largest magnitude of the rotated half / 127, rounded up to float16.
void pack_int8(const float* rows, int count, int num_inputs, unsigned char* out);

// From GGUF's own blocks of 32: Q4_0 (w = scale * (q - 8)) or Q4_1 (w = scale * q + minimum), [count][num_inputs / 32].
// Q4 keeps them as they are; to INT8 nothing is lost where the rotated numbers fit, but for the rounding of Q4_1's
// minimum to 1 / 64 of the scale.
enum class BlockFormat { Q4_0, Q4_1 };
inline size_t block_bytes(BlockFormat format) { return HALF / 2 + (format == BlockFormat::Q4_0 ? 2 : 4); }
void pack_blocks(WeightFormat format, BlockFormat from, const unsigned char* rows, int count, int num_inputs,
                 unsigned char* out);

}  // namespace inflight
