"""Writing files that other processes may be reading."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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

    Errors: FileExistsError.
    """

    def refuse() -> None:
        if os.path.lexists(path):
            raise FileExistsError(
                f"{path}: expected a name that nothing has, found something there"
            )

    refuse()
    with _part(path) as part:
        yield part
        refuse()
        part.rename(path)


def write_folder(path: Path, files: Mapping[str, str]) -> bool:
    """Make a folder hold these text files and no others, so that readers see the old folder or all
    of the new, also if this process is killed.

    Returns whether it changed. Where the system cannot exchange two names at once (Linux can),
    readers may find nothing for a moment. Nothing waits for the disk: what a power cut has spoilt,
    the next call finds and writes again.
    """
    if _holds(path, files):
        with suppress(PermissionError):  # a folder that one may read only
            _remove_left(path)
        return False
    with _part(path) as part, locked(path.parent):
        if _holds(path, files):  # another process has made it meanwhile
            return False
        for name, text in files.items():
            (part / name).write_bytes(text.encode())
        if path.is_dir():
            _exchange(part, path)
        else:
            part.rename(path)
    return True


def _holds(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether a folder has these files; folders inside it, as of bytecode, do not count."""
    try:
        found = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    except FileNotFoundError:  # perhaps another process has just removed it
        return False
    return found == {name: text.encode() for name, text in files.items()}


def _exchange(new: Path, old: Path) -> None:
    """Gives the name of an old folder to a new one; the old one is gone or has the new one's."""
    import ctypes
    import shutil

    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None or rename(here, os.fsencode(new), here, os.fsencode(old), exchange):
        shutil.rmtree(old)
        new.rename(old)


_PART = ".{}.part-"


def _parts(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{_PART.format(path.name)}*"))


def _remove_left(path: Path) -> None:
    """Removes what killed processes left beside `path`."""
    if _parts(path):
        with locked(path.parent):
            for left in _parts(path):
                _remove_unless_locked(left)


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """A folder beside `path`, to be filled and renamed; removed when the block ends if it still has
    its name. What a killed process left there is removed by the next one."""
    import fcntl
    import shutil

    with locked(path.parent):  # so that nobody takes a new folder for one that was left
        for left in _parts(path):
            _remove_unless_locked(left)
        part = path.with_name(f"{_PART.format(path.name)}{uuid.uuid4().hex}")
        part.mkdir()
        handle = os.open(part, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield part
    finally:
        os.close(handle)
        shutil.rmtree(part, ignore_errors=True)


def _remove_unless_locked(folder: Path) -> None:
    """Removes a folder that no living process holds."""
    import fcntl
    import shutil

    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # its process has just finished
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except BlockingIOError:  # a process is filling it
        return
    finally:
        os.close(handle)
