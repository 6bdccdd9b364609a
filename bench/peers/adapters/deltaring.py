"""This project, through its Python package: on the GPU, or on the host with the cpu backend."""

import functools
from typing import Any, List

import installed
from adapters import Bound, Kernel

GRAIN = 16  # so that 8 records are none that are due
DUE = 8  # the grain where they are


class Layer:
    """The pools of one set."""

    def __init__(self, deltaring: Any, device: Any, inputs: Any) -> None:
        self.deltaring, self.device, self.inputs = deltaring, device, inputs
        case, shape = inputs.case, inputs.shape
        T = max(case.T, case.n, 1)
        self.state = deltaring.GdnState.allocate(
            device.zeros,
            seats=case.B + 1,
            **shape._asdict(),
            R=deltaring.default_ring_rows(T, GRAIN),
            checkpoint=case.state,
            record=device.token_dtype,
            float32="float32",
        )._replace(checkpoint=device.copy(inputs.state))
        self.dt_bias = inputs.dt_bias.reshape(-1, 1)
        self.out = device.zeros((case.B * case.T, shape.Hv, shape.V), device.token_dtype)

    def rows(self, length: int, first: int, fold_to: int) -> Any:
        """All rows alike, with an empty checkpoint behind position 0."""
        B, array = self.inputs.case.B, self.device.array
        return self.deltaring.Rows(
            start=array([length * b for b in range(B + 1)], "int32"),
            seat=self.inputs.seat,
            first=array([first] * B, "int64"),
            folded=array([0] * B, "int64"),
            fold_to=array([fold_to] * B, "int64"),
            longest=length,
        )

    def call(self, op: Any, tokens: Any, rows: Any, out: Any, **options: Any) -> Any:
        """The op with its arguments, to be run later."""
        q, k, v, a, b = (x.reshape(-1, *x.shape[2:]) for x in tokens)
        weights = dict(A_log=self.inputs.A_log, dt_bias=self.dt_bias)
        return functools.partial(op, q, k, v, a.reshape(*a.shape, 1), b, rows=rows, out=out, **weights, **options)

    def remember(self, n: int) -> None:
        """Records of the first n tokens of the history."""
        if n == 0:
            return
        tokens = self.inputs.history.part(0, n)
        out = self.device.zeros((self.inputs.case.B * n, self.inputs.shape.Hv, self.inputs.shape.V), "float32")
        rows = self.rows(n, 0, 0)
        self.call(self.deltaring.gdn_prefill, tokens, rows, out, state=self.state, grain=GRAIN)()

    def seats(self, pool: Any) -> Any:
        return pool[self.device.numpy(self.inputs.seat)]


def load(device: Any) -> List[Kernel]:
    deltaring = installed.load("deltaring")
    if device.name not in deltaring.backends():
        raise installed.NotInstalled(f"deltaring has no {device.name} backend in this build, only {deltaring.backends()}")

    def verify(inputs: Any, fold: bool) -> Bound:
        layer, n = Layer(deltaring, device, inputs), inputs.case.n
        layer.remember(n)
        rows = layer.rows(inputs.case.T, n, n if fold else 0)
        options = dict(state=layer.state, grain=DUE if fold else GRAIN)
        launch = layer.call(deltaring.gdn_verify, inputs.window, rows, layer.out, **options)
        return Bound(launch, lambda: layer.out, (lambda: layer.seats(layer.state.checkpoint)) if fold else None)

    def fold(inputs: Any) -> Bound:
        layer, n = Layer(deltaring, device, inputs), inputs.case.n
        layer.remember(n)
        launch = functools.partial(deltaring.gdn_fold, rows=layer.rows(0, n, n), state=layer.state, grain=0)
        return Bound(launch, state=lambda: layer.seats(layer.state.checkpoint))

    def snapshots(inputs: Any) -> Any:
        B, (Hk, Hv, K, V) = inputs.case.B, inputs.shape
        layer = Layer(deltaring, device, inputs)
        return layer, device.normal((B + 1, max(inputs.case.T, 1), Hv, V, K), inputs.case.state, 1, scale=0.1)

    def snapshot_verify(inputs: Any) -> Bound:
        layer, snapshots_ = snapshots(inputs)
        options = dict(state=layer.state.checkpoint, snapshots=snapshots_)
        rows = layer.rows(inputs.case.T, 0, 0)
        launch = layer.call(deltaring.snapshot_verify, inputs.window, rows, layer.out, **options)
        return Bound(launch, lambda: layer.out, lambda: layer.seats(snapshots_)[:, -1])

    def snapshot_commit(inputs: Any) -> Bound:
        layer, snapshots_ = snapshots(inputs)
        kept = device.array([inputs.case.n] * inputs.case.B, "int32")
        call = functools.partial(deltaring.snapshot_commit, kept, rows=layer.rows(0, 0, 0))
        launch = functools.partial(call, state=layer.state.checkpoint, snapshots=snapshots_)
        picked = lambda: layer.seats(snapshots_)[:, inputs.case.n - 1]
        return Bound(launch, state=lambda: layer.seats(layer.state.checkpoint), want=picked)

    def commit(inputs: Any) -> Bound:
        layer = Layer(deltaring, device, inputs)
        kept = device.array([3] * inputs.case.B, "int32")
        return Bound(functools.partial(deltaring.commit, layer.rows(0, DUE, DUE), kept, F=DUE))

    windows = {"verify": functools.partial(verify, fold=False), "fold_verify": functools.partial(verify, fold=True)}
    others = {"fold": fold, "commit": commit, "snapshot_verify": snapshot_verify, "snapshot_commit": snapshot_commit}
    version = installed.version_of("deltaring", installed.folder_of("deltaring"))
    return [Kernel("deltaring", version, {**windows, **others})]
