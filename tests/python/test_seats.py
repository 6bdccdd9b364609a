"""Copies, exports and imports of seats."""

import numpy
import pytest

import deltaring
from deltaring import DeltaringError, GdnState
from model import F, Layer, join, part, rows_of

BACKENDS = ["cpu", "reference"]


@pytest.fixture(params=BACKENDS)
def stream(request):
    return deltaring.Stream(request.param, threads=2)


def test_a_copied_seat_continues_with_the_same_bits(stream):
    rng = numpy.random.default_rng(1)
    layer = Layer(seats=3, checkpoint="float16")
    tokens = [layer.tokens(rng, n) for n in (13, 3)]
    layer.run(deltaring.gdn_verify, tokens[0], rows_of([13]), stream=stream)
    deltaring.seat_copy(list(layer.state), numpy.int32([0, -1]), numpy.int32([2, 1]), stream=stream)
    window = join([tokens[1], tokens[1]])
    out = layer.run(deltaring.gdn_verify, window, rows_of([3, 3], [0, 2], [13, 13]), stream=stream)
    assert out[:3].tobytes() == out[3:].tobytes()
    assert not layer.state.record_k[1].any(), "a seat of nobody stays as it was"


def test_an_imported_seat_continues_with_the_same_bits(stream):
    """In another pool with another ring and number of seats; two layers and their conv rings go along."""
    rng = numpy.random.default_rng(2)
    here, there = [[Layer(seats=seats, R=R) for _ in range(2)] for seats, R in ((2, 16), (4, 32))]
    rings = [[rng.standard_normal((n, 32, 6)).astype("float32") for _ in range(2)] for n in (2, 4)]
    tokens = here[0].tokens(rng, 14)
    for layer in here:
        layer.run(deltaring.gdn_verify, part(tokens, 0, 11), rows_of([11], [1]), stream=stream)
    lent = dict(folded=0, pos=11, conv=rings[0], stream=stream)
    states = [layer.state for layer in here]
    file = numpy.empty(deltaring.seat_export_bytes(states, 1, **lent), "uint8")
    deltaring.seat_export(states, 1, file=file, **lent)
    cursor = deltaring.seat_import([x.state for x in there], 3, T=4, file=file, conv=rings[1], stream=stream)
    assert cursor == (0, 11)
    for old, new in zip(here, there):
        outs = [
            layer.run(deltaring.gdn_verify, part(tokens, 11, 14), rows_of([3], [seat], [11]), stream=stream)
            for layer, seat in ((old, 1), (new, 3))
        ]
        assert outs[0].tobytes() == outs[1].tobytes()
    for old, new in zip(*rings):
        assert (old[1, :11] == new[3, :11]).all() and (old[1, 11:] != new[3, 11:]).all()


def test_all_layers_fold_in_one_call(stream):
    rng = numpy.random.default_rng(3)
    pools = GdnState(*(rng.uniform(-1, 0, (3, *x.shape)).astype("float32") for x in Layer(seats=2).state))
    one_by_one = GdnState(*(x.copy() for x in pools))
    rows = rows_of([0, 0], seats=[1, 0], first=[13, 9], folded=[0, 0], fold_to=[8, 0])
    flat = GdnState(*(x.reshape(-1, *x.shape[2:]) for x in pools))
    deltaring.gdn_fold(rows=rows, state=flat, grain=F, layers=3, stream=stream)
    for layer in range(3):
        deltaring.gdn_fold(rows=rows, state=GdnState(*(x[layer] for x in one_by_one)), grain=F, stream=stream)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(pools, one_by_one))


def exported(**changes):
    layers = [Layer(seats=2).state]
    arguments = dict(layers=layers, seat=0, folded=8, pos=9, file=numpy.zeros(8, "uint8"))
    return lambda: deltaring.seat_export(**{**arguments, **changes})


def copied(**changes):
    pair = numpy.int32([0])
    arguments = dict(tensors=[numpy.zeros((2, 3))], source=pair, target=pair)
    return lambda: deltaring.seat_copy(**{**arguments, **changes})


@pytest.mark.parametrize(
    "call, text",
    [
        (exported(), "seat_export: the file has 8 bytes, want"),
        (exported(seat="a"), "seat_export: seat is 'a', want an integer"),
        (exported(layers=Layer().state), "seat_export: layers is a GdnState, want a list"),
        (exported(layers=[numpy.zeros(3)]), "where deltaring.GdnState is wanted"),
        (exported(layers=[]), "seat_export: 0 layers, want at least 1"),
        (exported(conv=[]), "seat_export: conv has 0 rings, layers 1; want one a layer"),
        (exported(file=[1]), "seat_export: file is a list, want a tensor"),
        (exported(pos=7), "seat_export: folded 8 is not in [0, pos = 7]"),
        (copied(tensors=numpy.zeros((2, 3))), "seat_copy: tensors is a ndarray, want a list"),
        (copied(tensors=[numpy.zeros((2, 3)), 5]), "seat_copy: tensors[1] is a int, want a tensor"),
        (copied(source=numpy.int64([0])), "seat_copy: from [pairs] is int64, want int32"),
        (copied(source=numpy.int32([5])), "seat_copy: from[0] is 5, want -1 or [0, 2)"),
        (copied(stream=3), "seat_copy: stream is a int, want a deltaring.Stream or None"),
        (
            lambda: deltaring.seat_import([Layer().state], 0, T=4, file=numpy.zeros(300, "uint8")),
            "not one: it does not start with the magic number",
        ),
    ],
)
def test_refusals(call, text):
    with pytest.raises(DeltaringError) as error:
        call()
    assert text in str(error.value), str(error.value)
