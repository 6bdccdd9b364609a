"""Where tensors lie and how calls are timed: numpy on the host, torch on a GPU."""

import time
from typing import Any, Callable, List

import numpy

REPLAYS = 9  # of which the median counts


class Host:
    """numpy. Times mean little: it is for trying the program out and for its tests."""

    name, token_dtype, cache_bytes = "cpu", "float32", 0
    description = "numpy on the host"

    def normal(self, shape: Any, dtype: str, seed: int, scale: float = 1) -> numpy.ndarray:
        return (scale * numpy.random.default_rng(seed).standard_normal(shape)).astype(dtype)

    def array(self, values: Any, dtype: str) -> numpy.ndarray:
        return numpy.ascontiguousarray(values, dtype=dtype)

    def zeros(self, shape: Any, dtype: str) -> numpy.ndarray:
        return numpy.zeros(shape, dtype)

    def copy(self, x: numpy.ndarray) -> numpy.ndarray:
        return x.copy()

    def numpy(self, x: numpy.ndarray) -> numpy.ndarray:
        return numpy.asarray(x, "int64" if x.dtype.kind in "iu" else "float64")

    def synchronize(self) -> None:
        pass

    def time(self, launches: List[Callable[[], Any]], count: int) -> float:
        times = []
        for _ in range(REPLAYS):
            begin = time.perf_counter()
            for i in range(count):
                launches[i % len(launches)]()
            times.append(time.perf_counter() - begin)
        return sorted(times)[REPLAYS // 2] * 1e6 / count

    def read_rate(self) -> float:
        x = numpy.ones(1 << 22)
        return x.nbytes / self.time([x.sum], 4) * 1e-6


class Cuda:
    """torch on the current GPU; what is timed is replayed as one CUDA graph."""

    name, token_dtype, cache_bytes = "cuda", "bfloat16", 300_000_000

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.description = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch {torch.__version__}"
        self.major = torch.cuda.get_device_capability()[0]

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, name)

    def normal(self, shape: Any, dtype: str, seed: int, scale: float = 1) -> Any:
        generator = self.torch.Generator("cuda").manual_seed(seed)
        x = self.torch.empty(shape, dtype=self.dtype(dtype), device="cuda")
        return x.normal_(0, scale, generator=generator)

    def array(self, values: Any, dtype: str) -> Any:
        return self.torch.tensor(numpy.ascontiguousarray(values), device="cuda").to(self.dtype(dtype))

    def zeros(self, shape: Any, dtype: str) -> Any:
        return self.torch.zeros(shape, dtype=self.dtype(dtype), device="cuda")

    def copy(self, x: Any) -> Any:
        return x.clone()

    def numpy(self, x: Any) -> numpy.ndarray:
        exact = self.torch.float64 if x.is_floating_point() else self.torch.int64
        return x.to(exact).cpu().numpy()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def time(self, launches: List[Callable[[], Any]], count: int) -> float:
        cuda = self.torch.cuda
        graph, begin, end = cuda.CUDAGraph(), cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        with cuda.graph(graph):
            for i in range(count):
                launches[i % len(launches)]()
        times = []
        for _ in range(REPLAYS):
            begin.record(), graph.replay(), end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return sorted(times)[REPLAYS // 2] * 1e3 / count

    def read_rate(self) -> float:
        """Terabytes a second of a plain reduction over 2 GB."""
        x = self.torch.ones(1 << 29, device="cuda")
        self.torch.amax(x)
        return 4 * x.numel() / self.time([lambda: self.torch.amax(x)], 4) * 1e-6


class NoDevice(Exception):
    """Says why, and what works."""


def device_named(name: str) -> Any:
    try:
        return Cuda() if name == "cuda" else Host()
    except Exception as error:  # torch is missing, was built without CUDA, or finds no GPU
        raise NoDevice(f"no GPU for torch here ({error}); --device cpu --tiny tries the program out without") from error
