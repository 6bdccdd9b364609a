// How long launches take on the current GPU, and what its memory can do.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

#include "ops/table.h"

namespace deltaring::bench {

// Throws Error naming the call.
void ok(cudaError_t status, const char* call);

// Median microseconds of a launch, of nine replays of a graph of `count` of them.
double graph_us(int count, const std::function<void(int, cudaStream_t)>& launch);

// Terabytes a second that move in plain kernels over gigabytes.
struct MemoryRates {
  double read;        // what a verify is held against
  double read_write;  // in place, both ways counted: folds and commits of states
};
MemoryRates memory_rates(const OpTable& table);

}  // namespace deltaring::bench
