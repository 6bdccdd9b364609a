"""Times kernels of several projects on the same inputs in the same run, and compares what they compute with float64.

    python3 bench/peers                         on a GPU, every project that is installed (README.md says how)
    python3 bench/peers --device cpu --tiny     the program itself, on the host
"""

import argparse
import json
import math
import pathlib
import sys
import time
from typing import Any, Dict, List

import adapters
import report
import installed
import work
from device import NoDevice, device_named

WRONG = 0.03  # relative to the largest output; a bfloat16 output alone errs by 0.004, a bfloat16 state by as much
COMPARED_ROWS = 3
LAUNCHES = 40  # of a graph, fewer where each moves much
GRAPH_BYTES = 8e9


def cases_of(args: argparse.Namespace) -> List[work.Case]:
    """What matters most first, so that a run that is cut short has it."""
    states = args.states
    T, longer = args.windows[0], args.windows[1:]
    groups = [("verify", T, 0, state) for state in states]
    groups += [("verify", T, 8, states[0]), ("fold_verify", T, 8, states[0]), ("fold", T, 4, states[0])]
    groups += [("snapshot_verify", T, 0, states[0]), ("snapshot_commit", T, 4, states[0]), ("commit", T, 0, states[0])]
    groups += [("verify", t, 0, states[0]) for t in longer]
    groups += [(op, T, n, state) for state in states[1:] for op, n in (("fold_verify", 8), ("fold", 4))]
    groups += [("snapshot_verify", T, 0, state) for state in states[1:]]
    return [
        work.Case(op, t, n, state, B)
        for op, t, n, state in groups
        if args.ops is None or op in args.ops
        for B in args.batches
    ]


def measure(device: Any, kernel: adapters.Kernel, sets: List[work.Inputs], rate: float) -> Dict[str, Any]:
    case, shape = sets[0].case, sets[0].shape
    bounds = [kernel.binds[case.op](inputs) for inputs in sets]
    bounds[0].launch()
    device.synchronize()
    error = compare(device, sets[0], bounds[0])
    for bound in bounds[1:]:
        bound.launch()
    moved = case.bytes(shape, 2 if device.token_dtype == "bfloat16" else 4)
    count = max(len(sets), min(LAUNCHES, int(GRAPH_BYTES / moved)))
    us = device.time([bound.launch for bound in bounds], count)
    wrong = error is not None and not error <= WRONG
    return {"us": round(us, 3), "bytes": moved, "share": round(moved / us * 1e-6 / rate, 4), "error": error, "wrong": wrong}


def compare(device: Any, inputs: work.Inputs, bound: adapters.Bound) -> Any:
    """The larger error of outputs and state in some rows; None for ops that compute nothing."""
    case, shape = inputs.case, inputs.shape
    if bound.out is None and bound.state is None:
        return None
    rows = sorted({0, case.B // 2, case.B - 1})[:COMPARED_ROWS]
    if bound.want is not None:
        return work.error(device.numpy(bound.state()[rows]), device.numpy(bound.want()[rows]))
    want, errors = work.expected(device, inputs, rows), []
    if bound.out is not None:
        out = device.numpy(bound.out().reshape(case.B, case.T, shape.Hv, shape.V)[rows])
        errors.append(work.error(out, want.out))
    if bound.state is not None:
        after = want.after if case.op == "snapshot_verify" else want.before
        errors.append(work.error(device.numpy(bound.state()[rows]), after))
    return math.nan if any(math.isnan(e) for e in errors) else float(f"{max(errors):.3g}")


def run(args: argparse.Namespace) -> Dict[str, Any]:
    begin, device = time.monotonic(), device_named(args.device)
    say = lambda text: print(f"{time.monotonic() - begin:6.1f} s  {text}", file=sys.stderr, flush=True)
    result: Dict[str, Any] = {
        "device": device.description,
        "read_TB/s": round(device.read_rate(), 4),
        "shape": args.shape._asdict(),
        "kernels": {},
        "not_installed": {},
        "results": [],
    }
    available: List[adapters.Kernel] = []
    for module in args.peers:
        try:
            available += adapters.load(module, device)
        except installed.NotInstalled as reason:
            result["not_installed"][module] = str(reason)
            say(f"{module}: {reason}")
    result["kernels"] = {k.name: {"version": k.version, **({"note": k.note} if k.note else {})} for k in available}
    for case in cases_of(args):
        asked = [kernel for kernel in available if case.op in kernel.binds]
        bytes_of_set = case.B * args.shape.Hv * args.shape.V * args.shape.K * 2
        count = min(max(2, -(-device.cache_bytes // bytes_of_set)), 64)
        sets = None
        for kernel in asked:
            line = {"kernel": kernel.name, **case._asdict()}
            reason = kernel.refuse(case, args.shape)
            if reason is None and time.monotonic() - begin > args.seconds:
                reason = f"the run's {args.seconds:g} seconds were over"
            if reason is None:
                sets = sets or [work.make_inputs(device, case, args.shape, 1000 * i) for i in range(count)]
                try:
                    line.update(measure(device, kernel, sets, result["read_TB/s"]))
                except Exception as error:  # a peer's failure is a result, not the end of the run
                    reason = f"{type(error).__name__}: {str(error).strip()[:300]}"
            if reason is not None:
                line["not_measured"] = reason
            result["results"].append(line)
            say(json.dumps(line))
        report.write_json(result, args.out / "peers.json")
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(number) for number in text.split(",")]
    names = lambda text: text.split(",")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--peers", type=names, default=adapters.MODULES, help="of " + ",".join(adapters.MODULES))
    parser.add_argument("--ops", type=names, help="of " + ",".join(work.OPS))
    parser.add_argument("--batches", type=numbers, default=[128, 1, 8, 32, 256])
    parser.add_argument("--windows", type=numbers, default=[8, 4, 16], help="T; the first in every op, the others in verify")
    parser.add_argument("--states", type=names, default=["bfloat16", "float32"])
    parser.add_argument("--seconds", type=float, default=540, help="after which no measurement is begun")
    parser.add_argument("--tiny", action="store_true", help="a small layer and small batches, to try the program out")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/peers-results"), help="folder")
    args = parser.parse_args()
    args.shape = work.Shape()
    if args.tiny:
        args.shape, args.batches, args.windows = work.Shape(Hk=2, Hv=4, K=16, V=16), [1, 3], [8, 4]
    if args.device == "cpu":
        args.states = ["float32", "float16"]
    for name in args.peers:
        if name not in adapters.MODULES:
            parser.error(f"--peers {name}: there are {', '.join(adapters.MODULES)}")
    for name in args.ops or []:
        if name not in work.OPS:
            parser.error(f"--ops {name}: there are {', '.join(work.OPS)}")
    return args


def main() -> int:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        result = run(args)
    except NoDevice as reason:
        print(f"peers: {reason}", file=sys.stderr)
        return 2
    print(report.table(result))
    for path in [args.out / "peers.json", *report.write_plots(result, args.out)]:
        print(f"written: {path}")
    return 1 if any(line.get("wrong") for line in result["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
