"""SGLang's Triton kernels: ReplaySSM verify with a compact or an exact ring, the ring of fold-every-commit, snapshots."""

import functools
from typing import Any, List

import installed
from adapters import Bound, Kernel

LINEAR = "sglang.kernels.ops.attention.linear"


def load(device: Any) -> List[Kernel]:
    if device.name != "cuda":
        raise installed.NotInstalled("sglang's kernels need a GPU")
    folder = installed.folder_of("sglang")
    version = installed.version_of("sglang", folder)
    stand_ins(device)
    circular = installed.load(f"{LINEAR}.gdn_replayssm_spec_decode")
    fold = installed.load(f"{LINEAR}.gdn_replayssm_spec_fold")
    recurrent = installed.load(f"{LINEAR}.fused_sigmoid_gating_recurrent")
    scatter = installed.load("sglang.kernels.ops.mamba.mamba_state_scatter_triton")
    bind = lambda function, *modules, **options: functools.partial(function, device, *modules, **options)
    return [
        Kernel(
            "sglang replayssm",
            version,
            {
                "verify": bind(circular_verify, circular, fold=False),
                "fold_verify": bind(circular_verify, circular, fold=True),
                "fold": bind(circular_fold, circular),
                "commit": bind(cursor_commit, circular),
            },
            note="as served: rings of update vectors and keys in high and low parts; a fold is a launch of its own and "
            "restores the cursors that it moves by one copy",
        ),
        Kernel(
            "sglang replayssm exact",
            version,
            {"fold_verify": bind(exact_fold_verify, circular)},
            note="rings of raw inputs too, replayed token by token where a fold is due",
        ),
        Kernel(
            "sglang fold every commit",
            version,
            {"verify": bind(ring_verify, recurrent), "fold": bind(ring_fold, recurrent, fold)},
            refuse=lambda case, shape: "its ring holds one window" if case.op == "verify" and case.n else None,
        ),
        Kernel(
            "sglang snapshots",
            version,
            {
                "snapshot_verify": bind(snapshot_verify, recurrent),
                "snapshot_commit": bind(snapshot_commit, scatter),
            },
        ),
    ]


def stand_ins(device: Any) -> None:
    """What the kernels' modules ask of the rest of sglang: facts about the GPU."""
    facts = dict(
        is_cuda=lambda: True,
        is_hip=lambda: False,
        is_gfx95_supported=lambda: False,
        is_sm90_supported=lambda: device.major == 9,
        get_device_sm=lambda: 10 * device.major,
        get_device_core_count=lambda _=0: device.torch.cuda.get_device_properties(0).multi_processor_count,
    )
    for package in ["attention.linear", "attention.fla", "mamba", "memory"]:
        installed.bare(f"sglang.kernels.ops.{package}")
    installed.bare("sglang.kernels.jit")
    installed.bare("sglang.srt")
    installed.stand_in("sglang.srt.utils", **facts)
    installed.stand_in("sglang.srt.utils.common", **facts)
    installed.stand_in("sglang.kernels.ops.attention.fla.utils", is_tf32_supported=device.major >= 8)
    installed.stand_in("sglang.kernels.jit.utils", is_arch_support_pdl=lambda: device.major >= 9)


def starts(device: Any, inputs: Any) -> Any:
    return device.array([inputs.case.T * b for b in range(inputs.case.B + 1)], "int32")


def flat(tokens: Any) -> Any:
    """[B T, ...]"""
    return [x.reshape(-1, *x.shape[2:]) for x in tokens]


class CircularRing:
    """Checkpoint, rings and cursors of one set. `exact`: raw inputs in the rings beside update vectors, else low parts."""

    def __init__(self, device: Any, module: Any, inputs: Any, exact: bool = False) -> None:
        self.device, self.module, self.inputs = device, module, inputs
        case, (Hk, Hv, K, V) = inputs.case, inputs.shape
        T, pool, zeros = case.T, case.B + 1, device.zeros
        self.L = max(16, 1 << (case.n + 2 * T - 1).bit_length())  # fewer rows and the records would be folded already
        values = lambda: zeros((pool, Hv, self.L, V), "bfloat16")
        keys = lambda: zeros((pool, Hk, self.L, K), "bfloat16")
        numbers = lambda: zeros((pool, Hv, self.L), "float32")
        self.state = device.copy(inputs.state)
        self.rings = dict(d_cache=values(), k_cache=keys(), g_cache=numbers())
        self.raw = dict(rawv_cache=values(), rawk_cache=keys(), beta_cache=numbers() if exact else None)
        # One array, so that one copy restores all cursors.
        self.cursors, torch = zeros(9 * pool, "uint8"), device.torch
        self.written = self.cursors[: 4 * pool].view(torch.int32)
        self.base = self.cursors[4 * pool : 8 * pool].view(torch.int32)
        self.due = self.cursors[8 * pool :].view(torch.int8)
        self.out = zeros((case.B * T, Hv, V), "bfloat16")
        self.starts = starts(device, inputs)
        for tokens, kept in inputs.history_windows():
            self.verify(tokens)()
            self.advance(kept)()

    def verify(self, tokens: Any, mode: str = "verify") -> Any:
        q, k, v, a, b = flat(tokens)
        return functools.partial(
            self.module.gdn_replayssm_spec_decode,
            q=q,
            k=k,
            v=v,
            a=a,
            b=b,
            A_log=self.inputs.A_log,
            dt_bias=self.inputs.dt_bias,
            checkpoint_state=self.state,
            **self.rings,
            **self.raw,
            out=self.out,
            query_start_loc=self.starts,
            ssm_state_indices=self.inputs.seat,
            replay_indices=self.inputs.seat,
            write_pos=self.written,
            cache_base=self.base,
            is_flush=self.due,
            max_cache_len=self.L,
            max_spec_len=self.inputs.case.T,
            null_block_id=-1,
            launch_mode=mode,
        )

    def advance(self, kept: int) -> Any:
        return functools.partial(
            self.module.commit_gdn_replayssm_spec,
            self.written,
            self.base,
            self.due,
            self.device.array([kept] * self.inputs.case.B, "int32"),
            self.inputs.seat,
            max_cache_len=self.L,
            max_spec_len=self.inputs.case.T,
            null_block_id=-1,
        )

    def fold(self) -> Any:
        """Everything written goes into the checkpoint; the cursors are put back first."""
        self.due.fill_(1)
        cursors, layer = self.device.copy(self.cursors), lambda x: x.unsqueeze(0)
        commit = functools.partial(
            self.module.commit_gdn_replayssm_circular,
            checkpoint_state=layer(self.state),
            **{name: layer(ring) for name, ring in self.rings.items()},
            d_residual_cache=layer(self.raw["rawv_cache"]),
            k_residual_cache=layer(self.raw["rawk_cache"]),
            state_batch_indices=self.inputs.seat,
            replay_indices=self.inputs.seat,
            write_pos=self.written,
            cache_base=self.base,
            is_flush=self.due,
            accept_lens=self.device.array([self.inputs.case.n] * self.inputs.case.B, "int32"),
        )
        return lambda: (self.cursors.copy_(cursors), commit())

    def states(self) -> Any:
        return self.state[self.inputs.seat.long()]


def circular_verify(device: Any, module: Any, inputs: Any, fold: bool) -> Bound:
    ring = CircularRing(device, module, inputs)
    verify = ring.verify(inputs.window)
    if not fold:
        return Bound(verify, lambda: ring.out)
    due = ring.fold()
    return Bound(lambda: (due(), verify()), lambda: ring.out, ring.states)


def circular_fold(device: Any, module: Any, inputs: Any) -> Bound:
    ring = CircularRing(device, module, inputs)
    return Bound(ring.fold(), state=ring.states)


def exact_fold_verify(device: Any, module: Any, inputs: Any) -> Bound:
    ring = CircularRing(device, module, inputs, exact=True)
    ring.due.fill_(1)
    return Bound(ring.verify(inputs.window, mode="flush"), lambda: ring.out, ring.states)


def cursor_commit(device: Any, module: Any, inputs: Any) -> Bound:
    return Bound(CircularRing(device, module, inputs).advance(3))


def recurrent_call(device: Any, module: Any, inputs: Any, tokens: Any, state: Any, **options: Any) -> Any:
    """A launch over a window, and a list whose last element is its output, which is a new tensor each time."""
    q, k, v, a, b = flat(tokens)
    packed, outs = [x.unsqueeze(0) for x in (q, k, v)], []
    call = functools.partial(
        module.fused_sigmoid_gating_delta_rule_update,
        A_log=inputs.A_log,
        dt_bias=inputs.dt_bias,
        **dict(zip("qkv", packed)),
        a=a,
        b=b,
        initial_state_source=state,
        initial_state_indices=inputs.seat,
        cu_seqlens=starts(device, inputs),
        use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0,
        softplus_threshold=20.0,
        disable_state_update=True,
        **options,
    )
    return (lambda: outs.__setitem__(slice(None), [call()])), outs


class WindowRing:
    """Raw inputs of one window."""

    def __init__(self, device: Any, inputs: Any) -> None:
        case, (Hk, Hv, K, V) = inputs.case, inputs.shape
        pool, T, zeros = case.B + 1, case.T, device.zeros
        self.state = device.copy(inputs.state)
        self.rings = dict(
            rawv=zeros((pool, Hv, T, V), "bfloat16"),
            rawk=zeros((pool, Hk, T, K), "bfloat16"),
            g=zeros((pool, Hv, T), "float32"),
            beta=zeros((pool, Hv, T), "float32"),
        )

    def verify(self, device: Any, module: Any, inputs: Any, tokens: Any) -> Any:
        rings = {f"replayssm_{name}": ring for name, ring in self.rings.items()}
        return recurrent_call(device, module, inputs, tokens, self.state, cache_ring=True, **rings)


def ring_verify(device: Any, recurrent: Any, inputs: Any) -> Bound:
    launch, outs = WindowRing(device, inputs).verify(device, recurrent, inputs, inputs.window)
    return Bound(launch, lambda: outs[-1])


def ring_fold(device: Any, recurrent: Any, fold: Any, inputs: Any) -> Bound:
    case, ring = inputs.case, WindowRing(device, inputs)
    ring.verify(device, recurrent, inputs, inputs.history)[0]()
    launch = functools.partial(
        fold.commit_gdn_replayssm_fold_all_layers,
        ring.state.unsqueeze(0),
        **{f"{name}_cache": x.unsqueeze(0) for name, x in ring.rings.items()},
        ssm_state_indices=inputs.seat,
        accept_lens=device.array([case.n] * case.B, "int32"),
        max_cache_len=case.T,
        num_k_heads=inputs.shape.Hk,
    )
    return Bound(launch, state=lambda: ring.state[inputs.seat.long()])


def snapshot_buffer(device: Any, inputs: Any) -> Any:
    B, T, (_, Hv, K, V) = inputs.case.B, inputs.case.T, inputs.shape
    return device.normal((B, T, Hv, V, K), inputs.case.state, 1, scale=0.1)


def snapshot_verify(device: Any, module: Any, inputs: Any) -> Bound:
    snapshots = snapshot_buffer(device, inputs)
    rows = device.array(range(inputs.case.B), "int32")
    options = dict(intermediate_states_buffer=snapshots, intermediate_state_indices=rows, cache_steps=inputs.case.T)
    launch, outs = recurrent_call(device, module, inputs, inputs.window, device.copy(inputs.state), **options)
    return Bound(launch, lambda: outs[-1], lambda: snapshots[:, -1])


def snapshot_commit(device: Any, module: Any, inputs: Any) -> Bound:
    state, snapshots = device.copy(inputs.state), snapshot_buffer(device, inputs)
    steps = device.array([inputs.case.n - 1] * inputs.case.B, "int32")
    pools = (state.unsqueeze(0), snapshots.unsqueeze(0))
    launch = functools.partial(module.fused_mamba_state_scatter_with_mask, *pools, inputs.seat, steps)
    return Bound(launch, state=lambda: state[inputs.seat.long()], want=lambda: snapshots[:, inputs.case.n - 1])
