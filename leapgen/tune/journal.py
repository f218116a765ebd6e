"""What has been measured, a JSON line each, so that a killed run is resumed and not repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leapgen.files import append_line
from leapgen.runtime.host import key_of


class Journal:
    """Results by key. Lines are appended as they come in; a torn or foreign line is skipped.

    path      the file; None keeps results in memory only
    identity  what keys contain unless a call says otherwise (`of`): module text, device, versions
    """

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self.found = 0  # results of earlier runs that this one has used
        self._lock = threading.Lock()
        self._results: dict[str, Any] = {}
        self._earlier: set[str] = set()
        if path is not None and path.is_file():
            for line in path.read_text().splitlines():
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except ValueError:  # the process that wrote it was killed
            return
        if isinstance(entry, dict) and {"key", "result"} <= set(entry):
            key = key_of(**entry["key"])
            self._results[key] = entry["result"]
            self._earlier.add(key)

    def get(self, of: Mapping[str, Any] | None = None, **parts: Any) -> Any:
        """A result, or None. of: what it depends on beside `parts`, in place of `identity`."""
        key = key_of(**parts, **(self.identity if of is None else of))
        with self._lock:
            self.found += key in self._earlier
            self._earlier.discard(key)
        return self._results.get(key)

    def put(self, result: Any, of: Mapping[str, Any] | None = None, **parts: Any) -> Any:
        """Notes a result (JSON, not None) for good, and returns it."""
        key = {**parts, **(self.identity if of is None else of)}
        line = json.dumps({"key": key, "result": result}, sort_keys=True)
        with self._lock:
            self._results[key_of(**key)] = result
            if self.path is not None:
                append_line(self.path, line)
        return result

    def once(self, make: Callable[[], Any], **parts: Any) -> Any:
        """The result, made and noted if there is none."""
        found = self.get(**parts)
        return self.put(make(), **parts) if found is None else found
