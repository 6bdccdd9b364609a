// Several f32 matrices in one allocation: the scratch of a step.
#pragma once
#include <initializer_list>

#include "base/arena.h"
#include "base/view.h"

namespace deltaring {

struct ScratchMatrix {
  View<2>* view;  // set to a dense [rows, columns]
  int64_t rows, columns;
};

// The arena owns the memory of the views. Throws Error(out_of_memory) naming `purpose`.
Arena allocate_scratch(std::initializer_list<ScratchMatrix> matrices, const char* purpose);

}  // namespace deltaring
