"""Progress on stderr: a live line on a terminal, nothing in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Step = Callable[[str], None]


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
    with Progress(*columns, text, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        def show(what: str, finished: int) -> None:
            progress.update(task, description=f"{title}: {what}", completed=finished)

        yield show
