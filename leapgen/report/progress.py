"""Progress on stderr: a live line on a terminal, nothing in a pipe or a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Step = Callable[[str], None]


@contextmanager
def steps_and_lines(title: str) -> Iterator[tuple[Step, Step]]:
    """As `steps`, and a function that prints a line on stderr which stays, terminal or not."""
    with steps(title) as step:
        yield step, lambda text: print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def steps(title: str) -> Iterator[Step]:
    """Yields a function that shows what is being done, with the time since the start."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title)
        yield lambda text: progress.update(task, description=f"{title}: {text}")


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """Yields a function that shows what is being done, and how many of `total` are finished."""
    if not sys.stderr.isatty():
        yield lambda text, finished: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}")
    # A descriptor of its own: `aside` may point the usual one elsewhere.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        console = Console(file=terminal, force_terminal=True)
        with Progress(*columns, text, console=console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda what, finished: progress.update(
                task, description=f"{title}: {what}", completed=finished
            )


@contextmanager
def aside(path: Path) -> Iterator[None]:
    """Sends to a file what compilers and libraries write to stderr past Python: hundreds of lines
    that would tear a progress bar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
