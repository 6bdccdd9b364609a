"""FlashInfer's CuTe DSL kernels that run on Hopper: output-only MTP, the u-cache ring, and recurrences with snapshots."""

import functools
from typing import Any, List

import installed
from adapters import Bound, Kernel

GDN = "flashinfer.gdn_kernels"


def load(device: Any) -> List[Kernel]:
    if device.name != "cuda":
        raise installed.NotInstalled("flashinfer's kernels need a GPU")
    folder = installed.folder_of("flashinfer")
    version = installed.version_of("flashinfer", folder)
    installed.load("cutlass")
    installed.bare(GDN)
    installed.bare("flashinfer.jit")
    # Compiles in the process; the real one also keeps what it compiled on disk, for which it needs the whole package.
    compiled = lambda module, name, compile_kernel, *_, **__: compile_kernel()
    installed.stand_in("flashinfer.jit.cute_dsl_core", build_and_load_cute_dsl_kernel=compiled)
    output_only = installed.load(f"{GDN}.gdn_decode_bf16_wy_output_only")
    ucache = installed.load(f"{GDN}.gdn_decode_bf16_wy_ucache_flush")
    state = installed.load(f"{GDN}.gdn_decode_bf16_state")
    mtp = installed.load(f"{GDN}.gdn_decode_mtp")
    bind = lambda function, *modules, **options: functools.partial(function, device, *modules, **options)
    return [
        Kernel(
            "flashinfer wy",
            version,
            {"verify": bind(wy_verify, output_only)},
            refuse=lambda case, shape: _bf16(case) or ("it keeps no records" if case.n else None),
            note="writes no records: an accepted prefix is run a second time",
        ),
        Kernel(
            "flashinfer ucache",
            version,
            {
                "verify": bind(ucache_verify, ucache, fold=False),
                "fold_verify": bind(ucache_verify, ucache, fold=True),
            },
            refuse=lambda case, shape: _bf16(case) or (None if case.T in (4, 8) else "it serves T = 4 and 8"),
        ),
        Kernel(
            "flashinfer bf16 state",
            version,
            {"snapshot_verify": bind(state_snapshots, state), "fold": bind(state_fold, state)},
            refuse=lambda case, shape: _bf16(case),
        ),
        Kernel(
            "flashinfer mtp",
            version,
            {"snapshot_verify": bind(mtp_snapshots, mtp)},
            refuse=lambda case, shape: None if case.state == "float32" else "it serves float32 states",
        ),
    ]


def _bf16(case: Any) -> Any:
    return None if case.state == "bfloat16" else "it serves bfloat16 states"


def named(inputs: Any, tokens: Any) -> Any:
    return dict(tokens._asdict(), A_log=inputs.A_log, dt_bias=inputs.dt_bias)


def pool_call(function: Any, inputs: Any, tokens: Any, state: Any, **options: Any) -> Any:
    """A launch over the seats of a pool, with the output it wrote."""
    out = tokens.v.new_empty(tokens.v.shape)
    options = dict(options, initial_state_source=state, initial_state_indices=inputs.seat, output=out)
    return functools.partial(function, **named(inputs, tokens), **options), out


def wy_verify(device: Any, module: Any, inputs: Any) -> Bound:
    outs = []  # a new tensor each time: one that is given would be copied to
    call = functools.partial(
        module.gated_delta_rule_mtp,
        **named(inputs, inputs.window),
        initial_state_source=device.copy(inputs.state),
        initial_state_indices=inputs.seat,
        disable_state_update=True,
    )
    return Bound(lambda: outs.__setitem__(slice(None), [call()]), lambda: outs[-1])


class UCache:
    """Checkpoint, ring and cursors of one set; the cursors are the caller's to move."""

    def __init__(self, device: Any, module: Any, inputs: Any) -> None:
        self.module, self.inputs = module, inputs
        case, (Hk, Hv, K, V) = inputs.case, inputs.shape
        pool, R = case.B + 1, module.RING_SLOTS
        self.state = device.copy(inputs.state)
        self.rings = dict(
            k_cache=device.zeros((pool, Hk, R, K), "bfloat16"),
            u_cache=device.zeros((pool, Hv, R, V), "bfloat16"),
            g_cache=device.zeros((pool, Hv, R), "float32"),
            hist_len=device.zeros(case.B, "int32"),
            cache_base=device.zeros(case.B, "int32"),
        )
        for tokens, kept in inputs.history_windows():
            self.verify(tokens)[0]()
            self.rings["hist_len"] += kept

    def verify(self, tokens: Any, flush_min: Any = None) -> Any:
        function = self.module.gated_delta_rule_mtp_ucache_flush
        options = dict(self.rings, flush_min=flush_min, restart_hist_on_flush=False, backend="hmma")
        return pool_call(function, self.inputs, tokens, self.state, **options)


def ucache_verify(device: Any, module: Any, inputs: Any, fold: bool) -> Bound:
    ring = UCache(device, module, inputs)
    launch, out = ring.verify(inputs.window, inputs.case.n if fold else None)
    return Bound(launch, lambda: out, (lambda: ring.state[inputs.seat.long()]) if fold else None)


def state_snapshots(device: Any, module: Any, inputs: Any) -> Bound:
    B, T, (_, Hv, K, V) = inputs.case.B, inputs.case.T, inputs.shape
    snapshots = device.zeros((B, T, Hv, V, K), "bfloat16")
    options = dict(intermediate_states_buffer=snapshots, disable_state_update=True)
    launch, out = pool_call(module.gated_delta_rule_mtp, inputs, inputs.window, device.copy(inputs.state), **options)
    return Bound(launch, lambda: out, lambda: snapshots[:, -1])


def state_fold(device: Any, module: Any, inputs: Any) -> Bound:
    state, tokens = device.copy(inputs.state), inputs.history.part(0, inputs.case.n)
    launch, _ = pool_call(module.gated_delta_rule_mtp, inputs, tokens, state, disable_output=True)
    return Bound(launch, state=lambda: state[inputs.seat.long()])


def mtp_snapshots(device: Any, module: Any, inputs: Any) -> Bound:
    B, T, (Hk, Hv, K, V) = inputs.case.B, inputs.case.T, inputs.shape
    state, snapshots = device.copy(inputs.state), device.zeros((B, T, Hv, V, K), "float32")
    window, out = inputs.window, device.zeros((B, T, Hv, V), "bfloat16")
    launch = functools.partial(
        module.run_mtp_decode,
        state.view(-1, V, K),
        snapshots.view(-1, V, K),
        inputs.A_log,
        window.a,
        inputs.dt_bias,
        window.q,
        window.k,
        window.v,
        window.b,
        out,
        inputs.seat,
        B,
        T,
        Hk,
        Hv,
        K,
        V,
        B + 1,
        T,
        module.get_tile_v_mtp(B, T, num_v_heads=Hv, v_dim=V),
        module.get_vec_size_mtp(B, T),
        K**-0.5,
        True,
        True,
        True,
    )
    return Bound(launch, lambda: out, lambda: snapshots[:, -1])
