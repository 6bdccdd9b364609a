"""The gated delta rule over checkpoint, ring and window.

    g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)
    q^ = q / sqrt(sum q^2 + 1e-6) * scale,  k^ = k / sqrt(sum k^2 + 1e-6)
    S <- S e^g;  d = beta (v - S k^);  S <- S + d k^T;  o = S q^

Symbols as in deltaring.types. q, k, v are the outputs of conv + SiLU; value head j uses key head j / (Hv/Hk).
"""

from typing import Optional

from deltaring._library import NORM, Op, Stream, code
from deltaring.types import ROWS, STATE, GdnState, Rows, Tensor, expect

_WINDOW = (*ROWS, "q", "k", "v", "g", "beta", "A_log", "dt_bias", *STATE, "grain", "norm", "scale", "out", "bit_exact")
_gates = Op("gdn_gates", "a", "b", "A_log", "dt_bias", "g", "beta")
_verify = Op("gdn_verify", *_WINDOW)
_prefill = Op("gdn_prefill", *_WINDOW)
_fold = Op("gdn_fold", *ROWS, *STATE, "grain", "norm", "layers")


def gdn_gates(
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    g: Tensor,
    beta: Tensor,
    stream: Optional[Stream] = None,
) -> None:
    """Writes g and beta from raw gates, once for every token. `gdn_verify` does it itself when given A_log and dt_bias.

    a: [tokens, Hv, G] float32
    b: [tokens, Hv] float32
    A_log: [Hv] float32, contiguous
    dt_bias: [Hv, G] float32, contiguous
    g: out [tokens, Hv, G] float32
    beta: out [tokens, Hv] float32
    Raises DeltaringError naming the argument that does not fit.

    >>> import numpy
    >>> a, b = numpy.zeros((1, 2, 1), "float32"), numpy.zeros((1, 2), "float32")
    >>> g, beta = numpy.empty_like(a), numpy.empty_like(b)
    >>> gdn_gates(a, b, A_log=numpy.zeros(2, "float32"), dt_bias=numpy.zeros((2, 1), "float32"), g=g, beta=beta)
    >>> numpy.allclose(g, -numpy.log(2)), beta.tolist()
    (True, [[0.5, 0.5]])
    """
    _gates(stream, a, b, A_log, dt_bias, g, beta)


def gdn_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    rows: Rows,
    state: GdnState,
    out: Tensor,
    A_log: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    grain: int = 8,
    norm: str = "l2",
    scale: float = 0.0,
    bit_exact: bool = False,
    stream: Optional[Stream] = None,
) -> None:
    """Outputs of a draft window, and of plain decoding, which is a window of one token.

    Computes every token of every row from the checkpoint, the records [folded, first) and the row itself, appends the
    row's records, and moves the checkpoint to fold_to where that is due. Moves no cursor: `commit` does, and what it does
    not keep is overwritten by the next window. On the host, and with bit_exact elsewhere, outputs and checkpoints are a
    function of the tokens alone: the same bits for every window, acceptance and batch.

    q, k: [tokens, Hk, K] float32, bfloat16 or float16
    v: [tokens, Hv, V] of the dtype of q and k
    g: [tokens, Hv, G] float32, log decay <= 0; with A_log raw a, float32, bfloat16 or float16
    beta: [tokens, Hv] float32; with A_log raw b, of the dtype of a
    rows: folded <= fold_to <= first, and first - folded + length <= R
    state: read; records and, where fold_to > folded, checkpoints are written
    out: out [tokens, Hv, V] float32, bfloat16 or float16
    A_log: [Hv] float32, contiguous, or None: g and beta are given as they are used
    dt_bias: [Hv, G] float32, contiguous, with A_log
    grain: F, 8 or 16; 0 off the grid (policy "every")
    norm: "l2" as above, or "none", which takes q and k as they are
    scale: of q; 0 = K^-1/2
    bit_exact: asks a device for the same bits behind a grid point inside the window too
    Raises DeltaringError naming the argument, before anything is written; on a device the values of rows are not seen,
    and a row with impossible ones is taken for one without a seat.

    >>> import numpy
    >>> state = GdnState.allocate(numpy.zeros, seats=1, Hk=1, Hv=1, K=4, V=2, R=16, checkpoint="float32",
    ...                           record="float32", float32="float32")
    >>> rows = Rows(start=numpy.int32([0, 3]), seat=numpy.int32([0]), first=numpy.int64([0]), folded=numpy.int64([0]),
    ...             fold_to=numpy.int64([0]))
    >>> q = k = numpy.ones((3, 1, 4), "float32")
    >>> v, out = numpy.ones((3, 1, 2), "float32"), numpy.empty((3, 1, 2), "float32")
    >>> g, beta = numpy.zeros((3, 1, 1), "float32"), numpy.ones((3, 1), "float32")
    >>> gdn_verify(q, k, v, g, beta, rows=rows, state=state, out=out)
    >>> out[:, 0].round(3).tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    _window(_verify, q, k, v, g, beta, rows, state, out, A_log, dt_bias, grain, norm, scale, bit_exact, stream)


def gdn_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    rows: Rows,
    state: GdnState,
    out: Tensor,
    A_log: Optional[Tensor] = None,
    dt_bias: Optional[Tensor] = None,
    grain: int = 8,
    norm: str = "l2",
    scale: float = 0.0,
    bit_exact: bool = False,
    stream: Optional[Stream] = None,
) -> None:
    """As `gdn_verify`, for tokens that are all accepted: a prompt or a piece of it.

    The bits are those of `gdn_verify`, on cuda where `bit_exact` asks for it.

    fold_to may lie inside the row, folded <= fold_to <= first + length: `plan_fold(first + length)`. Records are kept of
    the tokens behind it, so rows may be longer than the ring. Arguments and errors are those of `gdn_verify`; commit all
    tokens of the row afterwards.

    >>> import numpy
    >>> state = GdnState.allocate(numpy.zeros, seats=1, Hk=1, Hv=1, K=4, V=2, R=16, checkpoint="float32",
    ...                           record="float32", float32="float32")
    >>> rows = Rows(start=numpy.int32([0, 100]), seat=numpy.int32([0]), first=numpy.int64([0]), folded=numpy.int64([0]),
    ...             fold_to=numpy.int64([96]))
    >>> q = k = numpy.ones((100, 1, 4), "float32")
    >>> v, out = numpy.ones((100, 1, 2), "float32"), numpy.empty((100, 1, 2), "float32")
    >>> g, beta = numpy.zeros((100, 1, 1), "float32"), numpy.ones((100, 1), "float32")
    >>> gdn_prefill(q, k, v, g, beta, rows=rows, state=state, out=out)
    >>> out[99, 0].round(3).tolist(), state.checkpoint[0, 0].round(3).tolist()
    ([0.5, 0.5], [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
    """
    _window(_prefill, q, k, v, g, beta, rows, state, out, A_log, dt_bias, grain, norm, scale, bit_exact, stream)


def gdn_fold(
    *,
    rows: Rows,
    state: GdnState,
    grain: int = 8,
    norm: str = "l2",
    layers: int = 1,
    stream: Optional[Stream] = None,
) -> None:
    """Replays records [folded, fold_to) into the checkpoint: behind each commit under policy "every", or with grain 0 and
    fold_to = first to leave a plain state for an engine that keeps those. Moves no cursor.

    rows: seat, first, folded, fold_to are used; folded <= fold_to <= first, multiples of grain unless that is 0
    state: records are read, the checkpoints of rows with fold_to > folded are written
    grain, norm: those of the verify
    layers: the rows are folded in as many layers, by one call. Then the first dimension of each tensor of state is
        layers x seats, one layer behind the other: of pools [layers, seats, ...] that is `pool.flatten(0, 1)` in torch
    Raises DeltaringError naming the argument, before anything is written.

    >>> import numpy
    >>> state = GdnState.allocate(numpy.ones, seats=1, Hk=1, Hv=1, K=4, V=2, R=16, checkpoint="float32",
    ...                           record="float32", float32="float32")
    >>> state.record_g[:] = -100  # a decay that leaves nothing of the state before
    >>> rows = Rows(seat=numpy.int32([0]), first=numpy.int64([9]), folded=numpy.int64([0]), fold_to=numpy.int64([8]))
    >>> gdn_fold(rows=rows, state=state)
    >>> state.checkpoint[0, 0].round(3).tolist()
    [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]
    """
    rows, state = expect("gdn_fold", rows, Rows), expect("gdn_fold", state, GdnState)
    _fold(stream, *rows, *state, grain, code("gdn_fold", "norm", norm, NORM), layers)


def _window(op, q, k, v, g, beta, rows, state, out, A_log, dt_bias, grain, norm, scale, bit_exact, stream):
    """The arguments in the order of the C struct."""
    rows, state = expect(op.name, rows, Rows), expect(op.name, state, GdnState)
    norm = code(op.name, "norm", norm, NORM)
    op(stream, *rows, q, k, v, g, beta, A_log, dt_bias, *state, grain, norm, scale, out, bit_exact)
