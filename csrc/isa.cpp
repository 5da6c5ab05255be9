// Compiled once for each instruction set, with INFLIGHT_ISA naming it: the kernels are written once, over the
// primitives of simd/. Everything but the table has internal linkage, so that no body leaks into another's.
#define INFLIGHT_STRING_(x) #x
#define INFLIGHT_STRING(x) INFLIGHT_STRING_(x)
// clang-format off
#include INFLIGHT_SIMD
#include "isa.h"
#include "kernels/math.h"
#include "kernels/quantize.h"
#include "kernels/matmul.h"
#include "kernels/argmax.h"
#include "kernels/attention.h"
#include "kernels/rotary.h"
#include "kernels/peaks.h"
// clang-format on

namespace inflight {

extern const Isa INFLIGHT_TABLE;
const Isa INFLIGHT_TABLE = {
    INFLIGHT_STRING(INFLIGHT_ISA),
    {linear<Int8Group>, linear<Q4Group>},
    {{swiglu<Int8Group, Basis::PLAIN>, swiglu<Int8Group, Basis::ROTATED>},
     {swiglu<Q4Group, Basis::PLAIN>, swiglu<Q4Group, Basis::ROTATED>}},
    {quantize<Basis::PLAIN>, quantize<Basis::ROTATED>},
    {rms_norm_quantize<Basis::PLAIN>, rms_norm_quantize<Basis::ROTATED>},
    argmax,
    MAX_QUERIES,
    {attend<Float32>, attend<Bfloat16>, attend<Int8>},
    merge_states,
    finish_state,
    rotate,
    {store_float32, store_bfloat16, store_int8},
    only_dot,
    only_fma,
    only_read,
};

}  // namespace inflight
