"""Seats as bytes: copied on their device, and exported to a file of their own that any pools of the same shapes take.

A file holds what a request can still read: checkpoint, records [folded, pos), conv inputs. So a seat moves at any position,
nothing is folded or rounded, and it goes on with the same bits where it arrives, on a GPU or on the host."""

from typing import Any, Dict, Optional, Sequence, Tuple

from deltaring._library import DeltaringError, Op, Stream
from deltaring.types import STATE, GdnState, Tensor, expect

def seat_copy(tensors: Sequence[Tensor], source: Tensor, target: Tensor, *, stream: Optional[Stream] = None) -> None:
    """Seat target[i] becomes seat source[i], byte for byte, in all tensors: one launch on a GPU, in a graph too.

    tensors: [seats, ...] of any dtype, dense within a seat: the pools of all layers, conv rings, whatever follows seats
    source, target: [pairs] int32, contiguous, on the device of the tensors; -1 leaves a pair out. No seat is written by
        two pairs, or read by one and written by another. On a GPU pairs with impossible seats are left out
    Raises DeltaringError naming the argument, before anything is written.

    >>> import numpy
    >>> pool = numpy.arange(8).reshape(4, 2)
    >>> seat_copy([pool], numpy.int32([3, -1]), numpy.int32([0, 2]))
    >>> pool.tolist()
    [[6, 7], [2, 3], [4, 5], [6, 7]]
    """
    lists = {"tensors": _named("seat_copy", "tensors", tensors)}
    _call("seat_copy", stream, lists, source=source, target=target)


def seat_export_bytes(
    layers: Sequence[GdnState],
    seat: int,
    folded: int,
    pos: int,
    *,
    conv: Optional[Sequence[Tensor]] = None,
    taps: int = 4,
    grain: int = 8,
    stream: Optional[Stream] = None,
) -> int:
    """The bytes of the file that `seat_export` writes with these arguments.

    >>> import numpy
    >>> state = GdnState.allocate(numpy.zeros, seats=1, Hk=1, Hv=1, K=4, V=2, R=16, checkpoint="float32",
    ...                           record="float32", float32="float32")
    >>> seat_export_bytes([state], 0, folded=8, pos=10) - seat_export_bytes([state], 0, folded=8, pos=9)
    32
    """
    lists, numbers = _seat("seat_export", layers, conv), dict(seat=seat, taps=taps, grain=grain)
    return int(_call("seat_export_bytes", stream, lists, **numbers, folded=folded, pos=pos))


def seat_export(
    layers: Sequence[GdnState],
    seat: int,
    folded: int,
    pos: int,
    *,
    file: Tensor,
    conv: Optional[Sequence[Tensor]] = None,
    taps: int = 4,
    grain: int = 8,
    stream: Optional[Stream] = None,
) -> None:
    """Writes a seat as a file: a header with version, shapes, dtypes and cursor, the live bytes, a checksum.

    layers: the pools of every GDN layer, alike in shapes and dtypes, dense within a seat
    seat, folded, pos: the request's place and cursor, as numbers of the host
    file: [seat_export_bytes(...)] uint8 in the host's memory or on the device of the layers. With a file on the host as
        much device memory is used for the time of the call
    conv: the rings of `conv` [seats, Rc, C], one a layer, and `taps` of it
    grain: F of the grid, or 0 off it
    Returns when it is done, so not during a capture. Raises DeltaringError naming the argument.

    >>> import numpy
    >>> pools = [GdnState.allocate(numpy.zeros, seats=2, Hk=1, Hv=1, K=4, V=2, R=16, checkpoint="float32",
    ...                            record="float32", float32="float32") for _ in range(3)]
    >>> pools[2].checkpoint[0] = 5
    >>> file = numpy.empty(seat_export_bytes(pools, 0, folded=8, pos=9), "uint8")
    >>> seat_export(pools, 0, folded=8, pos=9, file=file)
    >>> seat_import(pools, 1, T=4, file=file), pools[2].checkpoint[1].tolist()
    ((8, 9), [[[5.0, 5.0, 5.0, 5.0], [5.0, 5.0, 5.0, 5.0]]])
    """
    lists, numbers = _seat("seat_export", layers, conv), dict(seat=seat, taps=taps, grain=grain)
    _call("seat_export", stream, lists, **numbers, folded=folded, pos=pos, file=file)


def seat_import(
    layers: Sequence[GdnState],
    seat: int,
    *,
    T: int,
    file: Tensor,
    conv: Optional[Sequence[Tensor]] = None,
    taps: int = 4,
    grain: int = 8,
    stream: Optional[Stream] = None,
) -> Tuple[int, int]:
    """Reads a file of `seat_export` into a seat and returns the cursor (folded, pos).

    layers, conv, taps, grain: as in `seat_export`, with the shapes and dtypes of the exporter; seats and rings may be
        other in number and length
    T: tokens of the widest window that is to follow, anchor included; the records and it must fit the ring
    file: [bytes] uint8, in the host's memory or on the device of the layers
    Raises DeltaringError for a file that is damaged or of other shapes, before anything is written.
    """
    lists, numbers = _seat("seat_import", layers, conv), dict(seat=seat, taps=taps, grain=grain)
    return tuple(map(int, _call("seat_import", stream, lists, **numbers, T=T, file=file)))


def _call(op: str, stream: Optional[Stream], lists: Dict[str, Dict[str, Any]], **rest: Any) -> Any:
    """A list goes over as the number of its tensors and they, each with a name for errors."""
    names, values = [], []
    for tensors in lists.values():
        names += ["count", *tensors]
        values += [len(tensors), *tensors.values()]
    return Op(op, *names, *rest)(stream, *values, *rest.values())


def _named(op: str, name: str, values: Any) -> Dict[str, Any]:
    if not isinstance(values, (list, tuple)) or isinstance(values, GdnState):
        raise DeltaringError(f"{op}: {name} is a {type(values).__name__}, want a list")
    return {f"{name}[{i}]": value for i, value in enumerate(values)}


def _seat(op: str, layers: Any, conv: Any) -> Dict[str, Dict[str, Any]]:
    """The lists of a seat in the order of the C struct: the tensors of all layers, the conv rings."""
    states = {
        f"{name}.{field}": tensor
        for name, layer in _named(op, "layers", layers).items()
        for field, tensor in zip(STATE, expect(op, layer, GdnState))
    }
    rings = {} if conv is None else _named(op, "conv", conv)
    if conv is not None and len(rings) != len(layers):
        raise DeltaringError(f"{op}: conv has {len(rings)} rings, layers {len(layers)}; want one a layer")
    return {"layers": states, "conv": rings}
