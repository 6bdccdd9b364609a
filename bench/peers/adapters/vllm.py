"""vLLM's recurrent verify: a state behind each token, in pool slots of its own; acceptance picks the next step's first."""

import functools
from typing import Any, List

import installed
from adapters import Bound, Kernel

OPS = "vllm.third_party.flash_linear_attention.ops"


def load(device: Any) -> List[Kernel]:
    if device.name != "cuda":
        raise installed.NotInstalled("vllm's kernels need a GPU")
    version = installed.version_of("vllm", installed.folder_of("vllm"))
    installed.bare(OPS)
    triton = installed.load("triton")
    installed.stand_in("vllm.triton_utils", triton=triton, tl=installed.load("triton.language"))
    module = installed.load(f"{OPS}.fused_sigmoid_gating")
    note = "its commit moves no state: the next step reads the accepted slot"
    return [Kernel("vllm snapshots", version, {"snapshot_verify": functools.partial(bind, device, module)}, note=note)]


def bind(device: Any, module: Any, inputs: Any) -> Bound:
    B, T, (_, Hv, K, V) = inputs.case.B, inputs.case.T, inputs.shape
    pool = device.zeros((B * T + 1, Hv, V, K), inputs.case.state)
    slots = device.array([[1 + b * T + t for t in range(T)] for b in range(B)], "int32")
    pool[slots[:, 0].long()] = inputs.state[inputs.seat.long()]
    q, k, v, a, b = (x.reshape(1, B * T, *x.shape[2:]) for x in inputs.window)
    outs = []
    call = functools.partial(
        module.fused_sigmoid_gating_delta_rule_update,
        A_log=inputs.A_log,
        a=a,
        b=b,
        dt_bias=inputs.dt_bias,
        q=q,
        k=k,
        v=v,
        initial_state=pool,
        cu_seqlens=device.array([T * b for b in range(B + 1)], "int32"),
        ssm_state_indices=slots,
        num_accepted_tokens=device.array([1] * B, "int32"),
        use_qk_l2norm_in_kernel=True,
    )
    launch = lambda: outs.__setitem__(slice(None), [call()[0]])
    return Bound(launch, lambda: outs[-1], lambda: pool[slots[:, -1].long()])
