"""The audit of a recorded run, in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from otmd.audit import claims, declared, verifiers
from otmd.audit.boundary_cases import BoundaryCase
from otmd.audit.claims import Claim, bands_of, judge_claim
from otmd.audit.metrics import metrics_of
from otmd.audit.numbers import NUMBERS, law_of_numbers, read_numbers
from otmd.audit.observer import CLASSES, Observation, Observer
from otmd.audit.records import Source, path_of, read_records, refuse_partial_lists
from otmd.audit.run_report import RecordedRunAudit
from otmd.audit.shards import law_of_shards
from otmd.audit.tally import Tally
from otmd.laws.base import RngLike
from otmd.probabilities import Processing, wrong

_ROWS_SHOWN = 5
SMALLEST_FALSE_ALARM = 4e-5


def recorded_run(
    source: Source,
    law: str | declared.LawMaker | None = None,
    false_alarm: float = 1e-3,
    *,
    bias: float = 0.1,
    target_processing: Processing | None = None,
    draft_processing: Processing | None = None,
    rng: RngLike = 0,
) -> RecordedRunAudit:
    """Audit a recorded run of an engine.

    Parameters
    ----------
    source : str, Path or sequence of mapping
        The folder of a :class:`Recorder`, a ``.jsonl``, ``.parquet`` or ``.safetensors`` file, or rows with
        the same fields.
    law : str or callable, optional
        The law of the drafts of a position: with-replacement, without-replacement, conditional-poisson,
        greedy, hub, stratified, top-k, independent, or fixed for drafts that the text before them
        decides. Or a callable that makes the law of ``draft_probs`` (V,) and ``num_drafts``, such as
        ``partial(Stratified, sharpness=1.5)``. Unless given, that of the recorder, or with-replacement.
    false_alarm : float
        Probability, at most, that a sound engine's run is called faulty.
    bias : float
        A run passes only if a total variation of this size would have been found with probability 0.9.
    target_processing, draft_processing : Processing, optional
        The processing that makes the engine's probabilities of recorded logits, for all rows.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator. Equal seeds give equal audits; the engine may use an equal seed.

    Returns
    -------
    RecordedRunAudit
        ``print`` shows the verdict, what could be found, and the tests.

    Raises
    ------
    ValueError
        For invalid arguments, and for a malformed file, row or field, which it names.

    Notes
    -----
    One pass keeps a few numbers of each row. The recorded p is taken to be the p that was meant.

    Examples
    --------
    >>> import otmd
    >>> row = {"target_probs": [0.5, 0.5], "draft_probs": [0.5, 0.5], "draft_tokens": [0]}
    >>> otmd.audit.recorded_run([row | {"output_token": 1}] * 10).outcome
    'INCONCLUSIVE'
    """
    tally = Tally(verifiers.derived_rng(rng, "recorded_run"))
    processings = {"target": target_processing, "draft": draft_processing}
    path = path_of(source)
    name = str(path or "records")
    if path is not None and (path / NUMBERS).exists():
        recorded_law = _law_of_numbers(path / NUMBERS, law, processings)
        observations = read_numbers(path / NUMBERS)
        return audit_observations(observations, name, tally, recorded_law, false_alarm, bias)
    if law is None:
        law = law_of_shards(path) if path is not None and path.is_dir() else "with-replacement"
    observer = Observer(declared.law_maker(law))
    observations = map(observer.observe, read_records(source, processings))
    return audit_observations(observations, name, tally, declared.law_name(law), false_alarm, bias)


def _law_of_numbers(
    numbers: Path,
    law: str | declared.LawMaker | None,
    processings: dict[str, Processing | None],
) -> str:
    """The law under which numbers were recorded; ValueError for another one, and for a processing."""
    recorded = law_of_numbers(numbers)
    if law is not None and declared.law_name(law) != recorded:
        raise wrong(
            "law", declared.law_name(law), f"{recorded}, as the numbers in {numbers} are of it"
        )
    for side, processing in processings.items():
        if processing is not None:
            raise wrong(
                f"{side}_processing", processing, f"none, as {numbers} has numbers, no logits"
            )
    return recorded


def audit_observations(
    observations: Iterable[Observation],
    name: str,
    tally: Tally,
    law: str,
    false_alarm: float,
    bias: float,
) -> RecordedRunAudit:
    """Audit the observations of a source with this name, with a fresh tally; ``law`` is the law's name."""
    if verifiers.validate_level(false_alarm) < SMALLEST_FALSE_ALARM:
        raise wrong("false_alarm", repr(false_alarm), f"at least {SMALLEST_FALSE_ALARM:.0e}")
    verifiers.validate_fraction("bias", bias)
    for observation in observations:
        tally.add(observation)
    refuse_partial_lists(name, tally.least_listed.tolist(), tally.most_listed.tolist())
    if not tally.positions:
        raise wrong(name, "no rows", "at least one")
    level = false_alarm / claims.NUM_STATEMENTS
    tally.count_improbable(level)
    cases = {kind: rows for kind, rows in tally.cases.items() if rows}
    return RecordedRunAudit(
        num_rows=len(tally.positions),
        law=law,
        false_alarm=false_alarm,
        bias=float(bias),
        cases=tuple(BoundaryCase(kind, *_counted(rows)) for kind, rows in cases.items()),
        vocabularies={size: _counted(rows) for size, rows in tally.vocabularies.items()},
        claims=_judge(tally, level),
        acceptance=tally.acceptance(level),
        bands=tuple(bands_of(names, tally.evidence[claim]) for claim, names in CLASSES.items()),
        metrics=metrics_of(tally.positions, tally.ceilings) if law else (),
    )


def _judge(tally: Tally, level: float) -> tuple[Claim, ...]:
    """Judge the claims for which anything was recorded."""
    # Without drafts, the orders by q are those of token ids.
    left_out = () if tally.has_drafts else claims.ORDERS_BY_DRAFT
    return tuple(
        judge_claim(name, evidence, level, rng=tally.rng)
        for name, evidence in tally.evidence.items()
        if evidence.numbers and name not in left_out
    )


def _counted(rows: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    return len(rows), tuple(rows[:_ROWS_SHOWN])
