// Seconds on a clock that never goes backwards.
#pragma once
#include <chrono>

namespace inflight {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace inflight
