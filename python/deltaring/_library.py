"""The shared library, its one error, and what calls run on."""

import numbers
import pathlib
from typing import Any, Dict, List, Optional

import tvm_ffi


@tvm_ffi.register_error
class DeltaringError(ValueError):
    """Something impossible was asked. The text says what, what is possible, and often a value that works."""

    __module__ = "deltaring"


_library = tvm_ffi.load_module(str(pathlib.Path(__file__).with_name("_ops.so")))

# What arguments that are not tensors must be.
_SCALARS = {
    "backend": (str, "a name"),
    **dict.fromkeys(
        "threads rows.longest grain norm policy T F R taps layers seat folded pos count".split(),
        (numbers.Integral, "an integer"),
    ),
    "scale": (numbers.Real, "a number"),
    "bit_exact": (numbers.Integral, "True or False"),
}


class Function:
    """A function of the library; `names` are those of its arguments, for errors."""

    def __init__(self, name: str, *names: str) -> None:
        self.name, self.names, self._function = name, names, getattr(_library, name)

    def __call__(self, *values: Any) -> Any:
        try:
            return self._function(*values)
        except DeltaringError:
            raise
        except Exception as error:
            problems = map(self._problem, self.names, values)
            raise DeltaringError(next(filter(None, problems), f"{self.name}: {error}")) from error

    def _problem(self, name: str, value: Any) -> Optional[str]:
        """What is wrong with an argument that could not be handed over."""
        if name in _SCALARS:
            kind, words = _SCALARS[name]
            return None if isinstance(value, kind) else f"{self.name}: {name} is {value!r}, want {words}"
        if value is None or name == "stream":
            return None
        if not hasattr(type(value), "__dlpack__"):
            return f"{self.name}: {name} is a {type(value).__name__}, want a tensor, that is an object with __dlpack__"
        try:
            tvm_ffi.from_dlpack(value)
        except Exception as error:
            return f"{self.name}: {name} cannot be lent through DLPack: {error}"
        return None


def code(function: str, name: str, value: Any, codes: Dict[str, int]) -> int:
    """The number of an argument that is one of a few names."""
    if not isinstance(value, str) or value not in codes:
        raise DeltaringError(f"{function}: {name} is {value!r}, want one of {', '.join(map(repr, codes))}")
    return codes[value]


POLICY = {"grid": 0, "every": 1}
NORM = {"l2": 0, "none": 1}


def backends() -> List[str]:
    """The names of the backends of this build.

    >>> "cpu" in backends()
    True
    """
    return [str(name) for name in _library.backends()]


_streams = Function("streams", "backend", "threads")


class Stream:
    """What calls run on. Without one a call follows its tensors: those of the host are computed by the cpu backend with
    one thread per core, those of a CUDA device on the stream that the caller's library works on (torch's current stream;
    of other libraries the one in `tvm_ffi.use_raw_stream`, or CUDA's default stream). Calls on the host have run when
    they return, calls on a device have been launched.

    backend: None for that, or a backend of the host by name, "cpu" or "reference" (double precision, slow)
    threads: of the host, the caller included, at most 1024; 0 = one per core
    Raises DeltaringError for a backend that this build has not or that does not compute on the host.

    Python threads may share one: calls wait for each other, and Python's lock is released meanwhile. Behind a fork the
    child has threads of its own.

    >>> Stream("reference", threads=1)
    Stream('reference', threads=1)
    """

    def __init__(self, backend: Optional[str] = None, threads: int = 0) -> None:
        self._name = f"Stream({backend!r}, threads={threads})"
        self._streams = _streams("" if backend is None else backend, threads)

    def __repr__(self) -> str:
        return self._name


_default = Stream()


class Op(Function):
    """A function that runs on a stream, None for the one that follows the tensors."""

    def __init__(self, name: str, *names: str) -> None:
        super().__init__(name, "stream", *names)

    def __call__(self, stream: Optional[Stream], *values: Any) -> Any:
        if stream is None:
            stream = _default
        if not isinstance(stream, Stream):
            raise DeltaringError(f"{self.name}: stream is a {type(stream).__name__}, want a deltaring.Stream or None")
        return super().__call__(stream._streams, *values)
