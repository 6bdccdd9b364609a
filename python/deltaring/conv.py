"""The causal convolution before the gated delta rule."""

from typing import Optional

from deltaring._library import Op, Stream
from deltaring.types import ROWS, Rows, Tensor, expect

_conv = Op("conv", *ROWS, "x", "weight", "ring", "out")


def conv(x: Tensor, weight: Tensor, *, rows: Rows, ring: Tensor, out: Tensor, stream: Optional[Stream] = None) -> None:
    """Depthwise causal convolution over the last `taps` inputs of each channel, then SiLU.

    out[t, c] = silu(sum_j weight[c, j] x[t - (taps-1) + j, c]); inputs before the row come from the ring, those before the
    sequence are zeros. The input at position p is stored in slot p % Rc, so a rejected token needs no undo.

    x: [tokens, C] float32, bfloat16 or float16
    weight: [C, taps] float32, any strides; tap taps-1 multiplies the current token
    rows: start, seat, first are used
    ring: [seats, Rc, C] float32 or the dtype of x, read and written; Rc as `conv_ring_rows` says
    out: out [tokens, C] float32, bfloat16 or float16
    Raises DeltaringError naming the argument, before anything is written.

    >>> import numpy
    >>> rows = Rows(start=numpy.int32([0, 2]), seat=numpy.int32([0]), first=numpy.int64([0]))
    >>> x, ring = numpy.float32([[1], [2]]), numpy.zeros((1, 16, 1), "float32")
    >>> out = numpy.empty_like(x)
    >>> conv(x, numpy.float32([[0, 0, 1, 1]]), rows=rows, ring=ring, out=out)
    >>> numpy.allclose(out.ravel(), [0.7310586, 2.8577224]), ring[0, :3].tolist()
    (True, [[1.0], [2.0], [0.0]])
    """
    _conv(stream, *expect("conv", rows, Rows), x, weight, ring, out)
