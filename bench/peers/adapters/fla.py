"""flash-linear-attention's fused recurrence: outputs of a window without anything to roll back by, or a new state."""

import functools
from typing import Any, List

import installed
from adapters import Bound, Kernel


def load(device: Any) -> List[Kernel]:
    if device.name != "cuda":
        raise installed.NotInstalled("fla's kernels need a GPU")
    version = installed.version_of("fla", installed.folder_of("fla"))
    installed.bare("fla", __version__=version)
    installed.bare("fla.ops.utils")
    installed.bare("fla.ops.gated_delta_rule")
    module = installed.load("fla.ops.gated_delta_rule.fused_recurrent")
    binds = {"verify": functools.partial(verify, device, module), "fold": functools.partial(fold, device, module)}
    return [
        Kernel(
            "fla fused_recurrent",
            version,
            binds,
            refuse=lambda case, shape: "it keeps no records" if case.op == "verify" and case.n else None,
            note="writes neither records nor snapshots: an accepted prefix is run a second time, which is its fold; "
            "that writes a new float32 state",
        )
    ]


def run(module: Any, inputs: Any, tokens: Any, state: Any, final: bool) -> Any:
    return module.fused_recurrent_gated_delta_rule(
        q=tokens.q,
        k=tokens.k,
        v=tokens.v,
        g=tokens.a,
        beta=tokens.b,
        initial_state=state,
        output_final_state=final,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        A_log=inputs.A_log,
        dt_bias=inputs.dt_bias,
        use_beta_sigmoid_in_kernel=True,
        state_v_first=True,
    )


def verify(device: Any, module: Any, inputs: Any) -> Bound:
    state, outs = inputs.state[inputs.seat.long()], []
    launch = lambda: outs.__setitem__(slice(None), [run(module, inputs, inputs.window, state, False)[0]])
    return Bound(launch, lambda: outs[-1])


def fold(device: Any, module: Any, inputs: Any) -> Bound:
    state, states = inputs.state[inputs.seat.long()], []
    tokens = inputs.history.part(0, inputs.case.n)
    launch = lambda: states.__setitem__(slice(None), [run(module, inputs, tokens, state, True)[1]])
    return Bound(launch, state=lambda: states[-1])
