"""Measure every verifier against the optimum on a dataset of next-token distributions.

A worker receives a chunk: a few positions with their arrays. The output folder holds ``measurement.json``
(settings and data set), the finished chunks in ``parts/`` while the run is unfinished, and
``results.parquet`` afterwards.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from otmd import __version__
from otmd.models.dataset import Dataset, Position, open_dataset
from otmd.probabilities import Processing, validate_probs, wrong
from otmd.registry import LAWS
from otmd.storage.parquet import read_parquet
from otmd.storage.store import Layout, Store
from otmd.study.rows import (
    DEFAULT_LAWS,
    DEFAULT_VERIFIERS,
    SCHEMA,
    Key,
    Rates,
    Settings,
    make_settings,
    position_rows,
    rate_columns,
    uniform_law,
)
from otmd.study.runner import Bar, available_cpus, finish_run

if TYPE_CHECKING:
    from torch import Tensor

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
# The table in :func:`_tables` of each closed form on tensors, by the form of the law and the reported name of
# the verifier. SpecHub's rate is that of two greedy drafts.
CLOSED_FORMS = {
    ("single", "MaximalCoupling"): "recursive rejection",
    ("single", "RecursiveRejection"): "recursive rejection",
    ("single", "KSequential"): "K-SEQ",
    ("single", "TargetOnly"): "target only",
    ("greedy", "GreedyCoupling"): "greedy",
    ("greedy", "SpecHub"): "greedy",
}


class Chunk(NamedTuple):
    """Consecutive positions, their stored arrays (k, V), and the rates that a device has computed."""

    positions: list[Position]
    target: np.ndarray
    draft: np.ndarray
    kind: str
    known: list[list[dict[Key, Rates]]]


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
        How far apart the certain bounds of a rate may lie where there is no closed form.
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
        ``gap`` is ``optimal − rate``, and ``rate_low``, ``rate_high`` bound the rate with
        certainty. ``status`` is ``ok``; ``undefined: …`` where the draft distribution does not
        admit the law, and ``unrated: …`` where the verifier raised ValueError (rates are null); or
        how far apart the bounds are where that is more than ``tol``.

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
    if not hasattr(dataset, "positions"):
        expected = "a Dataset or its path; otmd.compare(target_probs, draft_probs) takes arrays"
        raise TypeError(f"dataset: got {type(dataset).__name__}, expected {expected}")
    if len(dataset) == 0:
        raise ValueError("dataset: got no positions, expected at least one")
    if workers is not None and workers < 1:
        raise ValueError(f"workers: got {workers}, expected at least 1")
    if device is not None:
        check_device(device)
    settings = make_settings(laws, verifiers, num_drafts, processing, tol)
    store = None
    if output is not None:
        description = settings.describe() | describe_dataset(dataset)
        store = Store(Path(output), description, LAYOUT, overwrite)
    rows = settings.rows_per_position()
    is_on_device = device is not None and len(closed_forms(settings)) == rows
    most = 1 if is_on_device else min(workers or available_cpus(), -(-len(dataset) // CHUNK_SIZE))
    size = rows * len(settings.processing)

    def left(parts: Collection[str]) -> Iterator[tuple[str, Chunk]]:
        done = _positions(parts)
        return read_chunks(
            dataset, [i for i in range(len(dataset)) if i not in done], settings, device
        )

    bar = Bar("measuring positions", len(dataset), progress, lambda table: len(table) // size)
    return finish_run(partial(measure_chunk, settings), left, store, most, bar)


def read_chunks(
    dataset: Dataset, numbers: Sequence[int], settings: Settings, device: str | None
) -> Iterator[tuple[str, Chunk]]:
    """Read these positions in chunks, with the names of their parts; a device rates them first."""
    for run in consecutive_runs(numbers, DEVICE_CHUNK_SIZE if device else CHUNK_SIZE):
        target, draft = map(np.asarray, dataset.arrays(list(run)))
        positions = [dataset.positions[i] for i in run]
        known = device_rows(settings, target, draft, dataset.kind, device)
        name = f"part-{run[0]:08d}-{run[-1]:08d}"
        yield name, Chunk(positions, target, draft, dataset.kind, known)


def closed_forms(settings: Settings) -> dict[Key, str]:
    """The rows of a position that have a closed form on tensors, and its name in :func:`_tables`."""
    forms = {entry.load(): entry.tensor_form for entry in LAWS.values()}
    rows = {}
    for (name, n), pairs in settings.served.items():
        law = dict(settings.laws)[name]
        structure = uniform_law(law, n).position_structure()
        for label, verifier in pairs:
            form = forms.get(law, ""), verifier.reported_name(structure)
            # A class that derives from a verifier of otmd's may have other rates.
            if form in CLOSED_FORMS and type(verifier).__module__.startswith("otmd."):
                rows[name, n, label] = CLOSED_FORMS[form]
    return rows


def check_device(device: str) -> None:
    """Raise ValueError unless torch can compute in float64 on this device."""
    import torch

    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        said = str(error).splitlines()[0]
        wanted = f"one of torch's with float64, such as cpu or cuda ({said})"
        raise wrong("device", repr(device), wanted) from error


def device_rows(
    settings: Settings, target: np.ndarray, draft: np.ndarray, kind: str, device: str | None
) -> list[list[dict[Key, Rates]]]:
    """Closed-form rates of k positions on a device, by position and processing.

    Undefined and invalid ones are left out, so that the CPU's code reports the reason. Without a device all
    are left out.
    """
    forms = closed_forms(settings)
    found: list[list[dict[Key, Rates]]] = [[{} for _ in settings.processing] for _ in target]
    if device is None or not forms:
        return found
    for place, step in enumerate(settings.processing):
        try:
            p, q = (_on_device(values, kind, step, device) for values in (target, draft))
        except ValueError:
            continue
        tables = _tables(p, q, max(n for _, n, _ in forms))
        for (law, n, verifier), name in forms.items():
            optimal = tables["greedy" if name == "greedy" else "optimal"][:, n - 1]
            for position, pair in enumerate(np.stack([tables[name][:, n - 1], optimal], axis=1)):
                if np.isfinite(pair).all():
                    rate, best = pair.tolist()
                    columns = rate_columns(rate, rate, best, settings.tol)
                    found[position][place][law, n, verifier] = columns
    return found


def _on_device(values: np.ndarray, kind: str, step: Processing, device: str) -> "Tensor":
    """Distributions (k, V) on the device, NaN for invalid logits; top-k, top-p, min-p are applied here."""
    import torch

    from otmd.tensors import probs_from_logits

    if kind == "logits" and step == Processing(step.temperature):
        logits = torch.from_numpy(np.ascontiguousarray(values)).to(device, torch.float64)
        return probs_from_logits(logits, step.temperature)
    return torch.from_numpy(process("values", values, kind, step)).to(device)


def _tables(target_probs: "Tensor", draft_probs: "Tensor", most: int) -> dict[str, np.ndarray]:
    """Tables of rates for 1 … ``most`` drafts, shape (k, most), NaN where a rate is undefined."""
    from otmd.tensors import TensorRatioCurve, greedy_rates, target_only_rates

    curve = TensorRatioCurve(target_probs, draft_probs, validate=False)
    tables = {
        "optimal": curve.optimal_rates(most),
        "recursive rejection": curve.recursive_rejection_rates(most),
        "K-SEQ": curve.k_sequential_rates(most),
        "target only": target_only_rates(target_probs, draft_probs, most, validate=False),
        "greedy": greedy_rates(target_probs, draft_probs, most, validate=False),
    }
    return {name: table.cpu().numpy() for name, table in tables.items()}


def consecutive_runs(numbers: Sequence[int], size: int = CHUNK_SIZE) -> Iterator[range]:
    """Split ascending numbers into runs of consecutive ones, no longer than ``size``."""
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
    """Turn stored rows into probabilities in float64. Stored probabilities are only validated."""
    if kind == "logits":
        return step(values)
    if step != Processing():
        wanted = "Processing() (to process probabilities, store their logarithms as logits)"
        raise wrong("processing", f"{step} for a dataset of probabilities", wanted)
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


def positions_stored(folder: str | Path) -> int:
    """How many positions the folder of an unfinished measurement holds so far."""
    return len(_positions(Store(Path(folder), None, LAYOUT).names()))


def _positions(parts: Iterable[str]) -> set[int]:
    """The positions in parts of these names, as places in the dataset."""
    ends = (map(int, name.split("-")[1:]) for name in parts)
    return {i for first, last in ends for i in range(first, last + 1)}


def load_results(path: str | Path) -> pl.DataFrame:
    """Read the table of a finished measurement.

    Parameters
    ----------
    path : str or Path
        The output folder of :func:`otmd.measure`, or its ``results.parquet``.

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
                "and output takes it up where it stopped"
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
