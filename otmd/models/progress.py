"""Progress bars on standard error, so that standard output stays for results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    description: str, total: float, shown: bool = True
) -> Iterator[Callable[[float, str], None]]:
    """Show a bar during the block, unless ``shown`` is false; yields ``update(done, note)``."""
    if not shown:
        yield lambda done, note="": None
        return
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
