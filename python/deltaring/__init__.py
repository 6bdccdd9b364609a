"""Gated delta rules through the replay ring: speculative decoding without state snapshots.

A request keeps one checkpoint of its recurrent state and a short ring of the inputs of its last tokens. `gdn_verify`
computes a whole draft window from both, `commit` keeps a prefix of it by moving integers, and rejected tokens need no
undo. Tensors are of any library that speaks DLPack: torch, numpy, cupy. docs/python.md has the guide.
"""

from deltaring._library import DeltaringError, Stream, backends
from deltaring.cursor import check_ring, commit, conv_ring_rows, default_ring_rows, plan_fold
from deltaring.gdn import gdn_fold, gdn_gates, gdn_prefill, gdn_verify
from deltaring.conv import conv
from deltaring.seats import seat_copy, seat_export, seat_export_bytes, seat_import
from deltaring.snapshot import snapshot_commit, snapshot_verify
from deltaring.types import GdnState, Rows, Tensor

__all__ = [
    "DeltaringError",
    "GdnState",
    "Rows",
    "Stream",
    "Tensor",
    "backends",
    "check_ring",
    "commit",
    "conv",
    "conv_ring_rows",
    "default_ring_rows",
    "gdn_fold",
    "gdn_gates",
    "gdn_prefill",
    "gdn_verify",
    "plan_fold",
    "seat_copy",
    "seat_export",
    "seat_export_bytes",
    "seat_import",
    "snapshot_commit",
    "snapshot_verify",
]
