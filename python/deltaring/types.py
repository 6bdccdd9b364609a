"""The structs that calls share. Symbols: seats; B rows (requests) of a step; tokens of all rows together; Hk, Hv key
and value heads; K, V their dims; G gate channels a head (1, or K for KDA); R ring rows; F fold grain."""

from typing import Any, Callable, NamedTuple, Optional, Protocol, Tuple

from deltaring._library import DeltaringError


class Tensor(Protocol):
    """What every argument that is a tensor must be able to do. The last dimension is contiguous."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Tuple[int, int]: ...


class Rows(NamedTuple):
    """The rows of a step. Row b owns tokens [start[b], start[b+1]) at positions first[b], first[b]+1, ...

    Arrays are contiguous and lie on the device of the call, so that a CUDA graph can read and `commit` move them. Rows
    may differ in length and be empty. Seat -1 is no seat: nothing is read or written for it, its outputs are zeros.

    start    [B+1] int32, ascending from 0; unused by gdn_fold, commit and snapshot_commit
    seat     [B] int32 index into the pools, or -1; no seat twice
    first    [B] int64 the cursor's pos: accepted tokens
    folded   [B] int64 the cursor's folded: tokens in the checkpoint; gdn ops and commit
    fold_to  [B] int64 where the checkpoint shall stand afterwards, `plan_fold(first)`; gdn ops and commit
    order    [B] int32 or None: the turns in which rows are begun, a permutation. No result depends on it; with those
             that have most to do first, as `commit` leaves it, large batches end sooner
    longest  at least the tokens of every row, 0 = all tokens; sizes launches on a device, ignored on the host
    """

    start: Optional[Tensor] = None
    seat: Optional[Tensor] = None
    first: Optional[Tensor] = None
    folded: Optional[Tensor] = None
    fold_to: Optional[Tensor] = None
    order: Optional[Tensor] = None
    longest: int = 0


class GdnState(NamedTuple):
    """One layer's share of the pools. Slot of position p in a ring is p % R.

    checkpoint   [seats, Hv, V, K] float32, bfloat16 or float16: the state after token folded-1; zeros in a new seat
    record_k     [seats, Hk, R, K] float32, bfloat16 or float16
    record_v     [seats, Hv, R, V] of the dtype of record_k
    record_g     [seats, Hv, R, G] float32
    record_beta  [seats, Hv, R] float32
    """

    checkpoint: Tensor
    record_k: Tensor
    record_v: Tensor
    record_g: Tensor
    record_beta: Tensor

    @classmethod
    def allocate(
        cls,
        zeros: Callable[..., Any],
        *,
        seats: int,
        Hk: int,
        Hv: int,
        K: int,
        V: int,
        R: int,
        G: int = 1,
        checkpoint: Any,
        record: Any,
        float32: Any,
    ) -> "GdnState":
        """The state of `seats` requests in one layer.

        zeros: `zeros(shape, dtype=...)` of a library, for example `functools.partial(torch.zeros, device="cuda")`.
        checkpoint, record, float32: dtypes of that library for the checkpoint, for k and v in the ring, and float32.
        Raises what zeros raises.

        >>> import numpy
        >>> state = GdnState.allocate(numpy.zeros, seats=2, Hk=1, Hv=2, K=4, V=3, R=16, checkpoint="float32",
        ...                           record="float16", float32="float32")
        >>> state.checkpoint.shape, state.record_k.shape, state.record_g.shape
        ((2, 2, 3, 4), (2, 1, 16, 4), (2, 2, 16, 1))
        """
        return cls(
            checkpoint=zeros((seats, Hv, V, K), dtype=checkpoint),
            record_k=zeros((seats, Hk, R, K), dtype=record),
            record_v=zeros((seats, Hv, R, V), dtype=record),
            record_g=zeros((seats, Hv, R, G), dtype=float32),
            record_beta=zeros((seats, Hv, R), dtype=float32),
        )


def expect(op: str, value: Any, kind: type) -> Any:
    """A Rows or GdnState, to be unpacked."""
    if not isinstance(value, kind):
        name = f"deltaring.{kind.__name__}"
        raise DeltaringError(f"{op}: {value!r:.60} where {name} is wanted, for example {name}({kind._fields[0]}=...)")
    return value


ROWS = tuple("rows." + field for field in Rows._fields)
STATE = GdnState._fields
