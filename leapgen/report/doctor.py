"""`leapgen doctor`: what is installed, what each arch needs, what is missing and how to get it."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata

from leapgen.report.text import table
from leapgen.schedule.arch import ARCHES, Arch, ArchError, for_capability

# Package, what needs it, how to get it. Only `required` ones decide the exit code.
_PACKAGES = (
    ("torch", "runtime", "pip install torch==2.13.0", True),
    ("tilelang", "compile", "pip install 'leapgen[build]'", True),
    ("numpy", "oracle", "pip install numpy", True),
    ("sympy", "derivation", "pip install sympy", True),
    ("jinja2", "templates", "pip install jinja2", True),
    ("pyyaml", "specs", "pip install pyyaml", True),
    ("pytest", "tests", "pip install 'leapgen[dev]'", False),
    ("hypothesis", "tests", "pip install 'leapgen[dev]'", False),
    ("matplotlib", "plots", "pip install 'leapgen[plot]'", False),
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `found` is its version, or empty; `remedy` says how to get it.

    required: without it not even the cpu arch works.
    """

    subject: str
    found: str
    needed_for: str
    ok: bool
    required: bool
    remedy: str


@dataclass(frozen=True)
class ArchFinding:
    """What one arch can do on this machine: `compiles` and `runs` say with what, or what lacks."""

    name: str
    target: str
    compiles: str
    runs: str


@dataclass(frozen=True)
class Health:
    """Everything that `doctor` found."""

    findings: tuple[Finding, ...]
    gpus: tuple[str, ...]
    archs: tuple[ArchFinding, ...]

    @property
    def missing(self) -> tuple[Finding, ...]:
        """What is absent or of a wrong version."""
        return tuple(f for f in self.findings if not f.ok)

    @property
    def ok(self) -> bool:
        """True if the cpu arch can be built and run."""
        return not any(f.required for f in self.missing)

    def data(self) -> dict[str, object]:
        """The same for machines."""
        return {**asdict(self), "ok": self.ok}


def examine() -> Health:
    """Looks at packages, compilers and GPUs. Imports torch only if it is installed."""
    packages = tuple(_package(*row) for row in _PACKAGES)
    tools = (_python(), *packages, _cxx(), _nvcc())
    devices = _devices() if version("torch") else ()
    by_subject = {f.subject: f for f in tools}
    archs = tuple(_arch(a, by_subject, devices) for a in ARCHES.values())
    return Health(tools, tuple(_gpu_line(*d) for d in devices), archs)


def text(health: Health) -> str:
    """The report for people."""
    parts = [
        table(
            ("what", "found", "needed for", "state"),
            [(f.subject, f.found or "-", f.needed_for, _state(f)) for f in health.findings],
        ),
        "",
        *(health.gpus or ("GPU: none found; GPU archs are checked in the emulator",)),
        "",
        table(
            ("arch", "target", "compiles", "runs"),
            [(a.name, a.target, a.compiles, a.runs) for a in health.archs],
        ),
    ]
    parts += ["", *(f"missing: {f.subject}: {f.remedy}" for f in health.missing)]
    parts.append(
        "The cpu arch can be built and run here."
        if health.ok
        else "The cpu arch cannot be built here; install what is marked `required` first."
    )
    return "\n".join(parts)


def _state(finding: Finding) -> str:
    if finding.ok:
        return "ok"
    return "required" if finding.required else "missing"


def version(distribution: str) -> str:
    """Of an installed package; empty if it is not."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def pin(distribution: str) -> str:
    """The version that leapgen's own metadata pins exactly (`0.1.15`), or empty."""
    try:
        requirements = metadata.requires("leapgen") or []
    except metadata.PackageNotFoundError:
        return ""
    for requirement in requirements:
        match = re.match(rf"{re.escape(distribution)}==([^;\s]+)", requirement)
        if match:
            return match[1]
    return ""


def _python() -> Finding:
    return Finding("python", platform.python_version(), "everything", True, True, "")


def _package(name: str, needed_for: str, remedy: str, required: bool) -> Finding:
    found, pinned = version(name), pin(name)
    ok = bool(found) and (not pinned or not required or found == pinned)
    if found and not ok:
        remedy = f"found {found}, leapgen is pinned to {pinned}: {remedy}"
    return Finding(name, found, needed_for, ok, required, remedy)


def _cxx() -> Finding:
    path = shutil.which("g++")
    found = _first(r"\b(\d+\.\d+\.\d+)\b", _run("g++", "--version")) if path else ""
    remedy = "install a C++17 compiler (Debian: apt-get install g++)"
    return Finding("g++", found, "cpu arch, emulator", bool(path), True, remedy)


def _nvcc() -> Finding:
    path = shutil.which("nvcc")
    found = _first(r"V(\d+\.\d+\.\d+)", _run("nvcc", "--version")) if path else ""
    remedy = "install the CUDA toolkit (12.8 or newer for sm100 and sm120) and put nvcc on PATH"
    return Finding("nvcc", found, "GPU archs", bool(path), False, remedy)


def _devices() -> tuple[tuple[str, int, int], ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(
        (torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i))
        for i in range(torch.cuda.device_count())
    )


def _gpu_line(name: str, major: int, minor: int) -> str:
    try:
        arch, target = for_capability((major, minor))
    except ArchError:
        return f"GPU: {name}, capability {major}.{minor}: no arch of leapgen"
    return f"GPU: {name}, capability {major}.{minor}: {arch.name}, compiled for {target}"


def _arch(
    arch: Arch, tools: dict[str, Finding], devices: tuple[tuple[str, int, int], ...]
) -> ArchFinding:
    compiler = tools["nvcc"] if arch.gpu else tools["g++"]
    targets = [target for _, target in arch.targets] or ["c"]
    lacks = [f.subject for f in (tools["tilelang"], compiler) if not f.ok]
    if arch.gpu and not lacks:
        lacks = [f"an nvcc that knows {target}" for target in targets if not _assembles(target)]
    compiles = "needs " + ", ".join(lacks) if lacks else f"{compiler.subject} {compiler.found}"
    present = any((major, minor) in dict(arch.targets) for _, major, minor in devices)
    runs = "" if lacks else "GPU" if present else "emulated" if arch.gpu else "this CPU"
    return ArchFinding(arch.name, ", ".join(targets), compiles, runs or "-")


def _assembles(code: str) -> bool:
    """Whether nvcc knows the architecture of `sm_100a`; the letter names a feature set of it."""
    return code.rstrip("af") in _run("nvcc", "--list-gpu-code").split()


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return result.stdout


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "unknown version"
