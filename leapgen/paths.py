"""Where specs, templates and generated modules lie; the only file that knows folders."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data(folder: str) -> Path:
    """The folder `specs`, `templates`, `generated` or `tuning`.

    In a source tree (and an editable install of one) it is the folder at the root; in an installed
    wheel, the copy inside the package. The tree comes first because an editable install copies the
    folders too, and those copies go stale.
    """
    root = _PACKAGE.parent
    if (root / "pyproject.toml").is_file() and (root / folder).is_dir():
        return root / folder
    return _PACKAGE / "_data" / folder


HOST = "_host"
"""The package beside generated modules that runs them."""


def host_files() -> dict[str, str]:
    """Its files by name; read without importing torch."""
    return python_files(_PACKAGE / "runtime" / "host")


def python_files(folder: Path) -> dict[str, str]:
    """Text of the Python files in a folder, by name; empty where there is none."""
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.glob("*.py"))}


def spec_file(name: str) -> Path:
    """A spec by path, or by the bare name of one that leapgen ships. May not exist."""
    path = Path(name)
    if path.suffix or path.exists():
        return path
    return data("specs") / f"{name}.yaml"


def shipped_specs() -> tuple[Path, ...]:
    """All specs that leapgen ships, by name."""
    return tuple(sorted(data("specs").glob("*.yaml")))
