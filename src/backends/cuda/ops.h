// Entry points of the cuda backend; table.cc lists them.
#pragma once
#include "ops/table.h"

namespace deltaring::cuda {

void conv(const ConvArgs& args, Stream& stream);
void gdn_gates(const GdnGatesArgs& args, Stream& stream);
void gdn_verify(const GdnVerifyArgs& args, Stream& stream);
void gdn_prefill(const GdnVerifyArgs& args, Stream& stream);
void gdn_fold(const GdnFoldArgs& args, Stream& stream);
void snapshot_verify(const SnapshotVerifyArgs& args, Stream& stream);
void snapshot_commit(const SnapshotCommitArgs& args, Stream& stream);
void commit(const CommitArgs& args, Stream& stream);
void seat_copy(const SeatCopyArgs& args, Stream& stream);
void seat_pack(const SeatPackArgs& args, Stream& stream);
void seat_unpack(const SeatPackArgs& args, Stream& stream);

}  // namespace deltaring::cuda
