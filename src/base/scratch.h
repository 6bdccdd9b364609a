// Several f32 matrices in one allocation: the scratch of a step. The list of them needs no owner, so that bytes can be
// planned before there is one.
#pragma once
#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "base/view.h"

namespace deltaring {

template <class Owner>
struct ScratchMatrix {
  View<2> Owner::*view;  // set to a dense [rows, columns]
  int64_t rows, columns;
};

template <class Owner>
using ScratchList = std::vector<ScratchMatrix<Owner>>;

// What one matrix takes of an arena, below 2^56. Throws Error(out_of_memory) for more.
int64_t scratch_bytes(int64_t rows, int64_t columns);

template <class Owner>
int64_t scratch_bytes(const ScratchList<Owner>& list) {
  int64_t total = 0;
  for (const ScratchMatrix<Owner>& m : list) total += scratch_bytes(m.rows, m.columns);
  return total;
}

// The arena owns the memory of the owner's views. Throws Error(out_of_memory) naming `purpose`.
template <class Owner>
Arena allocate_scratch(Owner& owner, const ScratchList<Owner>& list, const char* purpose) {
  Arena arena(static_cast<size_t>(scratch_bytes(list)), purpose);
  for (const ScratchMatrix<Owner>& m : list) {
    void* data = arena.take(static_cast<size_t>(scratch_bytes(m.rows, m.columns)));
    owner.*m.view = dense<2>(data, DType::f32, {m.rows, m.columns});
  }
  return arena;
}

}  // namespace deltaring
