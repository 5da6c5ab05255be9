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
#include "kernels/kv_float32.h"
#include "kernels/kv_bfloat16.h"
#include "kernels/kv_int8.h"
#include "kernels/kv_int4.h"
#include "kernels/attention.h"
#include "kernels/rotary.h"
#include "kernels/peaks.h"
// clang-format on

namespace inflight {

#define INFLIGHT_ATTEND(name, Format, ...) attend<Format>,
#define INFLIGHT_FINISH(name, Format, ...) finish_state<Format>,
#define INFLIGHT_STORE(name, Format, ...) Format::store,
#define INFLIGHT_TURN(name, Format, ...) turn_query<Format>,

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
    {INFLIGHT_KV_FORMATS(INFLIGHT_TURN)},
    {INFLIGHT_KV_FORMATS(INFLIGHT_ATTEND)},
    merge_states,
    {INFLIGHT_KV_FORMATS(INFLIGHT_FINISH)},
    rotate,
    {INFLIGHT_KV_FORMATS(INFLIGHT_STORE)},
    only_dot,
    only_fma,
    only_read,
};

}  // namespace inflight
