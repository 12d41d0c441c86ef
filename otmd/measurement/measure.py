"""Measure every verifier against the optimum on a dataset of next-token distributions."""

from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from otmd.harness.dataset import Dataset, open_dataset
from otmd.harness.progress import progress_bar
from otmd.measurement.chunk import CHUNK_SIZE, describe_dataset, measure_chunk, read_chunks
from otmd.measurement.pool import available_cpus, run_jobs
from otmd.measurement.settings import DEFAULT_LAWS, DEFAULT_VERIFIERS, Settings, make_settings
from otmd.measurement.store import Store, load_results
from otmd.probabilities import Processing


def measure(
    dataset: Dataset | str | Path,
    laws: Iterable[Any] = DEFAULT_LAWS,
    verifiers: Iterable[Any] = DEFAULT_VERIFIERS,
    num_drafts: Iterable[int] = (1, 2, 3, 4),
    processing: Iterable[Processing] = (Processing(),),
    tol: float = 1e-4,
    workers: int | None = None,
    progress: bool = False,
    *,
    output: str | Path | None = None,
    executor: Executor | None = None,
) -> pl.DataFrame:
    """Measure α*, every verifier's acceptance rate and its gap at every position of a dataset.

    Parameters
    ----------
    dataset : Dataset, str or Path
        From :func:`otmd.harness.open_dataset`, or the path that it opens.
    laws : iterable
        Classes of draft laws, functions ``f(draft_probs, num_drafts) -> DraftLaw``, or pairs
        ``(name, function)``. The name is the table's ``law``.
    verifiers : iterable
        Verifier classes, verifiers, or pairs ``(name, verifier)``. A verifier is measured with
        the laws that it serves; other pairs have no rows.
    num_drafts : iterable of int
        Hub drafts exist for 2 only.
    processing : iterable of Processing
        From logits to probabilities. A dataset of probabilities takes ``Processing()`` alone.
    tol : float
        How far apart the certain bounds of a rate may lie where there is no closed form.
    workers : int, optional
        Processes; by default as many as there are CPUs. 1 runs in this process. With more, laws
        and verifiers must be importable, and a script needs its ``__name__`` guard.
    progress : bool
        Show a progress bar on stderr.
    output : str or Path, optional
        A folder in which finished chunks are kept, so that an interrupted run goes on from there,
        and the table at the end as ``results.parquet``.
    executor : concurrent.futures.Executor, optional
        Runs the work instead of a process pool (Dask's ``client.get_executor()``, say);
        ``workers`` then says how many it has, so that all of them are kept busy.

    Returns
    -------
    polars.DataFrame
        One row a position, processing, law, number of drafts and verifier: ``index, prompt_id,
        domain, position, temperature, top_k, top_p, min_p, law, num_drafts, verifier, optimal,
        rate, rate_low, rate_high, gap, gap_low, gap_high, status``. Rates and gaps are fractions;
        ``gap`` is ``optimal − rate``, and ``rate_low``, ``rate_high`` bound the rate with
        certainty. ``status`` is ``ok``, ``undefined: …`` where the draft distribution does not
        admit the law (rates are null), or says how far apart the bounds are where that is more
        than ``tol``.

    Raises
    ------
    ValueError
        For settings that make no sense, a position whose values are no distribution, or an
        ``output`` that holds a measurement with other settings or of another dataset.
    RuntimeError
        If a worker process died.
    FolderLockedError
        If another process is measuring into ``output``.
    OSError
        If the disk is full or ``output`` cannot be written to; finished chunks are kept.
    """
    if isinstance(dataset, (str, Path)):
        dataset = open_dataset(dataset)
    if len(dataset) == 0:
        raise ValueError("dataset: got no positions, wanted at least one")
    workers = _worker_count(workers)
    settings = make_settings(laws, verifiers, num_drafts, processing, tol)
    if output is None:
        return pl.concat(_run(dataset, settings, None, workers, executor, progress))
    store = Store(Path(output), settings.describe() | describe_dataset(dataset))
    if not store.finished():
        with store.held():
            # Another process may have finished it since.
            if not store.finished():
                _run(dataset, settings, store, workers, executor, progress)
            store.finish()
    return load_results(store.folder)


def _run(
    dataset: Dataset,
    settings: Settings,
    store: Store | None,
    workers: int,
    executor: Executor | None,
    progress: bool,
) -> list[pl.DataFrame]:
    done = store.done() if store else set()
    left = [i for i in range(len(dataset)) if i not in done]
    workers = max(1, min(workers, -(-len(left) // CHUNK_SIZE)))
    finished = len(done)
    tables: dict[int, pl.DataFrame] = {}
    with progress_bar("measuring positions", len(dataset), shown=progress) as update:
        update(finished, "")
        work = partial(measure_chunk, settings)
        jobs = run_jobs(work, read_chunks(dataset, left), workers, executor)
        # Closed here, not when collected: an interrupt that comes while it ends must not be lost.
        with closing(jobs):
            for chunk, table in jobs:
                if store:
                    store.add(chunk.numbers[0], chunk.numbers[-1], table)
                else:
                    tables[chunk.numbers[0]] = table
                finished += len(chunk.numbers)
                update(finished, "")
    # Chunks finish in any order; the table is in the dataset's.
    return [tables[first] for first in sorted(tables)]


def _worker_count(workers: int | None) -> int:
    if workers is None:
        return available_cpus()
    if workers < 1:
        raise ValueError(f"workers: got {workers}, wanted at least 1")
    return workers
