"""What is measured: a case, its inputs, and the recurrence in float64 that outputs are compared with.

Symbols as in deltaring.types: B rows (requests), T tokens of a window, n records before it, Hk and Hv heads, K and V
their dims. Seat 0 of every pool is left out, since some engines take it for padding.
"""

from typing import Any, List, NamedTuple, Optional

import numpy

OPS = {
    "verify": "outputs of a window behind n tokens that are not in the state yet",
    "fold_verify": "those n tokens into the state, then the window",
    "fold": "n accepted tokens into the state",
    "snapshot_verify": "outputs of a window, and the state behind each of its tokens",
    "snapshot_commit": "the state behind token n becomes the request's",
    "commit": "cursors of a step, for all layers of a model",
}


class Shape(NamedTuple):
    """A layer; the defaults are Qwen3.8-27B's."""

    Hk: int = 16
    Hv: int = 48
    K: int = 128
    V: int = 128


class Case(NamedTuple):
    op: str
    T: int
    n: int
    state: str
    B: int

    def bytes(self, shape: Shape, token_size: int = 2, state_size: Optional[int] = None) -> int:
        """What any implementation must move: state, records of raw k, v, g, beta, window and outputs."""
        Hk, Hv, K, V = shape
        state = Hv * V * K * (state_size or {"float32": 4}.get(self.state, 2))
        record = (Hk * K + Hv * V) * token_size + 8 * Hv
        window = self.T * ((2 * Hk * K + 2 * Hv * V) * token_size + 2 * Hv * token_size)
        row = {
            "verify": state + self.n * record + window + self.T * record,
            "fold_verify": 2 * state + self.n * record + window + self.T * record,
            "fold": 2 * state + self.n * record,
            "snapshot_verify": (1 + self.T) * state + window,
            "snapshot_commit": 2 * state,
            "commit": 48,
        }[self.op]
        return self.B * row


class Tokens(NamedTuple):
    """Raw inputs of `length` tokens of every row. q, k: [B, length, Hk, K]; v: [B, length, Hv, V]; raw gates a, b:
    [B, length, Hv]."""

    q: Any
    k: Any
    v: Any
    a: Any
    b: Any

    def part(self, begin: int, end: int) -> "Tokens":
        """Tokens [begin, end) of every row, contiguous."""
        return Tokens(*(x[:, begin:end].reshape(x.shape[0], end - begin, *x.shape[2:]) for x in self))


class Inputs(NamedTuple):
    """One set of a case. history: n tokens, then fillers up to whole windows of T; window: T tokens."""

    case: Case
    shape: Shape
    A_log: Any  # [Hv] float32, numbers that bfloat16 holds, since some kernels round them
    dt_bias: Any  # [Hv]
    seat: Any  # [B] int32, no seat twice, none of them 0
    state: Any  # [B + 1, Hv, V, K], never written: kernels work on copies
    history: Tokens
    window: Tokens

    def history_windows(self) -> List[Any]:
        """(tokens, kept): windows of T tokens whose first `kept` make the history."""
        n, T = self.case.n, self.case.T
        return [(self.history.part(i, i + T), min(T, n - i)) for i in range(0, n, T)]


def make_inputs(device, case: Case, shape: Shape, seed: int) -> Inputs:
    Hk, Hv, K, V = shape
    B, t = case.B, device.token_dtype
    rng = numpy.random.default_rng(seed)

    def tokens(count: int, seed: int) -> Tokens:
        normal = [device.normal((B, count, H, D), t, seed + i) for i, (H, D) in enumerate([(Hk, K), (Hk, K), (Hv, V)])]
        return Tokens(*normal, *(device.normal((B, count, Hv), t, seed + i) for i in (3, 4)))

    weight = lambda low, high: device.array(numpy.round(rng.uniform(low, high, Hv) * 32) / 32, "float32")
    return Inputs(
        case,
        shape,
        A_log=weight(-4, 0),
        dt_bias=weight(0, 1),
        seat=device.array(1 + rng.permutation(B), "int32"),
        state=device.normal((B + 1, Hv, V, K), case.state, seed + 5, scale=0.1),
        history=tokens(-(-case.n // case.T) * case.T if case.T else case.n, seed + 10),
        window=tokens(case.T, seed + 20),
    )


class Expected(NamedTuple):
    out: numpy.ndarray  # [rows, T, Hv, V]
    before: numpy.ndarray  # [rows, Hv, V, K] behind the history
    after: numpy.ndarray  # behind the window


def expected(device, inputs: Inputs, rows: List[int]) -> Expected:
    """The recurrence, token by token, in float64, for some rows; nothing is rounded."""
    shape, weights = inputs.shape, [device.numpy(x) for x in (inputs.A_log, inputs.dt_bias)]
    S = numpy.stack([device.numpy(inputs.state[int(seat)]) for seat in device.numpy(inputs.seat)[rows]])

    def run(tokens: Tokens, count: int, S: numpy.ndarray) -> Any:
        q, k, v, a, b = (device.numpy(x[rows, :count]) for x in tokens)
        g = -numpy.exp(weights[0]) * numpy.logaddexp(0, a + weights[1])
        beta = 1 / (1 + numpy.exp(-b))
        heads = lambda x: numpy.repeat(x, shape.Hv // shape.Hk, axis=2)
        norm = lambda x: x / numpy.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
        q, k = heads(norm(q)) * shape.K**-0.5, heads(norm(k))
        out = numpy.empty((len(rows), count, shape.Hv, shape.V))
        for t in range(count):
            S = S * numpy.exp(g[:, t])[..., None, None]
            d = beta[:, t, :, None] * (v[:, t] - numpy.einsum("rhvk,rhk->rhv", S, k[:, t]))
            S = S + d[..., None] * k[:, t, :, None, :]
            out[:, t] = numpy.einsum("rhvk,rhk->rhv", S, q[:, t])
        return out, S

    before = run(inputs.history, inputs.case.n, S)[1]
    out, after = run(inputs.window, inputs.case.T, before)
    return Expected(out, before, after)


def error(found: numpy.ndarray, want: numpy.ndarray) -> float:
    """The largest difference, relative to the largest number; NaN anywhere is NaN."""
    return float(numpy.abs(found - want).max() / numpy.abs(want).max())
