"""Speculation changes no bit: windows with random acceptance against one-token steps."""

import numpy
import pytest

import deltaring
from model import F, Layer, join, part, recurrence, rows_of


@pytest.mark.parametrize("checkpoint", ["float32", "float16"])
@pytest.mark.parametrize("T", [1, 4, 7])
def test_random_acceptance(T, checkpoint):
    """30 steps of 3 rows. Rejected drafts are NaN, so nothing may read them."""
    rng = numpy.random.default_rng(T)
    B, steps, R = 3, 30, deltaring.default_ring_rows(T, F)
    layers = [Layer(seats=B, R=R, checkpoint=checkpoint, record="float16") for _ in range(2)]
    stream = [layers[0].tokens(rng, steps * T + 1) for _ in range(B)]
    rows, kept_outputs, folds = rows_of([T] * B, first=[0] * B), [[] for _ in range(B)], 0

    for _ in range(steps):
        kept = rng.integers(0, T + 1, B).astype("int32")
        window = []
        for b in range(B):
            tokens = {name: array.copy() for name, array in part(stream[b], rows.first[b], rows.first[b] + T).items()}
            for array in tokens.values():
                array[kept[b] :] = numpy.nan
            window.append(tokens)
        out = layers[0].run(deltaring.gdn_verify, join(window), rows)
        for b in range(B):
            kept_outputs[b].append(out[b * T :][: kept[b]])
        folds += int((rows.fold_to > rows.folded).sum())
        deltaring.commit(rows, kept, F=F)
    assert folds > 0

    for b in range(B):
        pos = int(rows.first[b])
        single = rows_of([1], seats=[b], first=[0])
        plain = []
        for p in range(pos):
            plain.append(layers[1].run(deltaring.gdn_verify, part(stream[b], p, p + 1), single))
            deltaring.commit(single, numpy.ones(1, "int32"), F=F)
        assert single.first[0] == pos and sum(map(len, kept_outputs[b])) == pos
        plain = numpy.concatenate(plain)
        assert numpy.concatenate(kept_outputs[b]).tobytes() == plain.tobytes()
        want, _ = recurrence(part(stream[b], 0, pos), layers[0].zero_state(), checkpoint=checkpoint, record="float16")
        numpy.testing.assert_allclose(plain, want, atol=1e-4 if checkpoint == "float32" else 8e-3)

    # The next step brings both checkpoints to the same grid point.
    last = join([part(stream[b], rows.first[b], rows.first[b] + 1) for b in range(B)])
    ends = [
        layer.run(deltaring.gdn_verify, last, rows_of([1] * B, None, rows.first, folded, rows.fold_to))
        for layer, folded in zip(layers, [rows.folded, rows.first - 1 - (rows.first - 1) % F])
    ]
    assert ends[0].tobytes() == ends[1].tobytes()
    assert layers[0].state.checkpoint.tobytes() == layers[1].state.checkpoint.tobytes()


def test_commit_moves_cursors_of_rows_with_a_seat():
    rows = rows_of([4, 4, 4], seats=[0, -1, 1], first=[21, 5, 9], folded=[8, 0, 8], fold_to=[16, 0, 8])
    deltaring.commit(rows, numpy.array([4, 4, 0], "int32"), F=F)
    assert rows.first.tolist() == [25, 5, 9]
    assert rows.folded.tolist() == [16, 0, 8]
    assert rows.fold_to.tolist() == [24, 0, 8]
    assert rows.order.tolist() == [0, 2, 1]
    deltaring.commit(rows, numpy.array([0, 0, 8], "int32"), F=F)
    assert rows.order.tolist() == [2, 0, 1]


def test_fold_policy_every_needs_a_ring_of_the_window_only():
    """All records are folded behind each commit; a float32 checkpoint keeps the bits on the host."""
    rng = numpy.random.default_rng(11)
    T, R = 16, deltaring.default_ring_rows(16, F, "every")
    assert R == 16
    layer, plain = Layer(seats=1, R=R), Layer(seats=1, R=R)
    tokens, rows = layer.tokens(rng, 200), rows_of([T], first=[0])
    for _ in range(10):
        kept, begin = rng.integers(1, T + 1, 1).astype("int32"), int(rows.first[0])
        out = numpy.empty((T, 4, 8), "float32")
        deltaring.gdn_verify(**part(tokens, begin, begin + T), rows=rows, state=layer.state, out=out, grain=0)
        deltaring.commit(rows, kept, policy="every")
        deltaring.gdn_fold(rows=rows, state=layer.state, grain=0)
        rows.folded[:] = rows.fold_to
        want = numpy.empty((int(kept[0]), 4, 8), "float32")
        single = rows_of([len(want)], first=[begin], folded=[begin], fold_to=[begin + len(want)])
        deltaring.gdn_prefill(
            **part(tokens, begin, begin + len(want)), rows=single, state=plain.state, out=want, grain=0
        )
        assert out[: len(want)].tobytes() == want.tobytes()


def test_ring_rules():
    assert [deltaring.default_ring_rows(T) for T in (1, 4, 8, 16)] == [16, 16, 32, 64]
    assert deltaring.default_ring_rows(4, policy="every") == 16
    assert deltaring.conv_ring_rows(16, R=64) == 64 and deltaring.conv_ring_rows(16, R=16, policy="every") == 32
    assert deltaring.plan_fold(numpy.array([0, 7, 8, 25])).tolist() == [0, 0, 8, 24]
    deltaring.check_ring(4, R=16)
    with pytest.raises(deltaring.DeltaringError, match="32 works"):
        deltaring.check_ring(8, R=16)
