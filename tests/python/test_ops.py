"""The ops against the float64 recurrence of model.py."""

import numpy
import pytest

import deltaring
from model import F, Layer, join, part, recurrence, rows_of

BACKENDS = ["cpu", "reference"]


@pytest.fixture(params=BACKENDS)
def stream(request):
    return deltaring.Stream(request.param, threads=2)


@pytest.mark.parametrize("G", [1, 16])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float16", 4e-3)])
def test_prefill_then_verify(stream, G, dtype, tolerance):
    """Ragged rows with a history each, one of them empty, one without a seat."""
    rng = numpy.random.default_rng(G)
    layer = Layer(G=G, checkpoint=dtype, record=dtype)
    prompts, windows, seats = [21, 8, 3, 40], [3, 0, 1, 5], [2, 0, -1, 1]
    history = [layer.tokens(rng, n) for n in prompts]
    ends = [n - n % F for n in prompts]
    rows = rows_of(prompts, seats, first=[0] * 4, fold_to=ends)
    outs = layer.run(deltaring.gdn_prefill, join(history), rows, stream=stream)
    window = [layer.tokens(rng, n) for n in windows]
    behind = layer.run(deltaring.gdn_verify, join(window), rows_of(windows, seats, prompts), stream=stream)

    for b in range(4):
        out = outs[sum(prompts[:b]) :][: prompts[b]], behind[sum(windows[:b]) :][: windows[b]]
        if seats[b] < 0:
            assert not numpy.any(numpy.concatenate(out))
            continue
        want, S = recurrence(history[b], layer.zero_state(), checkpoint=dtype, record=dtype)
        numpy.testing.assert_allclose(out[0], want, atol=tolerance)
        want, _ = recurrence(window[b], S, position=prompts[b], checkpoint=dtype, record=dtype)
        numpy.testing.assert_allclose(out[1], want, atol=tolerance)
    assert not layer.state.checkpoint[3].any(), "a seat of nobody stays as it was"


def test_norm_and_scale(stream):
    rng = numpy.random.default_rng(2)
    layer = Layer(seats=1)
    tokens = layer.tokens(rng, 7)
    tokens["k"] /= 4
    out = layer.run(deltaring.gdn_verify, tokens, rows_of([7]), norm="none", scale=0.5, stream=stream)
    want, _ = recurrence(tokens, layer.zero_state(), norm="none", scale=0.5)
    numpy.testing.assert_allclose(out, want, atol=1e-5)


def test_raw_gates_are_gates(stream):
    """A_log and dt_bias inside the verify give the bits of gdn_gates before it, and the formula's values."""
    rng = numpy.random.default_rng(3)
    layers = [Layer(seats=1), Layer(seats=1)]
    tokens = layers[0].tokens(rng, 6)
    a, b = rng.standard_normal((6, 4, 1)).astype("float32") * 9, rng.standard_normal((6, 4)).astype("float32")
    weights = dict(
        A_log=rng.standard_normal(4).astype("float32"), dt_bias=rng.standard_normal((4, 1)).astype("float32")
    )
    raw = layers[0].run(deltaring.gdn_verify, {**tokens, "g": a, "beta": b}, rows_of([6]), **weights, stream=stream)
    g, beta = numpy.empty_like(a), numpy.empty_like(b)
    deltaring.gdn_gates(a, b, **weights, g=g, beta=beta, stream=stream)
    made = layers[1].run(deltaring.gdn_verify, {**tokens, "g": g, "beta": beta}, rows_of([6]), stream=stream)
    assert raw.tobytes() == made.tobytes()
    softplus = numpy.logaddexp(0, a.astype("float64") + weights["dt_bias"])
    numpy.testing.assert_allclose(g, -numpy.exp(weights["A_log"].astype("float64"))[:, None] * softplus, rtol=1e-5)
    numpy.testing.assert_allclose(beta, 1 / (1 + numpy.exp(-b.astype("float64"))), rtol=1e-6)


def test_fold(stream):
    """The checkpoint behind a fold is the state of the recurrence; off the grid with grain 0 too."""
    rng = numpy.random.default_rng(4)
    layer = Layer(seats=1)
    tokens = layer.tokens(rng, 13)
    layer.run(deltaring.gdn_verify, tokens, rows_of([13]), stream=stream)
    for fold_to, folded, grain in [(8, 0, F), (13, 8, 0)]:
        rows = rows_of([0], first=[13], folded=[folded], fold_to=[fold_to])
        deltaring.gdn_fold(rows=rows, state=layer.state, grain=grain, stream=stream)
        _, S = recurrence(part(tokens, 0, fold_to), layer.zero_state())
        numpy.testing.assert_allclose(layer.state.checkpoint[0], S, atol=1e-6)


def test_conv(stream):
    rng = numpy.random.default_rng(5)
    C, taps, Rc, splits = 6, 4, 16, [5, 1, 4, 40, 2]
    x = rng.standard_normal((sum(splits), C)).astype("float32")
    weight, ring = rng.standard_normal((C, taps)).astype("float32"), numpy.full((2, Rc, C), numpy.nan, "float32")
    out = numpy.empty_like(x)
    for i, n in enumerate(splits):
        begin = sum(splits[:i])
        rows = rows_of([n, 0], seats=[1, -1], first=[begin, 0])
        deltaring.conv(x[begin : begin + n], weight, rows=rows, ring=ring, out=out[begin : begin + n], stream=stream)
    padded = numpy.concatenate([numpy.zeros((taps - 1, C)), x])
    y = sum(padded[j : j + len(x)] * weight[:, j].astype("float64") for j in range(taps))
    numpy.testing.assert_allclose(out, y / (1 + numpy.exp(-y)), rtol=1e-5, atol=1e-6)
    assert numpy.isnan(ring[0]).all() and (ring[1, (len(x) - 1) % Rc] == x[-1]).all()


def test_snapshots(stream):
    """A commit of the i-th snapshot leaves the state behind i tokens; without snapshots the state itself moves."""
    rng = numpy.random.default_rng(6)
    layer = Layer(seats=2)
    tokens = layer.tokens(rng, 5)
    state, snapshots = numpy.zeros((2, 4, 8, 16), "float32"), numpy.full((2, 5, 4, 8, 16), numpy.nan, "float32")
    rows, out = rows_of([5], seats=[1]), numpy.empty((5, 4, 8), "float32")
    deltaring.snapshot_verify(**tokens, rows=rows, state=state, snapshots=snapshots, out=out, stream=stream)
    assert not state.any()
    want, _ = recurrence(tokens, layer.zero_state())
    numpy.testing.assert_allclose(out, want, atol=2e-6)
    kept = numpy.array([3], "int32")
    deltaring.snapshot_commit(kept, rows=rows, state=state, snapshots=snapshots, stream=stream)
    _, S = recurrence(part(tokens, 0, 3), layer.zero_state())
    numpy.testing.assert_allclose(state[1], S, atol=2e-6)
    rest, out = part(tokens, 3, 5), numpy.empty((2, 4, 8), "float32")
    deltaring.snapshot_verify(**rest, rows=rows_of([2], seats=[1], first=[3]), state=state, out=out, stream=stream)
    numpy.testing.assert_allclose(out, want[3:], atol=2e-6)


def test_views_of_one_buffer():
    """q, k, v as slices of the fused projection, an output with padding: the bits of dense tensors."""
    rng = numpy.random.default_rng(7)
    layers = [Layer(seats=1), Layer(seats=1)]
    tokens, rows = layers[0].tokens(rng, 6), rows_of([6])
    fused = numpy.full((6, 3 + 2 * 2 * 16 + 4 * 8), numpy.nan, "float32")
    sliced = dict(tokens)
    for name, at in [("q", 3), ("k", 3 + 32), ("v", 3 + 64)]:
        width = tokens[name][0].size
        sliced[name] = fused[:, at : at + width].reshape(tokens[name].shape)
        sliced[name][:] = tokens[name]
        assert numpy.shares_memory(sliced[name], fused)
    padded = numpy.full((6, 4, 8 + 5), numpy.nan, "float32")
    deltaring.gdn_verify(**sliced, rows=rows, state=layers[0].state, out=padded[:, :, 2:10])
    dense = layers[1].run(deltaring.gdn_verify, tokens, rows)
    assert padded[:, :, 2:10].tobytes() == dense.tobytes()
    assert numpy.isnan(padded[:, :, :2]).all() and numpy.isnan(padded[:, :, 10:]).all()


def test_tokens_and_outputs_in_float16():
    rng = numpy.random.default_rng(8)
    layer = Layer(seats=1)
    tokens = layer.tokens(rng, 6)
    for name in "qkv":
        tokens[name] = tokens[name].astype("float16")
    out = numpy.empty((6, 4, 8), "float16")
    deltaring.gdn_verify(**tokens, rows=rows_of([6]), state=layer.state, out=out)
    want, _ = recurrence(tokens, layer.zero_state())
    numpy.testing.assert_allclose(out, want, rtol=1e-3, atol=1e-5)


def test_no_rows_and_no_tokens():
    layer = Layer(seats=1)
    nothing = layer.tokens(numpy.random.default_rng(9), 0)
    assert layer.run(deltaring.gdn_verify, nothing, rows_of([])).shape == (0, 4, 8)
    assert layer.run(deltaring.gdn_verify, nothing, rows_of([0])).shape == (0, 4, 8)
