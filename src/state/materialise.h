// Plain states from checkpoints and records.
#pragma once
#include <span>

#include "ops/table.h"
#include "state/pool.h"

namespace deltaring {

// Folds all records of the owned seats, so that their checkpoints stand at pos: what FoldPolicy::every does behind each
// commit, and what engines that keep plain states take. Under grid a seat whose pos is no multiple of F has left the
// grid: it can be exported and freed, and verify refuses it. Returns how many seats had records.
int64_t materialise(StatePool& pool, std::span<const int32_t> seats, const OpTable& ops, Stream& stream,
                    QkNorm norm = QkNorm::l2);

}  // namespace deltaring
