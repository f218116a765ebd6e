"""Progress on stderr: a live line on a terminal, nothing in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
