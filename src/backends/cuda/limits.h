// What plans ask of a device. The defaults are an H200's, for plans without a GPU.
#pragma once

namespace deltaring::cuda {

struct DeviceLimits {
  int capability = 90;  // 10 * major + minor
  int multiprocessors = 132;
  int shared_bytes = 227 * 1024;   // of a block, at most
  int shared_of_all = 228 * 1024;  // of the blocks of a multiprocessor together
  int shared_reserved = 1024;      // of those, what a block takes besides its own
};

}  // namespace deltaring::cuda
