// Entry points of the reference backend; table.cc lists them.
#pragma once
#include "ops/table.h"

namespace deltaring::reference {

void embedding(const EmbeddingArgs& args, Stream& stream);
void linear(const LinearArgs& args, Stream& stream);
void linear_i4(const LinearI4Args& args, Stream& stream);
void contenders(const ContendersArgs& args, Stream& stream);
void swiglu(const SwigluArgs& args, Stream& stream);
void moe_route(const MoeRouteArgs& args, Stream& stream);
void moe_experts(const MoeExpertsArgs& args, Stream& stream);
void rms_norm(const RmsNormArgs& args, Stream& stream);
void gated_rms_norm(const GatedRmsNormArgs& args, Stream& stream);
void rope(const RopeArgs& args, Stream& stream);
void kv_append(const KvAppendArgs& args, Stream& stream);
void attention(const AttentionArgs& args, Stream& stream);
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
void argmax(const ArgmaxArgs& args, Stream& stream);
void probabilities(const ProbabilitiesArgs& args, Stream& stream);
void penalties(const PenaltiesArgs& args, Stream& stream);
void log_probabilities(const LogProbabilitiesArgs& args, Stream& stream);

}  // namespace deltaring::reference
