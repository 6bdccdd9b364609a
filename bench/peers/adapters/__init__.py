"""The kernels that are compared, one module a project: `load(device)` gives those that can run, or raises NotInstalled.

A kernel names the ops it has, refuses cases with a reason, and binds a set of inputs: `Bound.launch()` runs the op once.
Rings and histories are made by a kernel's own verify and commit, as in service.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional

MODULES = ["deltaring", "sglang", "vllm", "fla", "flashinfer"]


class Bound(NamedTuple):
    launch: Callable[[], Any]
    out: Optional[Callable[[], Any]] = None  # outputs of the window, B T Hv V elements in any shape
    state: Optional[Callable[[], Any]] = None  # [B, Hv, V, K] behind the op
    want: Optional[Callable[[], Any]] = None  # what the state must be to the bit, where that is not the recurrence's


class Kernel(NamedTuple):
    name: str
    version: str
    binds: Dict[str, Callable[[Any], Bound]]  # op -> inputs -> Bound
    refuse: Callable[[Any, Any], Optional[str]] = lambda case, shape: None  # why it cannot serve a case
    note: str = ""


def load(module: str, device: Any) -> List[Kernel]:
    import importlib

    return importlib.import_module(f"adapters.{module}").load(device)
