// The Python face of a Program: buffers, weights, and one method for each operation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "operations/attention.h"
#include "operations/rotary.h"
#include "operations/rows.h"
#include "peaks.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace inflight;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Blocks = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

size_t weight_bytes(WeightFormat format, int num_outputs, int num_inputs) {
  return group_bytes(format) * ceil_div(num_inputs, GROUP) * ceil_div(num_outputs, COLUMNS);
}

// Packed weights and the arrays that hold them.
struct PackedWeights {
  Weights weights;
  Bytes groups;
  std::optional<Floats> bias;

  PackedWeights(WeightFormat format, Bytes groups_, int num_outputs, int num_inputs, std::optional<Floats> bias_)
      : weights{format, groups_.data(), num_outputs, num_inputs, bias_ ? bias_->data() : nullptr},
        groups(groups_), bias(bias_) {
    require(num_outputs > 0 && num_inputs > 0, "weights need at least one output and one input");
    require(groups_.nbytes() == weight_bytes(format, num_outputs, num_inputs),
            "the packed weights are not of the size that their shape needs");
    require(!bias_ || (int)bias_->size() == weights.num_blocks() * COLUMNS,
            "the bias is not of the size of the outputs, in whole blocks");
  }
};

// A KV cache and the array that holds it.
struct OwnedKVCache {
  KVCache kv;
  Bytes data;

  OwnedKVCache(KVFormat format, Bytes data_, int num_layers, int num_blocks, int block_size, int num_kv_heads,
               int head_dim)
      : kv{format, data_.data(), num_layers, num_blocks, block_size, num_kv_heads, head_dim}, data(data_) {
    check(kv);
    require(data_.nbytes() == kv.size_bytes(), "the memory is not of the size that the KV cache needs");
  }
  int qkv_size(int num_heads) const { return (num_heads + 2 * kv.num_kv_heads) * kv.head_dim; }
  void check_layer(int layer) const { require(layer >= 0 && layer < kv.num_layers, "the KV cache has no such layer"); }
};

// Checks what arrives from Python, so that no operation has to.
class ForwardPass {
 public:
  ForwardPass(int num_threads, const Isa& isa, int vocab_size, int block_size, int num_blocks)
      : program_(num_threads), isa_(isa), vocab_size_(vocab_size), block_size_(block_size), num_blocks_(num_blocks) {
    require(num_threads > 0, "num_threads must be at least 1");
  }

  Program& program() { return program_; }
  const Isa& isa() const { return isa_; }
  void keep_alive(nb::object object) { kept_.push_back(std::move(object)); }  // an operation points into it

  void check_blocks(const KVCache& kv) const {
    require(kv.block_size == block_size_ && kv.num_blocks == num_blocks_,
            "the KV cache has other blocks than the steps");
  }

  AttentionPlan& add_plan(const KVCache& kv, int num_heads) {
    check_blocks(kv);
    AttentionPlan& plan = *plans_.emplace_back(std::make_unique<AttentionPlan>(isa_, kv, num_heads));
    program_.append(make_attention_plan(plan));
    return plan;
  }

  // The tokens of sequence s are the q_lens[s] next ones, from position starts[s]; its last num_logits[s] want logits.
  // Each sequence's blocks follow those of the one before: as many as its tokens need.
  void run(Ints token_ids, Ints starts, Ints q_lens, Ints num_logits, Ints block_tables) {
    const size_t num_sequences = starts.size();
    require(q_lens.size() == num_sequences && num_logits.size() == num_sequences, "one number for each sequence");
    Step step;
    step.token_ids.assign(token_ids.data(), token_ids.data() + token_ids.size());
    for (const int32_t id : step.token_ids) require(id >= 0 && id < vocab_size_, "a token id is not in the vocabulary");
    step.block_tables.assign(block_tables.data(), block_tables.data() + block_tables.size());
    for (const int32_t id : step.block_tables) require(id >= 0 && id < num_blocks_, "a block is not in the pool");
    size_t row = 0, block = 0;
    for (size_t s = 0; s < num_sequences; s++) {
      const int start = starts(s), q_len = q_lens(s), wanted = num_logits(s);
      require(start >= 0 && q_len >= 1 && wanted >= 0 && wanted <= q_len && start < (1 << 30) && q_len < (1 << 30),
              "a sequence's numbers are out of range");
      const size_t num_blocks = ceil_div(start + q_len, block_size_);
      require(row + q_len <= step.token_ids.size(), "there are fewer tokens than the sequences have");
      require(block + num_blocks <= step.block_tables.size(), "the block tables do not hold the sequences' tokens");
      step.sequences.push_back({(int)row, q_len, start, step.block_tables.data() + block});
      for (int i = 0; i < q_len; i++) {
        step.positions.push_back(start + i);
        step.sequence_of.push_back((int)s);
        if (i >= q_len - wanted) step.logit_rows.push_back((int)row + i);
      }
      row += q_len;
      block += num_blocks;
    }
    require(row == step.token_ids.size() && row > 0, "there must be tokens, and all must be a sequence's");
    nb::gil_scoped_release released;
    program_.run(std::move(step));
  }

 private:
  Program program_;
  const Isa& isa_;
  const int vocab_size_, block_size_, num_blocks_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<nb::object> kept_;
};

void check_buffer(const Buffer& buffer, size_t row_bytes) {
  require(buffer.row_bytes() >= row_bytes, "a buffer's rows are too small for the operation");
}

template <double (*per_s)(const Isa&, int, int64_t, int)>
double measure(const Isa* isa, int num_threads, int64_t num_rounds, int num_tries) {
  require(num_threads > 0 && num_rounds > 0 && num_tries > 0, "all numbers must be at least 1");
  nb::gil_scoped_release released;
  return per_s(*isa, num_threads, num_rounds, num_tries);
}

size_t quantized_bytes(int size) { return sizeof(ActivationGroup) * ceil_div(size, GROUP); }

}  // namespace

NB_MODULE(_kernels, m) {
  nb::enum_<WeightFormat>(m, "WeightFormat").value("INT8", WeightFormat::INT8).value("Q4", WeightFormat::Q4);
  nb::enum_<Basis>(m, "Basis").value("PLAIN", Basis::PLAIN).value("ROTATED", Basis::ROTATED);
  nb::enum_<KVFormat> kv_formats(m, "KVFormat");
#define INFLIGHT_VALUE(name, ...) kv_formats.value(#name, KVFormat::name);
  INFLIGHT_KV_FORMATS(INFLIGHT_VALUE)
#undef INFLIGHT_VALUE
  nb::enum_<BlockFormat>(m, "BlockFormat").value("Q4_0", BlockFormat::Q4_0).value("Q4_1", BlockFormat::Q4_1);
  nb::enum_<Rows>(m, "Rows").value("TOKENS", Rows::TOKENS).value("LOGITS", Rows::LOGITS);
  nb::class_<Isa>(m, "Isa").def_prop_ro("name", [](const Isa& isa) { return std::string(isa.name); });
  m.def("choose_isa", [](std::optional<std::string> limit) { return &choose_isa(limit ? limit->c_str() : nullptr); },
        "limit"_a.none() = nb::none(), nb::rv_policy::reference);
  m.attr("COLUMNS") = COLUMNS;
  m.attr("GROUP") = GROUP;
  m.def("quantized_bytes", &quantized_bytes, "size"_a);
  m.def("weight_bytes", &weight_bytes, "format"_a, "num_outputs"_a, "num_inputs"_a);

  m.def("kv_block_bytes", [](KVFormat format, int num_layers, int block_size, int num_kv_heads, int head_dim) {
    const KVCache kv{format, nullptr, num_layers, 1, block_size, num_kv_heads, head_dim};
    check(kv);
    return kv.size_bytes();
  }, "format"_a, "num_layers"_a, "block_size"_a, "num_kv_heads"_a, "head_dim"_a);

  m.def("pack_int8", [](Matrix rows, Bytes out) {
    const int count = (int)rows.shape(0), num_inputs = (int)rows.shape(1);
    require(out.nbytes() == weight_bytes(WeightFormat::INT8, count, num_inputs), "out is of another size");
    pack_int8(rows.data(), count, num_inputs, out.data());
  }, "rows"_a, "out"_a);
  m.def("pack_blocks", [](WeightFormat format, BlockFormat from, Blocks rows, int num_inputs, Bytes out) {
    const int count = (int)rows.shape(0);
    require(num_inputs > 0 && num_inputs % HALF == 0, "4-bit weights come in blocks of 32 inputs");
    require(rows.shape(1) == num_inputs / HALF * block_bytes(from), "a row is not of the size that its inputs need");
    require(out.nbytes() == weight_bytes(format, count, num_inputs), "out is of another size");
    pack_blocks(format, from, rows.data(), count, num_inputs, out.data());
  }, "format"_a, "blocks"_a, "rows"_a, "num_inputs"_a, "out"_a);

  nb::class_<PackedWeights>(m, "Weights")
      .def(nb::init<WeightFormat, Bytes, int, int, std::optional<Floats>>(), "format"_a, "groups"_a, "num_outputs"_a,
           "num_inputs"_a, "bias"_a.none() = nb::none())
      .def_prop_ro("basis", [](const PackedWeights& self) { return self.weights.basis(); });

  nb::class_<OwnedKVCache>(m, "KVCache")
      .def(nb::init<KVFormat, Bytes, int, int, int, int, int>(), "format"_a, "data"_a, "num_layers"_a, "num_blocks"_a,
           "block_size"_a, "num_kv_heads"_a, "head_dim"_a);
  nb::class_<AttentionPlan>(m, "AttentionPlan");

  nb::class_<Buffer>(m, "Buffer")
      .def_prop_ro("row_bytes", &Buffer::row_bytes)
      .def("rows", [](nb::handle_t<Buffer> self, int num_rows) {  // a view, until the buffer grows
        require(num_rows >= 0, "there cannot be fewer than no rows");
        Buffer& buffer = nb::cast<Buffer&>(self);
        buffer.reserve(num_rows);
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(buffer.row<uint8_t>(0),
                                                            {(size_t)num_rows, buffer.row_bytes()}, self);
      }, "num_rows"_a);

  nb::class_<ForwardPass>(m, "ForwardPass")
      .def("__init__", [](ForwardPass* self, int num_threads, const Isa* isa, int vocab_size, int block_size,
                          int num_blocks) {
        new (self) ForwardPass(num_threads, *isa, vocab_size, block_size, num_blocks);
      }, "num_threads"_a, "isa"_a, "vocab_size"_a, "block_size"_a, "num_blocks"_a)
      .def("buffer", [](ForwardPass& self, size_t row_bytes, Rows rows) -> Buffer& {
        return self.program().new_buffer(row_bytes, rows == Rows::LOGITS);
      }, "row_bytes"_a, "rows"_a = Rows::TOKENS, nb::rv_policy::reference_internal)
      .def("embedding", [](ForwardPass& self, PackedWeights* weights, Buffer& out) {
        check_buffer(out, sizeof(float) * weights->weights.num_inputs);
        self.keep_alive(nb::find(weights));
        self.program().append(make_embedding(weights->weights, out));
      }, "weights"_a, "out"_a)
      .def("rms_norm", [](ForwardPass& self, std::string name, Buffer& x, Floats weight, float eps, Buffer& out,
                          Basis basis, Rows rows) {
        const int size = (int)weight.size();
        check_buffer(x, sizeof(float) * size);
        check_buffer(out, quantized_bytes(size));
        const float* data = weight.data();
        self.keep_alive(nb::cast(weight));
        self.program().append(make_rms_norm(std::move(name), self.isa(), x, data, size, eps, out, basis, rows));
      }, "name"_a, "x"_a, "weight"_a, "eps"_a, "out"_a, "basis"_a, "rows"_a = Rows::TOKENS)
      .def("linear", [](ForwardPass& self, std::string name, Buffer& x, PackedWeights* weights, Buffer& out, bool add,
                        Rows rows) {
        check_buffer(x, quantized_bytes(weights->weights.num_inputs));
        check_buffer(out, sizeof(float) * weights->weights.num_outputs);
        self.keep_alive(nb::find(weights));
        self.program().append(make_linear(std::move(name), self.isa(), weights->weights, x, out, add, rows));
      }, "name"_a, "x"_a, "weights"_a, "out"_a, "add"_a = false, "rows"_a = Rows::TOKENS)
      .def("swiglu", [](ForwardPass& self, std::string name, Buffer& x, PackedWeights* weights, Buffer& out,
                        Basis basis, Rows rows) {
        check_buffer(x, quantized_bytes(weights->weights.num_inputs));
        require(weights->weights.num_outputs % (2 * GROUP) == 0, "gate and up must come in whole groups");
        check_buffer(out, quantized_bytes(weights->weights.num_outputs / 2));
        self.keep_alive(nb::find(weights));
        self.program().append(make_swiglu(std::move(name), self.isa(), weights->weights, x, out, basis, rows));
      }, "name"_a, "x"_a, "weights"_a, "out"_a, "basis"_a, "rows"_a = Rows::TOKENS)
      .def("angles", [](ForwardPass& self, Floats inverse_frequencies, Buffer& out) {
        check_buffer(out, 2 * sizeof(float) * inverse_frequencies.size());
        const float* data = inverse_frequencies.data();
        self.program().append(make_angles({data, data + inverse_frequencies.size()}, out));
      }, "inverse_frequencies"_a, "out"_a)
      .def("rotary", [](ForwardPass& self, Buffer& qkv, Buffer& angles, OwnedKVCache* kv, int layer, int num_heads) {
        self.check_blocks(kv->kv);
        kv->check_layer(layer);
        check_buffer(qkv, sizeof(float) * kv->qkv_size(num_heads));
        check_buffer(angles, sizeof(float) * kv->kv.head_dim);
        self.keep_alive(nb::find(kv));
        self.program().append(make_rotary(self.isa(), qkv, angles, kv->kv, layer, num_heads));
      }, "qkv"_a, "angles"_a, "kv"_a, "layer"_a, "num_heads"_a)
      .def("attention_plan", [](ForwardPass& self, OwnedKVCache* kv, int num_heads) -> AttentionPlan& {
        return self.add_plan(kv->kv, num_heads);
      }, "kv"_a, "num_heads"_a, nb::rv_policy::reference_internal)
      .def("attention", [](ForwardPass& self, AttentionPlan& plan, Buffer& qkv, OwnedKVCache* kv, int layer,
                           Buffer& out) {
        self.check_blocks(kv->kv);
        kv->check_layer(layer);
        require(plan.num_heads == plan.group_heads * kv->kv.num_kv_heads && plan.head_dim() == kv->kv.head_dim,
                "the plan is for a KV cache of other heads");
        require(plan.format == kv->kv.format, "the plan is for a KV cache of another format");
        check_buffer(qkv, sizeof(float) * kv->qkv_size(plan.num_heads));
        check_buffer(out, sizeof(float) * plan.num_heads * kv->kv.head_dim);
        self.keep_alive(nb::find(kv));
        self.program().append(make_attention(self.isa(), plan, qkv, kv->kv, layer, out));
      }, "plan"_a, "qkv"_a, "kv"_a, "layer"_a, "out"_a)
      .def("attention_output", [](ForwardPass& self, AttentionPlan& plan, Buffer& attended, Buffer& out, Basis basis) {
        const int size = plan.num_heads * plan.head_dim();
        check_buffer(attended, sizeof(float) * size);
        check_buffer(out, quantized_bytes(size));
        self.program().append(make_attention_output(self.isa(), plan, attended, out, basis));
      }, "plan"_a, "attended"_a, "out"_a, "basis"_a)
      .def("select", [](ForwardPass& self, Buffer& x, Buffer& out) {
        check_buffer(x, out.row_bytes());
        self.program().append(make_select(x, out));
      }, "x"_a, "out"_a)
      .def("argmax", [](ForwardPass& self, Buffer& x, int size, Buffer& out) {
        check_buffer(x, sizeof(float) * size);
        check_buffer(out, sizeof(int32_t));
        self.program().append(make_argmax(self.isa(), x, size, out));
      }, "x"_a, "size"_a, "out"_a)
      .def("run", &ForwardPass::run, "token_ids"_a, "starts"_a, "q_lens"_a, "num_logits"_a, "block_tables"_a)
      .def("seconds", [](ForwardPass& self) { return self.program().seconds(); });

  m.def("dot_operations_per_s", &measure<dot_operations_per_s>, "isa"_a, "num_threads"_a, "num_rounds"_a,
        "num_tries"_a);
  m.def("fma_operations_per_s", &measure<fma_operations_per_s>, "isa"_a, "num_threads"_a, "num_rounds"_a,
        "num_tries"_a);
  m.def("read_bytes_per_s", [](const Isa* isa, int num_threads, size_t num_bytes, int64_t num_rounds, int num_tries) {
    require(num_threads > 0 && num_bytes > 0 && num_rounds > 0 && num_tries > 0, "all numbers must be at least 1");
    nb::gil_scoped_release released;
    return read_bytes_per_s(*isa, num_threads, num_bytes, num_rounds, num_tries);
  }, "isa"_a, "num_threads"_a, "num_bytes"_a, "num_rounds"_a, "num_tries"_a);
}
