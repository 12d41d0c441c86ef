"""Measure every verifier against the optimum on a dataset of next-token distributions.

The dataset is read in chunks of positions. A worker gets a chunk with its arrays at a time, and a finished
chunk is the unit that is stored, so that an interrupted run can go on.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from otmd import __version__
from otmd.harness.dataset import Dataset, Position, open_dataset
from otmd.harness.progress import progress_bar
from otmd.measurement.device import check_device, closed_forms, device_rows
from otmd.measurement.pool import available_cpus, run_jobs
from otmd.measurement.rows import (
    DEFAULT_LAWS,
    DEFAULT_VERIFIERS,
    SCHEMA,
    Key,
    Rates,
    Settings,
    make_settings,
    position_rows,
)
from otmd.measurement.store import Store, load_results
from otmd.probabilities import Processing, validate_probs

CHUNK_SIZE = 8
# A GPU needs more positions at once to be busy; 32 take about 0.4 GB at V = 151,936.
DEVICE_CHUNK_SIZE = 32


class Chunk(NamedTuple):
    """Consecutive positions of a dataset, ``numbers`` counted along it.

    ``target`` and ``draft`` (k, V) are logits or probabilities (``kind``) as stored. ``known`` holds the
    rows that a device has computed, for each position and processing.
    """

    numbers: range
    positions: list[Position]
    target: np.ndarray
    draft: np.ndarray
    kind: str
    known: list[list[dict[Key, Rates]]]


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
    device: str | None = None,
    overwrite: bool = False,
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
        the laws that it serves; other pairs have no rows. Nor has ``Preference`` where a verifier
        made for the law is the same rule and is measured: ``GreedyCoupling``, ``SpecHub``, and
        ``TargetOnly`` with certain drafts.
    num_drafts : iterable of int
        Hub drafts exist for 2 only.
    processing : iterable of Processing
        From logits to probabilities. A dataset of probabilities takes ``Processing()`` alone.
    tol : float
        How far apart the certain bounds of a rate may lie where there is no closed form.
    workers : int, optional
        Processes; by default as many as there are CPUs. 1 runs in this process. With more, laws
        and verifiers must be importable, and a script needs its ``__name__`` guard. From a prompt
        or a notebook, which no process can import, they are threads.
    progress : bool
        Show a progress bar on stderr.
    output : str or Path, optional
        A folder in which finished chunks are kept, so that an interrupted run goes on from there,
        and the table at the end as ``results.parquet``.
    executor : concurrent.futures.Executor, optional
        Runs the work instead of a process pool (Dask's ``client.get_executor()``, say);
        ``workers`` then says how many it has, so that all of them are kept busy.
    device : str, optional
        As torch calls it, ``"cuda"`` for one. Rates in closed form are computed there in float64, on
        several positions at once: with replacement all but ``Optimal`` and ``Preference``, greedy
        and hub with their couplings. The workers compute the others.
    overwrite : bool
        Remove a measurement with other settings from ``output``, instead of raising an error.

    Returns
    -------
    polars.DataFrame
        One row a position, processing, law, number of drafts and verifier: ``index, prompt_id,
        domain, position, temperature, top_k, top_p, min_p, law, num_drafts, verifier, optimal,
        rate, rate_low, rate_high, gap, gap_low, gap_high, status``. Rates and gaps are fractions;
        ``gap`` is ``optimal − rate``, and ``rate_low``, ``rate_high`` bound the rate with
        certainty. ``status`` is ``ok``, ``undefined: …`` where the draft distribution does not
        admit the law, ``unrated: …`` where the verifier raised ValueError at this position (in
        both cases rates are null), or says how far apart the bounds are where that is more than
        ``tol``.

    Raises
    ------
    ValueError
        For invalid settings, a device that torch does not have, a position whose values are no
        distribution, a verifier whose bounds contradict each other, or an ``output`` that
        holds a measurement with other settings or of another dataset.
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
    if workers is not None and workers < 1:
        raise ValueError(f"workers: got {workers}, wanted at least 1")
    if device is not None:
        check_device(device)
    settings = make_settings(laws, verifiers, num_drafts, processing, tol)
    run = partial(_run, dataset, settings, workers or available_cpus(), executor, device, progress)
    if output is None:
        return pl.concat(run(None))
    store = Store(Path(output), settings.describe() | describe_dataset(dataset), overwrite)
    store.check()
    if not store.finished():
        with store.held():
            # Another process may have finished it since.
            if not store.finished():
                run(store)
            store.finish()
    return load_results(store.folder)


def _run(
    dataset: Dataset,
    settings: Settings,
    workers: int,
    executor: Executor | None,
    device: str | None,
    progress: bool,
    store: Store | None,
) -> list[pl.DataFrame]:
    done = store.done() if store else set()
    left = [i for i in range(len(dataset)) if i not in done]
    on_device = len(closed_forms(settings)) if device else 0
    if on_device == settings.rows_per_position():
        workers = 1
    workers = max(1, min(workers, -(-len(left) // CHUNK_SIZE)))
    finished = len(done)
    tables: dict[int, pl.DataFrame] = {}
    with progress_bar("measuring positions", len(dataset), shown=progress) as update:
        update(finished, "")
        chunks = read_chunks(dataset, left, settings, device if on_device else None)
        jobs = run_jobs(partial(measure_chunk, settings), chunks, workers, executor)
        # Closed here and not by the garbage collector, which would swallow an interrupt.
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


def read_chunks(
    dataset: Dataset, numbers: Sequence[int], settings: Settings, device: str | None
) -> Iterator[Chunk]:
    """Read these positions chunk by chunk, when a chunk is asked for; rate them on a device first."""
    for run in consecutive_runs(numbers, DEVICE_CHUNK_SIZE if device else CHUNK_SIZE):
        target, draft = map(np.asarray, dataset.arrays(list(run)))
        positions = [dataset.positions[i] for i in run]
        known: list[list[dict[Key, Rates]]] = [[{} for _ in settings.processing] for _ in run]
        if device:
            known = device_rows(settings, target, draft, dataset.kind, device)
        yield Chunk(run, positions, target, draft, dataset.kind, known)


def consecutive_runs(numbers: Sequence[int], size: int = CHUNK_SIZE) -> Iterator[range]:
    """Split ascending numbers into runs without a hole, no longer than ``size``."""
    start = 0
    for end in range(1, len(numbers) + 1):
        full = end - start == size
        if full or end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[start], numbers[end - 1] + 1)
            start = end


def measure_chunk(settings: Settings, chunk: Chunk) -> pl.DataFrame:
    """Measure a chunk's positions one after another; a ValueError names the position."""
    rows: list[dict[str, Any]] = []
    for i, place in enumerate(chunk.positions):
        at = {name: getattr(place, name) for name in ("index", "prompt_id", "domain", "position")}
        for step, known in zip(settings.processing, chunk.known[i], strict=True):
            target, draft = chunk.target[i], chunk.draft[i]
            try:
                if len(known) < settings.rows_per_position():
                    target = process("target_probs", target, chunk.kind, step)
                    draft = process("draft_probs", draft, chunk.kind, step)
                found = list(position_rows(target, draft, settings, known))
            except ValueError as error:
                raise ValueError(
                    f"dataset: position {place.index} (prompt {place.prompt_id}, "
                    f"position {place.position}): {error}"
                ) from error
            common = at | asdict(step)
            rows += [common | row for row in found]
    return pl.DataFrame(rows, schema=SCHEMA)


def process(name: str, values: np.ndarray, kind: str, step: Processing) -> np.ndarray:
    """Turn stored rows into probabilities in float64; probabilities are not processed further."""
    if kind == "logits":
        return step(values)
    if step != Processing():
        raise ValueError(
            f"processing: got {step} for a dataset of probabilities, wanted Processing(): "
            "they are taken as they are (to process them here, store their logarithms as logits)"
        )
    return validate_probs(name, values)


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Identify a dataset by its size, metadata, positions and values, in JSON's types."""
    digest = hashlib.sha256(json.dumps(dataset.metadata, sort_keys=True, default=str).encode())
    for place in dataset.positions:
        named = (place.index, place.prompt_id, place.domain, place.position)
        digest.update(repr(named).encode())
    for run in consecutive_runs(range(len(dataset))):
        for values in dataset.arrays(list(run)):
            digest.update(np.ascontiguousarray(values).tobytes())
    return {
        "positions": len(dataset),
        "vocab_size": dataset.vocab_size,
        "kind": dataset.kind,
        "dataset": digest.hexdigest()[:16],
        "otmd": __version__,
    }
