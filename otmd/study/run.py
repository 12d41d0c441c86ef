"""Measure every verifier against the optimum on a dataset of next-token distributions.

A worker receives a chunk: a few positions with their arrays. The output folder holds ``measurement.json``
(settings and data set), the finished chunks in ``parts/`` while the run is unfinished, and
``results.parquet`` afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import polars as pl

from otmd import __version__
from otmd.models.dataset import Dataset, Position, open_dataset
from otmd.probabilities import Processing, validate_count, wrong, wrong_type
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.device import check_device, closed_forms, device_rates
from otmd.study.rows import (
    DEFAULT_LAWS,
    DEFAULT_VERIFIERS,
    SCHEMA,
    Key,
    Rates,
    Settings,
    make_settings,
    position_rows,
    process,
)
from otmd.study.runner import Bar, frame, run_study

RESULTS = "results.parquet"
LAYOUT = Layout(
    read_parquet,
    pattern=r"part-\d+-\d+",
    record="measurement.json",
    result=RESULTS,
    subfolder="parts",
)
CHUNK_SIZE = 8
# A GPU needs more positions at once to be busy; 32 take about 0.4 GB at V = 151,936.
DEVICE_CHUNK_SIZE = 32


class Chunk(NamedTuple):
    """Consecutive positions, their stored arrays (k, V), and a device's rates by processing and position."""

    positions: list[Position]
    target: np.ndarray
    draft: np.ndarray
    kind: str
    computed: list[list[dict[Key, Rates]]]


def measure(
    dataset: Dataset | str | Path,
    laws: str | Iterable[Any] = DEFAULT_LAWS,
    verifiers: str | Iterable[Any] = DEFAULT_VERIFIERS,
    num_drafts: int | Iterable[int] = (1, 2, 3, 4),
    processing: Iterable[Processing] = (Processing(),),
    tol: float = 1e-4,
    workers: int | None = None,
    progress: bool = False,
    *,
    output: str | Path | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> pl.DataFrame:
    """Measure α*, every verifier's acceptance rate and its gap at every position of a dataset.

    Parameters
    ----------
    dataset : Dataset, str or Path
        The result of :func:`otmd.models.open_dataset`, or the path to open.
    laws : str or iterable
        Names as on the command line, such as ``"stratified"``, classes of draft laws, functions
        ``f(draft_probs, num_drafts) -> DraftLaw``, or pairs ``(name, function)``. The name is the table's
        ``law``.
    verifiers : str or iterable
        Names such as ``"k-sequential"``, verifier classes, verifiers, or pairs ``(name, verifier)``. A
        verifier is measured with the laws that it serves; other pairs have no rows. The table's ``verifier``
        is the name that the verifier reports for the law: ``Preference`` is MaximalCoupling with one draft,
        GreedyCoupling with greedy drafts, and TargetOnly where all drafts are deterministic. Each name has
        one row.
    num_drafts : int or iterable of int
        The numbers of drafts. ``Hub`` exists for 2 only.
    processing : iterable of Processing
        The steps from logits to probabilities. A dataset of probabilities takes ``Processing()`` alone.
    tol : float
        How far apart the guaranteed bounds of a rate may lie where there is no closed form.
    workers : int, optional
        How many processes of joblib; by default as many as there are CPUs, and 1 runs in this process. Within
        ``joblib.parallel_config(backend="dask")``, or of another backend, the work runs there.
    progress : bool
        Show a progress bar on stderr.
    output : str or Path, optional
        A folder for the finished chunks, so that an interrupted run continues from there, and for
        the table at the end, ``results.parquet``.
    device : str, optional
        A device of torch, such as ``"cuda"``. Rates in closed form are computed there: with replacement
        all but those of ``Optimal`` and ``Preference``; for greedy and hub drafts those of their couplings.
    overwrite : bool
        Remove a measurement with other settings from ``output``, instead of raising an error.

    Returns
    -------
    polars.DataFrame
        One row a position, processing, law, number of drafts and verifier: ``index, prompt_id,
        domain, position, temperature, top_k, top_p, min_p, order, law, num_drafts, verifier,
        optimal, rate, rate_low, rate_high, gap, gap_low, gap_high, status``. Rates and gaps are fractions;
        ``gap`` is ``optimal − rate``, and ``rate_low``, ``rate_high`` are guaranteed bounds of
        the rate. ``status`` is ``ok``; ``undefined: …`` where the draft distribution does not
        admit the law, and ``unrated: …`` where the verifier raised ValueError (rates are null); or
        how far apart the bounds are where that is more than ``tol``.

    Raises
    ------
    ValueError
        For invalid settings, a device that torch does not have, a position whose values are no
        distribution, a verifier whose bounds contradict each other, one of your own that is not lossless at
        small positions, or whose bounds do not hold its rate there, or an ``output`` that holds a measurement
        with other settings or of another dataset.
    RuntimeError
        If a worker process died.
    FolderLockedError
        If another process is measuring into ``output``.
    OSError
        If the disk is full or ``output`` cannot be written to; finished chunks are kept.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, otmd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "dump.npz"
    ...     np.savez(path, target_probs=[[0.5, 0.3, 0.2]], draft_probs=[[0.2, 0.3, 0.5]])
    ...     table = otmd.measure(path, "with-replacement", ["preference", "k-sequential"], 2, workers=1)
    >>> table["verifier"].to_list(), table["rate"].round(4).to_list()
    (['Preference', 'KSequential'], [0.86, 0.7914])
    """
    if isinstance(dataset, (str, Path)):
        dataset = open_dataset(dataset)
    if not hasattr(dataset, "positions"):
        expected = "a Dataset or its path; otmd.compare(target_probs, draft_probs) takes arrays"
        raise wrong_type("dataset", dataset, expected)
    if len(dataset) == 0:
        raise wrong("dataset", "no positions", "at least one")
    workers = joblib.cpu_count() if workers is None else validate_count("workers", workers)
    size = CHUNK_SIZE
    if device is not None:
        check_device(device)
        size = DEVICE_CHUNK_SIZE
    settings = make_settings(laws, verifiers, num_drafts, processing, tol)
    store = None
    if output is not None:
        about = {"positions": len(dataset), "vocab_size": dataset.vocab_size, "kind": dataset.kind}
        about |= {"dataset": dataset.sha256[:16], "otmd": __version__}
        store = Store(Path(output), settings.description | about, LAYOUT, overwrite)
    rows = settings.rows_per_position()
    if device is not None and len(closed_forms(settings)) == rows:
        workers = 1
    bounds = [*range(0, len(dataset), size), len(dataset)]
    jobs = {f"part-{a:08d}-{b - 1:08d}": range(a, b) for a, b in pairwise(bounds)}
    rows *= len(settings.processing)
    bar = Bar("measuring positions", len(dataset), progress, lambda table: len(table) // rows)
    read = partial(read_chunk, dataset, settings, device)
    return run_study(partial(measure_chunk, settings), jobs, store, workers, bar, read)


def read_chunk(dataset: Dataset, settings: Settings, device: str | None, run: range) -> Chunk:
    """Read consecutive positions; a device rates them first."""
    target, draft = map(np.asarray, dataset.arrays(list(run)))
    computed: list[list[dict[Key, Rates]]] = [[{}] * len(run) for _ in settings.processing]
    if device is not None:
        computed = [
            device_rates(settings, target, draft, dataset.kind, step, device) for step in settings.processing
        ]
    return Chunk([dataset.positions[i] for i in run], target, draft, dataset.kind, computed)


def measure_chunk(settings: Settings, chunk: Chunk) -> pl.DataFrame:
    """Measure a chunk's positions one after another; a ValueError names the position."""
    rows: list[dict[str, Any]] = []
    for i, at in enumerate(chunk.positions):
        key = {name: getattr(at, name) for name in ("index", "prompt_id", "domain", "position")}
        for step, by_position in zip(settings.processing, chunk.computed, strict=True):
            p, q, computed = chunk.target[i], chunk.draft[i], by_position[i]
            try:
                if len(computed) < settings.rows_per_position():
                    p = process("target_probs", p, chunk.kind, step)
                    q = process("draft_probs", q, chunk.kind, step)
                rated = list(position_rows(p, q, settings, computed))
            except ValueError as error:
                where = f"position {at.index} (prompt {at.prompt_id}, position {at.position})"
                raise ValueError(f"dataset: {where}: {error}") from error
            rows += [key | asdict(step) | row for row in rated]
    return frame(rows, schema=SCHEMA)


def load_results(path: str | Path) -> pl.DataFrame:
    """Read the table of a finished measurement.

    Parameters
    ----------
    path : str or Path
        The output folder of :func:`otmd.measure`, or its ``results.parquet``.

    Returns
    -------
    polars.DataFrame
        The table that :func:`otmd.measure` returned.

    Raises
    ------
    FileNotFoundError
        If there is nothing there.
    ValueError
        If the measurement is unfinished, or the file is no Parquet file or another table.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / RESULTS).exists() and (path / LAYOUT.subfolder).exists():
            raise ValueError(
                f"{path}: the measurement is unfinished; `otmd measure` with the same settings "
                "and output resumes it"
            )
        path = path / RESULTS
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; `otmd measure` writes it")
    try:
        table = read_parquet(path)
    except ValueError as error:
        ours = path.name == RESULTS and (path.parent / LAYOUT.record).exists()
        again = "; delete it, and `otmd measure` with the same settings and output makes it anew"
        raise ValueError(f"{error}{again * ours}") from error
    if "order" not in table.columns:
        # Earlier versions knew no other.
        table = table.with_columns(order=pl.lit("transformers"))
    missing = [name for name in SCHEMA if name not in table.columns]
    if missing:
        raise ValueError(f"{path}: no table of `otmd measure`, whose columns {missing} it lacks")
    return table
