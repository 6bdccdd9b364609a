"""Results as a table, as JSON and as plots."""

import html
import json
import math
import pathlib
import sys
from typing import Any, Dict, List

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from svg import Panel, picture  # noqa: E402

COLOURS = ["#b84a00", "#0067a8", "#00795a", "#7a3e9d", "#8a6d00", "#c2185b", "#455a64", "#5d4037", "#00838f", "#33691e"]
GROUP = ["op", "state", "T", "n"]  # lines of one table and plot; what is left is B


def groups(lines: List[Dict[str, Any]]) -> Dict[Any, List[Dict[str, Any]]]:
    found: Dict[Any, List[Dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(tuple(line[key] for key in GROUP), []).append(line)
    return found


def title_of(group: Any) -> str:
    op, state, T, n = group
    return {
        "commit": "commit: cursors of a step, all layers",
        "fold": f"fold of {n} records, {state}",
        "snapshot_commit": f"snapshot commit, {state}",
    }.get(op, f"{op.replace('_', ' + ' if op == 'fold_verify' else ' ')}, {state}, T = {T}" + (f", n = {n}" if n else ""))


def table(result: Dict[str, Any]) -> str:
    """Microseconds by kernel and batch; what could not be measured has its reason below."""
    text = [f"{result['device']}: {result['read_TB/s']:.2f} TB/s read"]
    reasons: Dict[str, List[str]] = {}
    for group, lines in groups(result["results"]).items():
        batches = sorted({line["B"] for line in lines})
        text += ["", title_of(group), " " * 28 + "".join(f"{f'B={B}':>10}" for B in batches) + "   share    error"]
        for kernel in dict.fromkeys(line["kernel"] for line in lines):
            cells = {line["B"]: line for line in lines if line["kernel"] == kernel}
            for B, line in cells.items():
                if "us" not in line:
                    reasons.setdefault(f"{kernel}: {line['not_measured']}", []).append(f"{title_of(group)}, B={B}")
            if all("us" not in line for line in cells.values()):
                continue
            us = "".join(f"{cells[B]['us']:10.1f}" if "us" in cells.get(B, {}) else f"{'-':>10}" for B in batches)
            measured = [line for line in cells.values() if "us" in line]
            largest = max(measured, key=lambda line: line["B"])
            errors = [line["error"] for line in measured if line["error"] is not None]
            worst = max(errors, key=lambda e: math.inf if math.isnan(e) else e) if errors else None
            wrong = "  WRONG" if any(line["wrong"] for line in measured) else ""
            share = f"{largest['share']:7.0%}"
            text.append(f"{kernel:28}{us} {share} {'' if worst is None else f'{worst:8.1e}'}{wrong}")
    if result["not_installed"] or reasons:
        text += ["", "Not measured"]
        text += [f"  {name}: {reason}" for name, reason in result["not_installed"].items()]
        for reason, cases in reasons.items():
            text.append(f"  {reason} ({cases[0]}{f', and {len(cases) - 1} more' if len(cases) > 1 else ''})")
    return "\n".join(text)


def write_json(result: Dict[str, Any], path: pathlib.Path) -> None:
    """A head of facts, then a line each, so that two runs can be compared by diff. NaN becomes null."""
    finite = lambda line: {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
    head = json.dumps({key: value for key, value in result.items() if key != "results"}, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(finite(line)) for line in result["results"])
    path.write_text(f'{head},\n "results": [\n{lines}\n ]\n}}\n')


def write_plots(result: Dict[str, Any], folder: pathlib.Path) -> List[pathlib.Path]:
    """A plot of microseconds over batch for each group that has two batches or more."""
    kernels = list(dict.fromkeys(line["kernel"] for line in result["results"]))
    written = []
    for group, lines in groups(result["results"]).items():
        measured = [line for line in lines if "us" in line]
        batches = sorted({line["B"] for line in measured})
        if len(batches) < 2:
            continue
        low, high = min(line["us"] for line in measured), max(line["us"] for line in measured)
        panel = Panel((84, 100, 620, 430), (batches[0] * 0.9, batches[-1] * 1.1), (low * 0.8, high * 1.25))
        panel.axes([(B, str(B)) for B in batches], ticks(low * 0.8, high * 1.25), "requests", "microseconds a layer")
        labels = []
        for kernel in dict.fromkeys(line["kernel"] for line in measured):
            points = sorted((line["B"], line["us"]) for line in measured if line["kernel"] == kernel)
            colour = COLOURS[kernels.index(kernel) % len(COLOURS)]
            panel.line(*zip(*points), colour), panel.dots(*zip(*points), colour)
            labels.append((points[-1][1], f"{html.escape(kernel)} {points[-1][1]:.1f}", colour))
        panel.labels(labels)
        title, device = (html.escape(text) for text in (title_of(group), result["device"]))
        svg = picture(900, title, device, f"{title}: microseconds over batch, both axes logarithmic.", [panel])
        written.append(folder / ("-".join(str(part) for part in group) + ".svg"))
        written[-1].write_text(svg)
    return written


def ticks(low: float, high: float) -> List[Any]:
    """1, 2, 5, 10, ... between low and high."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [(value, f"{value:g}") for value in values if low <= value <= high]
