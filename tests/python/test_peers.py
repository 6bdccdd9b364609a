"""bench/peers on the host: the reference, the program from end to end, and that what is wrong or missing is said."""

import json
import pathlib
import subprocess
import sys

import numpy
import pytest

import model

PEERS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"
sys.path.append(str(PEERS))

import adapters  # noqa: E402
import installed  # noqa: E402
import report  # noqa: E402
import work  # noqa: E402
from device import Host  # noqa: E402

SHAPE = work.Shape(Hk=2, Hv=4, K=16, V=8)


def case(op="verify", T=4, n=6, state="float32", B=3):
    return work.Case(op, T, n, state, B)


def test_reference_is_the_recurrence_of_the_ops():
    inputs = work.make_inputs(Host(), case(), SHAPE, seed=1)
    got = work.expected(Host(), inputs, [2])
    join = lambda name: numpy.concatenate([getattr(inputs.history, name)[2, :6], getattr(inputs.window, name)[2]])
    a, b = join("a").astype("float64"), join("b").astype("float64")
    tokens = {name: join(name).astype("float64") for name in "qkv"}
    A_log, dt_bias = inputs.A_log.astype("float64"), inputs.dt_bias.astype("float64")
    tokens["g"] = (-numpy.exp(A_log) * numpy.log1p(numpy.exp(a + dt_bias)))[..., None]
    tokens["beta"] = 1 / (1 + numpy.exp(-b))
    S = inputs.state[inputs.seat[2]].astype("float64")
    out, after = model.recurrence(tokens, S, checkpoint="float64", record="float64")
    assert numpy.allclose(got.out[0], out[6:], rtol=1e-12, atol=1e-12)
    assert numpy.allclose(got.after[0], after, rtol=1e-12, atol=1e-12)


def test_history_windows_hold_the_history():
    inputs = work.make_inputs(Host(), case(T=4, n=6), SHAPE, seed=2)
    windows = inputs.history_windows()
    assert [kept for _, kept in windows] == [4, 2]
    kept = numpy.concatenate([tokens.k[:, :kept] for tokens, kept in windows], axis=1)
    assert (kept == inputs.history.k[:, :6]).all()
    assert all(tokens.k.shape[1] == 4 for tokens, _ in windows)


def test_bytes():
    state, record = 4 * 16 * 8 * 4, (2 * 16 + 4 * 8) * 2 + 8 * 4
    window = 4 * ((2 * 2 * 16 + 2 * 4 * 8) * 2 + 2 * 4 * 2)
    assert case().bytes(SHAPE) == 3 * (state + 6 * record + window + 4 * record)
    assert case("fold").bytes(SHAPE) == 3 * (2 * state + 6 * record)
    assert case("snapshot_verify").bytes(SHAPE) == 3 * (5 * state + window)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of the program, as a person would start it."""
    folder = tmp_path_factory.mktemp("peers")
    options = ["--device", "cpu", "--tiny", "--out", str(folder)]
    run = subprocess.run([sys.executable, str(PEERS), *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return folder, run.stdout, json.loads((folder / "peers.json").read_text())


def test_program_measures_every_op(whole):
    folder, text, result = whole
    lines = result["results"]
    assert {line["op"] for line in lines} == set(work.OPS)
    assert all(line["us"] > 0 and not line["wrong"] for line in lines)
    computed = [line for line in lines if line["op"] != "commit"]
    assert all(line["error"] < (1e-3 if line["state"] == "float16" else 1e-6) for line in computed)
    assert all(f"{kernel} " in text for kernel in result["kernels"])
    plots = list(folder.glob("*.svg"))
    assert len(plots) == len(report.groups(lines))
    assert all("<polyline" in plot.read_text() for plot in plots)


def test_what_is_missing_is_listed_with_its_reason(whole):
    _, text, result = whole
    assert set(result["not_installed"]) == set(adapters.MODULES) - {"deltaring"}
    assert all(f"{name}: {reason}" in text for name, reason in result["not_installed"].items())


def test_unknown_names_are_refused():
    for flag, name in [("--peers", "nobody"), ("--ops", "nothing")]:
        run = subprocess.run([sys.executable, str(PEERS), flag, name], capture_output=True, text=True)
        assert run.returncode == 2 and f"{flag} {name}: there are" in run.stderr


def test_without_a_gpu_the_program_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    monkeypatch.setattr(sys, "argv", ["peers", "--out", str(tmp_path)])
    assert main_module().main() == 2
    assert "no GPU for torch here" in capsys.readouterr().err


def main_module():
    """bench/peers/__main__.py under a name of its own."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("peers_main", PEERS / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("spoil", [1.1, numpy.nan])
def test_a_wrong_kernel_is_caught(spoil):
    def bind(inputs):
        want = work.expected(Host(), inputs, list(range(inputs.case.B))).out
        return adapters.Bound(lambda: None, lambda: want * [1, spoil][inputs.case.n > 0])

    kernel = adapters.Kernel("spoiled", "0", {"verify": bind})
    measure = lambda n: main_module().measure(Host(), kernel, [work.make_inputs(Host(), case(n=n), SHAPE, 3)], 1.0)
    assert not measure(0)["wrong"]
    assert measure(6)["wrong"]


def test_failures_and_refusals_are_results(monkeypatch, tmp_path):
    main = main_module()

    def fails(inputs):
        raise RuntimeError("out of registers")

    refuse = lambda case, shape: "one row only" if case.B > 1 else None
    monkeypatch.setattr(adapters, "load", lambda module, device: [adapters.Kernel("odd", "1", {"commit": fails}, refuse)])
    monkeypatch.setattr(sys, "argv", ["peers", "--device", "cpu", "--tiny", "--ops", "commit", "--peers", "fla"])
    args = main.arguments()
    args.out = tmp_path
    result = main.run(args)
    assert [line["not_measured"] for line in result["results"]] == ["RuntimeError: out of registers", "one row only"]
    text = report.table(result)
    assert "odd: RuntimeError: out of registers" in text and "odd: one row only" in text


def test_single_modules_load_without_their_package(tmp_path, monkeypatch):
    for folder, text in {"": "raise ImportError('the whole package')", "a": "raise ImportError('a')"}.items():
        (tmp_path / "heavy_thing" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "heavy_thing" / folder / "__init__.py").write_text(text)
    (tmp_path / "heavy_thing" / "a" / "kernel.py").write_text("from heavy_thing.facts import answer\nvalue = answer + 1\n")
    (tmp_path / "heavy_thing-2.1.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.version_of("heavy_thing", installed.folder_of("heavy_thing")) == "2.1"
    installed.bare("heavy_thing.a")
    with pytest.raises(installed.NotInstalled, match="heavy_thing.a.kernel does not import.*facts"):
        installed.load("heavy_thing.a.kernel")
    installed.stand_in("heavy_thing.facts", answer=41)
    assert installed.load("heavy_thing.a.kernel").value == 42
    with pytest.raises(installed.NotInstalled, match="nothing_of_that_name is not installed"):
        installed.folder_of("nothing_of_that_name")
