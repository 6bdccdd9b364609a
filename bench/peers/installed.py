"""Single modules out of large packages: sglang, vllm and flashinfer import hundreds of others that a kernel never uses."""

import importlib
import importlib.util
import pathlib
import sys
import types
from typing import Any


class NotInstalled(Exception):
    """Says what is missing."""


def folder_of(package: str) -> pathlib.Path:
    """Where an installed package lies; nothing of it runs. Raises NotInstalled."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalled(f"{package} is not installed")
    return pathlib.Path(list(spec.submodule_search_locations)[0])


def version_of(package: str, folder: pathlib.Path) -> str:
    """From the wheel's own record beside the package."""
    names = {package, *{"flashinfer": ["flashinfer_python"], "fla": ["fla_core"]}.get(package, [])}
    for info in sorted(folder.parent.glob("*.dist-info")):
        name, _, version = info.name[: -len(".dist-info")].rpartition("-")
        if name in names:
            return version
    return "of unknown version"


def bare(package: str, **attributes: Any) -> None:
    """Makes `package` and what is above it importable without running their __init__.py: modules in it import as ever."""
    parts = package.split(".")
    root = folder_of(parts[0]) if parts[0] not in sys.modules else pathlib.Path(sys.modules[parts[0]].__path__[0])
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = [str(root.joinpath(*parts[1:depth]))]
            sys.modules[name] = module
    vars(sys.modules[package]).update(attributes)


def stand_in(name: str, **attributes: Any) -> None:
    """A module with just these attributes, in place of one that would import much more."""
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def load(name: str) -> Any:
    """Imports a module. Raises NotInstalled with the reason if it or something it needs is not there."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise NotInstalled(f"{name} does not import: {type(error).__name__}: {error}") from error
