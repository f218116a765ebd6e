"""Writing files that other processes may be reading."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> bool:
    """Write a file so that readers see the old content or all of the new; makes folders.

    Text becomes UTF-8. Returns whether it changed: equal content is left alone, with its times.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def create_atomic(path: Path, text: str) -> bool:
    """Write a text file that is not there yet; makes folders. Readers see none or all of it.

    Returns whether it was written: a file (or a link) of that name is never touched, also if it
    appears meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, it fails where something has the name
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder against other processes that lock it too (made if absent; leaves no file).

    The lock goes with the process, so a killed one leaves nothing locked.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def append_line(path: Path, line: str) -> None:
    """Append one line at once: readers and other writers see all of it or nothing.

    A part of a line that a killed process left at the end is closed first.
    """
    with locked(path.parent):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, b"\n" * torn + f"{line}\n".encode())
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it gets its name, which nothing may have, when the block ends.

    It is filled beside `path`. What a killed process left there is removed by the next one.
    Errors: FileExistsError.
    """
    import fcntl
    import shutil

    def refuse() -> None:
        if os.path.lexists(path):
            raise FileExistsError(
                f"{path}: expected a name that nothing has, found something there"
            )

    refuse()
    start = f".{path.name}.part-"
    with locked(path.parent):  # so that nobody takes a new folder for one that was left
        for left in path.parent.glob(f"{start}*"):
            _remove_unless_locked(left)
        part = path.with_name(f"{start}{uuid.uuid4().hex}")
        part.mkdir()
        handle = os.open(part, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield part
        refuse()
        part.rename(path)
    finally:
        os.close(handle)
        shutil.rmtree(part, ignore_errors=True)


def _remove_unless_locked(folder: Path) -> None:
    """Removes a folder that no living process holds."""
    import fcntl
    import shutil

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:  # a process is filling it
        return
    finally:
        os.close(handle)
