"""Loads the modules of a bundle: compiled kernels beside their generated sources.

`leapgen build --bundle` copies this file into the bundle as `_bundled.py`, beside `_host/`. It
needs torch and the standard library: kernels of the CPU are called through ctypes, those of a GPU
are launched through the driver. TileLang is imported by `load(..., compile=True)` only.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.util
import json
import platform
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leapgen.runtime import host
from leapgen.runtime.prebuilt import Built, BundleError, Kernels, Loader, Parameter

MANIFEST = "manifest.json"
SCHEMA = 1
COPIED = ("bundled.py", "bound.py", "launches.py", "prebuilt.py")
"""Besides the host: files of the runtime that need nothing but each other."""
IMPORT = "import tilelang.language as T\n"
WITHOUT = "T = None  # no TileLang: builders of prim_funcs are not called here\n"
_NUMBERS = ("K", "V", "H", "HV", "P", "R", "D")
# What compilers use of a CPU; /proc/cpuinfo also has marks of kernels and hypervisors.
_ISA = re.compile(r"(s?sse|avx|fma|f16c|bmi|abm|popcnt|movbe|adx|aes|vaes|v?pclmul|gfni|sha_|amx)")
_LOCK = threading.RLock()


def features() -> set[str]:
    """Instruction sets of this machine's CPU, as Linux names them; empty where nothing tells."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    found = re.search(r"^(flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if found is None:
        return set()
    words = found.group(2).split()
    return {w for w in words if found.group(1) == "Features" or _ISA.match(w)}


def digest_of(path: Path) -> str:
    """SHA-256 of a file; "nothing" where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "nothing"


def key_of(kernel: str, shape: Mapping[str, int], config: Mapping[str, Any]) -> str:
    """Identifies a compiled kernel of a module."""
    return host.key_of(kernel=kernel, shape=dict(shape), config=dict(config))


def _words(shape: Mapping[str, int]) -> str:
    names = {"P": "window", "R": "compensators", "D": "drafts"}
    parts = [f"{names.get(n, n)}={shape[n]}" for n in _NUMBERS if n != "D" or shape[n]]
    return " ".join(parts)


class Bundle:
    """A folder that `leapgen build --bundle` wrote; reading its manifest is all that is done.

    package   name of the Python package that the folder is
    Errors: BundleError for a manifest that is absent or of another version.
    """

    def __init__(self, folder: Path, package: str) -> None:
        self.folder, self.package = folder, package
        path = folder / MANIFEST
        try:
            self.manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: cannot be read: {error}") from error
        found = self.manifest.get("schema")
        if found != SCHEMA:
            raise BundleError(f"{path}: schema: expected {SCHEMA}, found {found}")
        for name in self.manifest["files"]:
            if name.startswith("_"):
                self._check(name)

    def text(self) -> str:
        """A line a module and shape, with the kernels that are compiled for it."""
        lines = []
        for module in self.manifest["modules"]:
            for shape in self._shapes(module):
                names = sorted({k["kernel"] for k in module["kernels"] if k["shape"] == shape})
                lines.append(
                    f"{module['name']} {module['arch']}: {_words(shape)}: {', '.join(names)}"
                )
        return "\n".join(lines)

    def load(
        self,
        name: str,
        *,
        arch: str | None = None,
        pin_config: bool = False,
        compile: bool = False,
    ) -> host.Module:
        """The module of a recurrence, ready to allocate pools and to step; see `leapgen.load`.

        name        a module of `text()`
        arch        default: the present GPU's, or cpu without one
        pin_config  one config for all batch sizes, so that results do not depend on the batch
        compile     let TileLang compile shapes and configs that the bundle does not have; they are
                    refused otherwise

        Every file of the module is compared with the manifest first.
        Errors: BundleError.
        """
        found = self._module(name, arch or self._present())
        for file in self._files(found):
            self._check(file)
        if found["arch"] == "cpu":
            self._check_machine()
        made = self._import(found, compile)
        device = "cpu" if found["arch"] == "cpu" else "cuda"
        other = host.TileLang(device) if compile else None
        kernels = Kernels(
            (n, replace(k, build=partial(self._build, found, n, k.build if compile else None)))
            for n, k in made.kernels.items()
        )
        kernels.known = None if compile else {k["kernel"] for k in found["kernels"]}
        limits = made.limits if compile else partial(self._limits, found, made.limits)
        loaded = replace(
            made, kernels=kernels, limits=limits, backend=Loader(self.folder, device, other)
        )
        table = self._table(found)
        return loaded.with_table(table, pin=pin_config) if table or pin_config else loaded

    # -- what there is

    def _present(self) -> str:
        if not torch.cuda.is_available():
            return "cpu"
        capability = list(torch.cuda.get_device_capability())
        known = self.manifest["archs"]
        for arch, row in known.items():
            if capability in [c for c, _ in row["targets"]]:
                return str(arch)
        number = ".".join(map(str, capability))
        raise BundleError(f"arch: expected one of {', '.join(known)}, found a GPU of {number}")

    def _module(self, name: str, arch: str) -> dict[str, Any]:
        modules: list[dict[str, Any]] = self.manifest["modules"]
        for module in modules:
            if (module["name"], module["arch"]) == (name, arch):
                return module
        there = ", ".join(f"{m['name']} for {m['arch']}" for m in modules)
        raise BundleError(f"module: expected one of {there}, found {name} for {arch}")

    def _files(self, module: Mapping[str, Any]) -> list[str]:
        binaries = [b["file"] for k in module["kernels"] for b in k["binaries"].values()]
        return [module["file"], *dict.fromkeys(binaries)]

    def _shapes(self, module: Mapping[str, Any]) -> list[dict[str, int]]:
        return [
            json.loads(s) for s in dict.fromkeys(json.dumps(k["shape"]) for k in module["kernels"])
        ]

    def _check(self, name: str) -> None:
        path, expected = self.folder / name, self.manifest["files"].get(name)
        if (found := digest_of(path)) != expected:
            raise BundleError(f"{path}: expected SHA-256 {expected}, found {found}")

    def _check_machine(self) -> None:
        built = self.manifest["machine"]
        if platform.machine() != built["name"]:
            raise BundleError(f"machine: expected {built['name']}, found {platform.machine()}")
        missing = sorted(set(built["features"]) - features())
        if missing:
            raise BundleError(
                f"CPU: expected {' '.join(built['features'])}, found one without "
                f"{' '.join(missing)}; kernels for cpu are of the machine that built them"
            )

    # -- the module

    def _import(self, module: Mapping[str, Any], compile: bool) -> host.Module:
        """The MODULE of a source, imported once; without TileLang unless kernels are built."""
        stem = re.sub(r"\W", "_", f"{module['arch']}_{module['name']}")
        name = f"{self.package}._{'whole' if compile else 'bare'}_{stem}"
        path = self.folder / module["file"]
        with _LOCK:
            if name not in sys.modules:
                self._execute(name, path, compile)
            found: host.Module = sys.modules[name].MODULE
        return found

    def _execute(self, name: str, path: Path, compile: bool) -> None:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        made = importlib.util.module_from_spec(spec)
        made.__package__ = self.package  # whose `_host` it imports
        text = path.read_text(encoding="utf-8")
        if not compile:
            text = text.replace(IMPORT, WITHOUT, 1)
        sys.modules[name] = made
        try:
            exec(builtins.compile(text, str(path), "exec"), made.__dict__)
        except ImportError as error:
            del sys.modules[name]
            raise BundleError(f"{path}: compile=True needs what is not here: {error}") from error

    def _build(
        self,
        module: Mapping[str, Any],
        kernel: str,
        build: Callable[..., Any] | None,
        *numbers: int,
        **config: Any,
    ) -> Any:
        """In place of a kernel's builder: what is compiled, or else the prim_func."""
        shape = {**dict.fromkeys(_NUMBERS, 0), **dict(zip(_NUMBERS, numbers, strict=False))}
        key = key_of(kernel, shape, config)
        rows = [k for k in module["kernels"] if k["kernel"] == kernel]
        for row in rows:
            if key_of(kernel, row["shape"], row["config"]) == key:
                return Built(tuple(Parameter(n) for n in row["names"]), row["binaries"])
        if build is not None:
            return build(*numbers, **config)
        there = "; ".join(f"{_words(k['shape'])} {k['config']}" for k in rows) or "no such kernel"
        raise BundleError(
            f"{module['name']} for {module['arch']}, {kernel}: expected one of {there}, "
            f"found {_words(shape)} {config}; `load(..., compile=True)` compiles others"
        )

    def _limits(
        self, module: Mapping[str, Any], limits: Callable[..., str | None] | None, *numbers: int
    ) -> str | None:
        """Why a shape cannot run: what the module itself cannot, or what is not compiled."""
        if limits is not None and (reason := limits(*numbers)):
            return reason
        shapes = self._shapes(module)
        if numbers in (host.Shape(**s).builder_arguments for s in shapes):
            return None
        shape = {"D": 0, **dict(zip(_NUMBERS, numbers, strict=False))}
        there = "; ".join(map(_words, shapes))
        return f"the bundle has {there}; not {_words(shape)}, which `compile=True` would compile"

    def _table(self, module: Mapping[str, Any]) -> Sequence[host.Tuned]:
        """Tuned configs of the present device; those of its product if it has none of its own."""
        tables: Mapping[str, list[dict[str, Any]]] = module["tables"]
        if not tables or not torch.cuda.is_available():
            return ()
        name = torch.cuda.get_device_name()
        words = set(re.split(r"[\s-]+", name))
        products = self.manifest["archs"][module["arch"]]["products"]
        slug = next((s for match, s in products if set(match.split()) <= words), "")
        rows = tables.get(slug) or tables.get(module["arch"]) or []
        rows = [r for r in rows if r["device"] == name] or rows
        return [host.Tuned(host.Shape(**r["shape"]), r["rows"], r["configs"]) for r in rows]
