"""The fixed files of a bundle, its manifest, and its wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import sysconfig
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from leapgen import paths
from leapgen.files import write_atomic
from leapgen.report.resources import nvcc_version
from leapgen.runtime import bundled
from leapgen.schedule.arch import arch_named

INIT = '''"""Compiled kernels, made by leapgen; nothing is compiled or tuned here unless asked.

    module = load("{example}")    # arch: the present GPU's, or cpu; see `load.__doc__`
    print(contents())             # modules, shapes and kernels that are compiled
    BoundStep(module, pool, ...)  # a step that is checked once
"""

from pathlib import Path

from ._bound import BoundStep
from ._bundled import Bundle, BundleError

__all__ = ["BoundStep", "BundleError", "contents", "load"]

_BUNDLE = Bundle(Path(__file__).resolve().parent, __name__)
load = _BUNDLE.load
contents = _BUNDLE.text
'''
_STAMP = (1980, 1, 1, 0, 0, 0)  # of files in the wheel, so that equal bundles are equal files


def put(path: Path, content: str | bytes) -> None:
    """A file of the bundle, on disk when this returns; folders are made."""
    write_atomic(path, content)


def manifest(package: str, archs: Sequence[str]) -> dict[str, Any]:
    """What is known before anything is compiled."""
    rows = [arch_named(a) for a in archs]
    return {
        "schema": bundled.SCHEMA,
        "package": package,
        "versions": {n: metadata.version(n) for n in ("leapgen", "tilelang", "torch")}
        | ({"nvcc": nvcc_version()} if any(row.gpu for row in rows) else {}),
        "machine": {"name": platform.machine(), "features": sorted(bundled.features())},
        "archs": {
            row.name: {
                "targets": [[list(capability), name] for capability, name in row.targets],
                "products": [[d.match, d.slug] for d in row.devices],
            }
            for row in rows
        },
        "modules": [],
        "files": {},
    }


def finish(root: Path, book: dict[str, Any]) -> None:
    """Writes the fixed files, and last the manifest with the digest of every other file."""
    for name in bundled.COPIED:
        path = Path(bundled.__file__).with_name(name)
        put(root / f"_{path.name}", standing_alone(path.read_text(encoding="utf-8")))
    for name, text in paths.host_files().items():
        put(root / paths.HOST / name, text)
    put(root / "__init__.py", INIT.format(example=book["modules"][0]["name"]))
    files = sorted(p for p in root.rglob("*") if p.is_file())
    book["files"] = {p.relative_to(root).as_posix(): bundled.digest_of(p) for p in files}
    put(root / bundled.MANIFEST, json.dumps(book, indent=1) + "\n")


def standing_alone(text: str) -> str:
    """A file of the runtime whose imports of its neighbours are those inside a bundle."""
    one = r"^from leapgen\.runtime import (.+)$"
    text = re.sub(
        one,
        lambda m: "\n".join(f"from . import _{n} as {n}" for n in m.group(1).split(", ")),
        text,
        flags=re.MULTILINE,
    )
    return re.sub(
        r"^from leapgen\.runtime\.([\w.]+) import", r"from ._\1 import", text, flags=re.MULTILINE
    )


def wheel(folder: Path, package: str, book: dict[str, Any]) -> str:
    """Writes the wheel of `folder/package` and returns its name. Its local version is a digest of
    the manifest, so that pip sees two bundles as two versions."""
    text = (folder / package / bundled.MANIFEST).read_bytes()
    digest = hashlib.sha256(text).hexdigest()[:12]
    version = f"{book['versions']['leapgen']}+{digest}"
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    info = f"{package}-{version}.dist-info"
    files = {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted((folder / package).rglob("*"))
        if p.is_file()
    }
    about = (
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: torch>=2.7\n"
    )
    files[f"{info}/METADATA"] = about.encode()
    root = f"Wheel-Version: 1.0\nGenerator: leapgen\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = root.encode()
    record = "".join(f"{name},{_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _STAMP)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return name


def _hash(data: bytes) -> str:
    """As RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
