// One step's batch, as the operations of a forward pass see it: T tokens of S sequences, one after the other.
#pragma once
#include <cstdint>
#include <vector>

namespace inflight {

struct Sequence {
  int first_row;            // of its tokens in the batch
  int num_tokens;           // q_len >= 1
  int start;                // position of the first of them; keys and values of [0, start) are stored
  const int32_t* blocks;    // block table; covers [0, start + num_tokens)
};

struct Step {
  std::vector<int32_t> token_ids;    // [T]
  std::vector<int32_t> positions;    // [T]
  std::vector<int32_t> sequence_of;  // [T]: index into sequences
  std::vector<int32_t> logit_rows;   // [R]: rows of [0, T) whose logits are wanted
  std::vector<Sequence> sequences;   // [S]
  std::vector<int32_t> block_tables;

  int num_tokens() const { return (int)token_ids.size(); }
  int num_logits() const { return (int)logit_rows.size(); }
};

}  // namespace inflight
