"""Progress and results on the terminal while engines work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from quirks_core.reporting.terminal import Screen, line

#: Variables that hide the log of engines and of the packages that they import; errors still show.
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def quiet_engine(*, verbose: bool) -> None:
    """Hides the engine's log, unless the user requested it or set these variables."""
    for name, value in ({} if verbose else _QUIET).items():
        os.environ.setdefault(name, value)


@contextmanager
def progress_bar(console: Screen, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    """Shows a bar, or how long the work takes if its steps are not counted; nothing where there is no terminal."""
    counted = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *counted, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task("", total=total)


@contextmanager
def stages(console: Screen, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Shows what is being done and for how long; a console that is not a terminal gets a line for each stage."""
    with progress_bar(console, total) as (bar, task):

        def notify(text: str) -> None:
            if bar.tasks[task].description:
                bar.advance(task)
            bar.update(task, description=text)
            if not console.is_terminal:
                console.say(f"[dim]{line(text)}[/]")

        yield notify
