"""Progress bars on standard error, so that standard output stays for results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    description: str, total: float | None, shown: bool = True, unit: str = "count"
) -> Iterator[Callable[[float, str], None]]:
    """Show a bar during the block, or with ``shown=False`` nothing; yields ``update(done, note)``.

    The bar is full at ``total`` (None: unknown), in ``unit`` "count" or "bytes".
    """
    if not shown:
        yield lambda done, note="": None
        return
    import sys

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount,
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=sys.stderr),
    )
    with bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
