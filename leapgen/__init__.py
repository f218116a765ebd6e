"""leapgen: from YAML specs of linear-attention recurrences to TileLang kernels.

`leapgen.load(name, ...)` gives a module whose kernels run; see `leapgen.runtime.module.load`.
Importing this package imports neither torch nor tilelang.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leapgen.diagnostics import LeapgenError

if TYPE_CHECKING:
    from leapgen.runtime.module import load

__all__ = ["LeapgenError", "__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "load":
        from leapgen.runtime.module import load

        return load
    raise AttributeError(f"module 'leapgen' has no attribute {name!r}")
