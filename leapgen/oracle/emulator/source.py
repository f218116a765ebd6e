"""An emitted CUDA source: its kernel's signature, and its translation to C++ for the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from leapgen.oracle.emulator import ptx
from leapgen.oracle.emulator.errors import UnsupportedSource

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\((?P<bounds>[^)]*)\)\s*)?(?P<name>\w+)\s*\('
)
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?(?P<type>[\w ]+?)\s+(?P<name>\w+)\[\];"
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*$", re.MULTILINE)
# Element types that a kernel parameter may have, with their bytes.
_TYPES = {
    "signed char": 1, "unsigned char": 1, "uchar": 1, "char": 1, "int8_t": 1, "uint8_t": 1,
    "bool": 1,
    "short": 2, "unsigned short": 2, "int16_t": 2, "uint16_t": 2, "half_t": 2, "bfloat16_t": 2,
    "int": 4, "unsigned int": 4, "uint": 4, "int32_t": 4, "uint32_t": 4, "float": 4,
    "int64_t": 8, "uint64_t": 8, "long long": 8, "unsigned long long": 8, "double": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a CUDA kernel: ``type`` is the element type of a pointer, or the value's."""

    name: str
    type: str
    pointer: bool
    constant: bool

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _TYPES[self.type]


@dataclass(frozen=True)
class Signature:
    """A kernel's name, its parameters in CUDA order, and the threads of ``__launch_bounds__``."""

    name: str
    parameters: tuple[Parameter, ...]
    threads: int | None


def read_signature(source: str, kernel: str | None = None) -> Signature:
    """The signature of the only kernel of a source, or of the one named ``kernel``.

    TileLang orders the parameters anew: buffers, then dynamic dims, then scalars.
    Raises UnsupportedSource if there is no such kernel or a parameter has an unknown type.
    """
    found: dict[str, re.Match[str]] = {m.group("name"): m for m in _KERNEL.finditer(source)}
    if kernel is None and len(found) != 1:
        raise UnsupportedSource(f"one kernel expected, found {sorted(found) or 'none'}; name one")
    name = kernel or next(iter(found))
    if name not in found:
        raise UnsupportedSource(f"no kernel {name!r} among {sorted(found)}")
    match = found[name]
    end = ptx.closing(source, match.end() - 1)
    texts = [t.strip() for t in source[match.end() : end].split(",")]
    bounds = (match.group("bounds") or "").split(",")[0].strip()
    return Signature(
        name=name,
        parameters=tuple(_parameter(text) for text in texts if text),
        threads=int(bounds) if bounds.isdigit() else None,
    )


def _parameter(text: str) -> Parameter:
    words = text.replace("__restrict__", " ").replace("*", " * ").split()
    name = words.pop()
    pointer = "*" in words
    constant = "const" in words
    element = " ".join(word for word in words if word not in ("*", "const"))
    if element not in _TYPES:
        raise UnsupportedSource(f"parameter {name!r} has type {element!r}, which is not emulated")
    return Parameter(name, element, pointer, constant)


def translate(source: str, signature: Signature, dynamic_bytes: int) -> str:
    """The C++ text of one kernel with its launch function ``leapgen_launch``.

    dynamic_bytes is the size of the dynamic shared memory, of which the kernel may name one array.
    """
    body = _INCLUDE.sub("", source)
    declared = {(m.group("type"), m.group("name")) for m in _DYNAMIC.finditer(body)}
    if len(declared) > 1:
        raise UnsupportedSource(f"several dynamic shared arrays: {sorted(n for _, n in declared)}")
    body = re.sub(r"\bextern\s+__shared__\b", "extern", body)
    lines = ['#line 1 "kernel.cu"', ptx.rewrite(body), '#line 1 "launch"']
    area, size = "nullptr", 0
    for element, name in declared:
        size = dynamic_bytes
        if element not in _TYPES:
            raise UnsupportedSource(f"shared array {name!r} has type {element!r}")
        lines.append(f"alignas(1024) {element} {name}[{max(1, size // _TYPES[element])}];")
        area = f"reinterpret_cast<unsigned char*>({name})"
    lines.append(_LAUNCH.format(kernel=signature.name, area=area, size=size))
    return "\n".join(lines)


_LAUNCH = """
extern "C" __attribute__((visibility("default")))
int leapgen_launch(void** arguments, lg::Launch* info) {{
  return lg::launch(lg::call<{kernel}>, arguments, *info, {area}, {size});
}}
extern "C" __attribute__((visibility("default")))
const char* leapgen_error() {{ return lg::error_text; }}
"""
