"""What a process may do around the calls: threads, forks, tensors that come and go."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import numpy
import pytest

import deltaring
from model import Layer, rows_of


def step(seed, stream=None):
    layer = Layer(seats=2)
    tokens = layer.tokens(numpy.random.default_rng(seed), 6)
    return layer.run(deltaring.gdn_verify, tokens, rows_of([4, 2]), stream=stream).tobytes()


def test_threads_share_a_stream():
    want = [step(seed) for seed in range(4)]
    got, shared = {}, deltaring.Stream("cpu", threads=2)

    def work(seed):
        got[seed] = {step(seed, shared) for _ in range(20)}

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[seed] for seed in range(4)] == [{bits} for bits in want]


def test_the_number_of_threads_changes_no_bit():
    assert len({step(1, deltaring.Stream("cpu", threads=n)) for n in (1, 2, 5)}) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_can_go_on():
    """With the default stream and with one made before; neither hangs when it ends in the child."""
    made = deltaring.Stream("cpu", threads=3)
    want = step(2), step(2, made)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a hang ends the child, not the test
        same = (step(2), step(2, made)) == want
        made = None
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_interpreter_ends():
    program = """
import os, signal, sys
import numpy, deltaring
made = deltaring.Stream("cpu", threads=3)
rows = deltaring.Rows(*(numpy.zeros(1, kind) for kind in ["int32", "int32", "int64", "int64", "int64"]))
deltaring.commit(rows, numpy.ones(1, "int32"), stream=made)
deltaring.commit(rows, numpy.ones(1, "int32"))
child = os.fork()
if child == 0:
    signal.alarm(30)
    sys.exit(0)
sys.exit(os.waitpid(child, 0)[1] and 1)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


def test_no_reference_is_kept():
    layer = Layer(seats=2)
    tokens, rows = layer.tokens(numpy.random.default_rng(3), 6), rows_of([4, 2])
    arrays = [*tokens.values(), *layer.state, *rows[:-1]]
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(50):
        layer.run(deltaring.gdn_verify, tokens, rows)
        with pytest.raises(deltaring.DeltaringError):
            layer.run(deltaring.gdn_verify, {**tokens, "beta": tokens["beta"].astype("float64")}, rows)
    gc.collect()
    assert [sys.getrefcount(array) for array in arrays] == before
    alive = [weakref.ref(array) for array in arrays]
    del layer, tokens, rows, arrays
    gc.collect()
    assert not any(array() is not None for array in alive)


def test_streams_end():
    """Threads end with their stream."""
    count = lambda: len(os.listdir("/proc/self/task"))
    before = count()
    for _ in range(20):
        deltaring.Stream("cpu", threads=4)
    gc.collect()
    assert count() <= before
