"""Rollback by state snapshots, the ordinary way and the baseline of the ring: a verify leaves one whole state per window
token, and the commit copies the one behind the last accepted token back. Same math, arguments as in deltaring.gdn."""

from typing import Optional

from deltaring._library import NORM, Op, Stream, code
from deltaring.types import ROWS, Rows, Tensor, expect

_TOKENS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias")
_verify = Op("snapshot_verify", *ROWS, *_TOKENS, "state", "snapshots", "norm", "scale", "out")
_commit = Op("snapshot_commit", *ROWS, "kept", "state", "snapshots")


def snapshot_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    rows: Rows,
    state: Tensor,
    out: Tensor,
    snapshots: Optional[Tensor] = None,
    A_log: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    norm: str = "l2",
    scale: float = 0.0,
    stream: Optional[Stream] = None,
) -> None:
    """Outputs of every token from the state behind token first-1.

    With snapshots the state stays and slot i of the row's seat receives the state behind token first+i. Without, every
    token is accepted: plain decoding and prefill, and the state moves to the end of the row.

    rows: start, seat, first are used
    state: [seats, Hv, V, K] float32, bfloat16 or float16
    snapshots: [seats, slots, Hv, V, K] of the dtype of state, slots >= the longest row, or None
    The others are those of `gdn_verify`. Raises DeltaringError naming the argument, before anything is written.

    >>> import numpy
    >>> rows = Rows(start=numpy.int32([0, 1]), seat=numpy.int32([0]), first=numpy.int64([0]))
    >>> q = k = numpy.ones((1, 1, 4), "float32")
    >>> v, out, state = numpy.ones((1, 1, 2), "float32"), numpy.empty((1, 1, 2), "float32"), numpy.zeros((1, 1, 2, 4), "float32")
    >>> g, beta = numpy.zeros((1, 1, 1), "float32"), numpy.ones((1, 1), "float32")
    >>> snapshot_verify(q, k, v, g, beta, rows=rows, state=state, out=out)
    >>> state.round(3).tolist()
    [[[[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]]]
    """
    rows, norm = expect("snapshot_verify", rows, Rows), code("snapshot_verify", "norm", norm, NORM)
    _verify(stream, *rows, q, k, v, g, beta, A_log, dt_bias, state, snapshots, norm, scale, out)


def snapshot_commit(
    kept: Tensor, *, rows: Rows, state: Tensor, snapshots: Tensor, stream: Optional[Stream] = None
) -> None:
    """The state of each row's seat becomes snapshot kept - 1.

    kept: [B] int32 in [0, slots]; 0 leaves the state
    rows: seat is used
    state, snapshots: those of the verify
    Raises DeltaringError naming the argument, before anything is written.

    >>> import numpy
    >>> state, snapshots = numpy.zeros((1, 1, 1, 2), "float32"), numpy.float32([[[[[1, 2]]], [[[3, 4]]]]])
    >>> snapshot_commit(numpy.int32([2]), rows=Rows(seat=numpy.int32([0])), state=state, snapshots=snapshots)
    >>> state.tolist()
    [[[[3.0, 4.0]]]]
    """
    _commit(stream, *expect("snapshot_commit", rows, Rows), kept, state, snapshots)
