"""What cannot be is refused with one exception whose text names the argument; nothing is written then."""

import ctypes

import numpy
import pytest

import deltaring
from deltaring import DeltaringError
from model import Layer, rows_of


class Broken:
    """Says it speaks DLPack, and does not."""

    def __dlpack__(self, *args, **kwargs):
        raise RuntimeError("out of order")

    def __dlpack_device__(self):
        return 1, 0


class Elsewhere:
    """The tensor of another device: its descriptor says so, and nobody may follow its pointer."""

    def __init__(self, array, device):
        self.array, self.device = array, device

    def __dlpack__(self, *args, **kwargs):
        capsule = self.array.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        device = (ctypes.c_int32 * 2).from_address(get(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
        device[:] = self.device
        return capsule

    def __dlpack_device__(self):
        return self.device


def arguments():
    layer = Layer(seats=2)
    tokens = layer.tokens(numpy.random.default_rng(0), 4)
    return dict(**tokens, rows=rows_of([3, 1]), state=layer.state, out=numpy.full((4, 4, 8), 7, "float32"))


def changed(name, value):
    def change(arguments):
        struct, _, field = name.partition(".")
        if field:
            value_now = getattr(arguments[struct], field)
            arguments[struct] = arguments[struct]._replace(**{field: value(value_now) if callable(value) else value})
        else:
            arguments[name] = value(arguments.get(name)) if callable(value) else value

    return change


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


REFUSED = [
    ("q", lambda x: x.astype("float64"), "gdn_verify: q [tokens, Hk, K] is float64, want float32, bfloat16 or float16"),
    ("q", lambda x: x[0], "gdn_verify: q [tokens, Hk, K] has 2 dimensions, want 3"),
    ("q", lambda x: x[:, :, ::2], "gdn_verify: q [tokens, Hk, K] has 8 in K, want 16"),
    ("q", lambda x: numpy.repeat(x, 2, 2)[:, :, ::2], "gdn_verify: q [tokens, Hk, K] has stride 2 in K, want 1"),
    ("q", None, "gdn_verify: q [tokens, Hk, K] is missing"),
    ("q", [1.0], "gdn_verify: q is a list, want a tensor"),
    ("q", Broken(), "gdn_verify: q cannot be lent through DLPack: out of order"),
    ("k", lambda x: x.astype("float16"), "gdn_verify: k [tokens, Hk, K] is float16, want float32"),
    ("k", lambda x: Elsewhere(x, (2, 0)), "cuda"),
    ("k", lambda x: Elsewhere(x, (8, 3)), "gdn_verify: k [tokens, Hk, K] is on device type 8:3, want cpu"),
    ("beta", lambda x: x[:, :2], "gdn_verify: beta [tokens, Hv] has 2 in Hv, want 4"),
    ("out", lambda x: x[:3], "gdn_verify: out [tokens, Hv, V] has 3 in tokens, want 4"),
    ("out", lambda x: numpy.broadcast_to(x[:1], x.shape), "gdn_verify: out"),
    ("out", read_only, "gdn_verify: out cannot be lent through DLPack"),
    ("A_log", numpy.zeros(4, "float32"), "gdn_verify: A_log [Hv] is given and dt_bias [Hv, G] is missing"),
    ("dt_bias", numpy.zeros((4, 1), "float32"), "gdn_verify: dt_bias [Hv, G] is given and A_log [Hv] is missing"),
    ("grain", 7, "gdn_verify: grain is 7, want 8, 16 or 0"),
    ("grain", "8", "gdn_verify: grain is '8', want an integer"),
    ("norm", "rms", "gdn_verify: norm is 'rms', want one of 'l2', 'none'"),
    ("scale", float("nan"), "gdn_verify: scale is nan, want a finite number"),
    ("scale", None, "gdn_verify: scale is None, want a number"),
    ("stream", "cpu", "gdn_verify: stream is a str, want a deltaring.Stream or None"),
    ("rows", (1, 2), "gdn_verify: (1, 2) where deltaring.Rows is wanted, for example deltaring.Rows(start=...)"),
    ("rows.seat", None, "gdn_verify: rows.seat [B] is missing"),
    ("rows.seat", lambda x: x.astype("int64"), "gdn_verify: rows.seat [B] is int64, want int32"),
    ("rows.seat", lambda x: x + 1, "rows.seat[1] is 2, want -1 or [0, 2)"),
    ("rows.seat", lambda x: x * 0, "rows.seat holds 0 twice"),
    ("rows.seat", lambda x: numpy.repeat(x, 2)[::2], "gdn_verify: rows.seat [B] is not contiguous"),
    ("rows.start", lambda x: x[:-1], "gdn_verify: rows.start [B+1] has 2 in dimension 0, want 3"),
    ("rows.start", lambda x: x[::-1].copy(), "rows hold 0 tokens, the views 4"),
    ("rows.first", lambda x: x - 1, "rows.first[0] is -1, want >= 0"),
    ("rows.folded", None, "gdn_verify: rows of 2 need folded and fold_to"),
    ("rows.fold_to", lambda x: x + 8, "gdn_verify: row 0: fold_to 8 is not in [folded, 0]"),
    ("rows.longest", -3, "gdn_verify: rows.longest is -3"),
    ("state.record_k", lambda x: x[:, :, :16], "gdn_verify: record_v [seats, Hv, R, V] has 32 in R, want 16"),
    ("state.record_g", lambda x: x[..., 0], "gdn_verify: record_g [seats, Hv, R, G] has 3 dimensions, want 4"),
    ("state.checkpoint", lambda x: x.astype("int32"), "gdn_verify: checkpoint [seats, Hv, V, K] is int32"),
]


@pytest.mark.parametrize("name, value, text", REFUSED, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(REFUSED)])
def test_verify_refuses(name, value, text):
    call = arguments()
    state, out = call["state"], call["out"]
    changed(name, value)(call)
    with pytest.raises(DeltaringError) as refusal:
        deltaring.gdn_verify(**call)
    assert text in str(refusal.value)
    assert (out == 7).all() and not any(array.any() for array in state)


def test_a_window_that_the_ring_cannot_hold():
    call = arguments()
    call["rows"] = rows_of([3, 1], first=[31, 0], folded=[0, 0], fold_to=[0, 0])
    with pytest.raises(DeltaringError, match="31 records and 3 window tokens exceed the ring of 32"):
        deltaring.gdn_verify(**call)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: deltaring.Stream("gpu"), "backend gpu: this build has"),
        (lambda: deltaring.Stream(3), "streams: backend is 3, want a name"),
        (lambda: deltaring.Stream("cpu", threads=-1), "-1"),
        (lambda: deltaring.Stream("cpu", threads=2**40), "threads"),
        (lambda: deltaring.Stream("cpu", threads="many"), "streams: threads is 'many', want an integer"),
        (lambda: deltaring.default_ring_rows(0), "--speculative-num-draft-tokens 0"),
        (lambda: deltaring.default_ring_rows(4, F=9), "--fold-grain 9"),
        (lambda: deltaring.default_ring_rows(4, policy="none"), "policy is 'none', want one of 'grid', 'every'"),
        (lambda: deltaring.default_ring_rows("4"), "default_ring_rows: T is '4', want an integer"),
        (lambda: deltaring.conv_ring_rows(4, R=16, taps=2**60), "taps"),
        (lambda: deltaring.plan_fold(3, F=0), "F is 0, want 8 or 16"),
        (lambda: deltaring.plan_fold(3, policy=0), "policy is 0"),
        (lambda: deltaring.commit(rows_of([1], first=[3]), numpy.array([-1], "int32")), "kept[0] is -1, want >= 0"),
        (lambda: deltaring.commit(rows_of([1]), numpy.array([1], "int32"), F=4), "F is 4, want 8 or 16"),
        (lambda: deltaring.commit(rows_of([1]), numpy.array([1, 1], "int32")), "kept [B] has 2 in dimension 0, want 1"),
    ],
)
def test_the_others_refuse(call, text):
    with pytest.raises(DeltaringError) as refusal:
        call()
    assert text in str(refusal.value)


def test_it_is_a_value_error():
    with pytest.raises(ValueError):
        deltaring.Stream("gpu")
