"""Cursors: the whole speculative state of a request are two integers, folded and pos. Accepting tokens moves them."""

from typing import Any, Optional

from deltaring._library import POLICY, DeltaringError, Function, Op, Stream, code
from deltaring.types import ROWS, Rows, Tensor, expect

_commit = Op("commit", *ROWS, "kept", "F", "policy")
_default_ring_rows = Function("default_ring_rows", "T", "F", "policy")
_check_ring = Function("check_ring", "T", "F", "R", "policy")
_conv_ring_rows = Function("conv_ring_rows", "T", "F", "R", "policy", "taps")


def plan_fold(pos: Any, F: int = 8, policy: str = "grid") -> Any:
    """Up to where the records of tokens [folded, pos) are due to be folded into the checkpoint.

    pos: integer, or an array of them of any library
    F: fold grain, 8 or 16
    policy: "grid", the last multiple of F (the next verify carries the fold), or "every", pos itself (for `gdn_fold`)
    Raises DeltaringError for another F or policy.

    >>> plan_fold(21), plan_fold(21, F=16), plan_fold(21, policy="every")
    (16, 16, 21)
    """
    if F not in (8, 16):
        raise DeltaringError(f"plan_fold: F is {F!r}, want 8 or 16")
    return pos if code("plan_fold", "policy", policy, POLICY) else pos - pos % F


def commit(rows: Rows, kept: Tensor, *, F: int = 8, policy: str = "grid", stream: Optional[Stream] = None) -> None:
    """Keeps the first tokens of each row's window: one call a step for all layers. Rejected tokens need nothing.

    Moves the arrays of rows with a seat in place: folded = fold_to, first += kept, fold_to = plan_fold(first, F). Then
    they are the rows of the next step. With an order, rows with most to do come first in it: folds, then records.

    rows: seat, first, folded, fold_to and order are used
    kept: [B] int32, anchor + accepted drafts, or 0 when the row is cancelled
    Raises DeltaringError, and nothing has moved, for a negative kept or cursors that do not ascend; on a device, where
    the host cannot look, such a row stays as it is.

    >>> import numpy
    >>> rows = Rows(seat=numpy.int32([0, -1]), first=numpy.int64([7, 3]), folded=numpy.int64([0, 0]),
    ...             fold_to=numpy.int64([0, 0]))
    >>> commit(rows, numpy.int32([2, 1]))
    >>> rows.first.tolist(), rows.folded.tolist(), rows.fold_to.tolist()
    ([9, 3], [0, 0], [8, 0])
    """
    _commit(stream, *expect("commit", rows, Rows), kept, F, code("commit", "policy", policy, POLICY))


def default_ring_rows(T: int, F: int = 8, policy: str = "grid") -> int:
    """R, the rows of the smallest ring that serves windows of T tokens, anchor included.

    A power of two, at least 16 and T, and at least F-1+2T under "grid". Raises DeltaringError unless 1 <= T <= 256 and F
    is 8 or 16.

    >>> default_ring_rows(4), default_ring_rows(8), default_ring_rows(16)
    (16, 32, 64)
    """
    return _default_ring_rows(T, F, code("default_ring_rows", "policy", policy, POLICY))


def check_ring(T: int, R: int, F: int = 8, policy: str = "grid") -> None:
    """Raises DeltaringError, naming a value that works, unless a ring of R rows serves windows of T tokens.

    >>> check_ring(8, R=16)
    Traceback (most recent call last):
    ...
    deltaring.DeltaringError: ...a window of 8 tokens a ring holds at least 23 rows; 32 works
    """
    _check_ring(T, F, R, code("check_ring", "policy", policy, POLICY))


def conv_ring_rows(T: int, R: int, taps: int = 4, F: int = 8, policy: str = "grid") -> int:
    """Rc, the rows of a conv ring beside a replay ring of R rows. Raises DeltaringError as `check_ring`, and unless
    1 <= taps <= 1024.

    >>> conv_ring_rows(4, R=16)
    16
    """
    return _conv_ring_rows(T, F, R, code("conv_ring_rows", "policy", policy, POLICY), taps)
