"""The audit of a recorded run: is its output lossless, are its drafts what they are said to be."""

import numpy as np

from otmd.audit.arguments import validate_level
from otmd.audit.betting import ChanceBets, mean_wealth
from otmd.audit.dump_claims import Claim, Evidence, judge_claim
from otmd.audit.dump_explanation import explain
from otmd.audit.dump_laws import validate_law
from otmd.audit.dump_report import NUM_STATEMENTS, DumpAudit, PooledAcceptance
from otmd.audit.dump_tally import Tally
from otmd.audit.metrics import Metric, count_metrics
from otmd.audit.records import Source, read_records
from otmd.audit.sequential import STAKES
from otmd.drafts.base import validate_rng
from otmd.probabilities import Processing

OUTPUT, OUTPUT_BY_MASS, DRAFTS = (
    "the output follows the target, tokens by p/q",
    "the output follows the target, tokens by p",
    "the drafts follow their distribution",
)
_SMALLEST_FALSE_ALARM = 1e-5


def dump(
    source: Source,
    law: str = "with-replacement",
    false_alarm: float = 1e-3,
    *,
    target_processing: Processing | None = None,
    draft_processing: Processing | None = None,
    rng: np.random.Generator,
) -> DumpAudit:
    """Audit a recorded run of an engine.

    Parameters
    ----------
    source : str, Path or sequence of mapping
        A ``.jsonl``, ``.parquet`` or ``.safetensors`` file, or rows with the same fields.
    law : str
        How the drafts of a position were drawn: with-replacement, without-replacement, greedy, or fixed for
        drafts that the text before them decides.
    false_alarm : float
        Probability, at most, that anything said by chance of a sound engine's run is wrong.
    target_processing, draft_processing : Processing, optional
        Turns recorded logits into the probabilities that were used, for all rows.
    rng : numpy.random.Generator
        Equal seeds give equal audits.

    Returns
    -------
    DumpAudit

    Raises
    ------
    ValueError
        For invalid arguments, and for a malformed file, row or field, which it names.

    Notes
    -----
    It is one pass with a few numbers kept for each row, and a second one over the first rows for the mistakes
    that explain a refuted claim. It takes for granted that the recorded p is the p that was meant.
    """
    validate_law(law)
    if validate_level(false_alarm) < _SMALLEST_FALSE_ALARM:
        raise ValueError(
            f"false_alarm: got {false_alarm!r}, wanted at least {_SMALLEST_FALSE_ALARM:.0e}"
        )
    validate_rng(rng)
    given = {"target": target_processing, "draft": draft_processing}
    defaults = {side: own for side, own in given.items() if own is not None}
    tally = Tally(law, rng)
    for record in read_records(source, defaults):
        tally.add(record)
    if tally.num_rows == 0:
        raise ValueError(f"source: got no rows in {source!s:.200}, wanted at least one")
    level = false_alarm / NUM_STATEMENTS
    claims = _judged(tally, level, rng)
    explanations = {
        own: explain(read_records(source, defaults), side, law)
        for own, side in _to_explain(claims).items()
    }
    return DumpAudit(
        num_rows=tally.num_rows,
        law=law,
        false_alarm=false_alarm,
        cases=tally.cases.found(),
        claims=claims,
        acceptance=_pooled_acceptance(tally, level),
        bands=(tally.bands_by_ratio.found(), tally.bands_by_mass.found()),
        explanations={name: own for name, own in explanations.items() if own is not None},
        metrics=_metrics(tally),
    )


def _to_explain(claims: tuple[Claim, ...]) -> dict[str, str]:
    """The refuted claims that the list of mistakes may explain, with the side that they are about.

    Drafts from another law than declared make the output wrong in ways that say nothing about the target.
    """
    refuted = {own.name for own in claims if own.refuted}
    if DRAFTS in refuted:
        return {DRAFTS: "draft"}
    return {OUTPUT_BY_MASS: "target"} if OUTPUT_BY_MASS in refuted else {}


def _judged(tally: Tally, level: float, rng: np.random.Generator) -> tuple[Claim, ...]:
    evidence = {
        OUTPUT: Evidence(*tally.output_by_ratio.arrays(), *tally.bands_by_ratio.arrays()),
        OUTPUT_BY_MASS: Evidence(*tally.output_by_mass.arrays(), *tally.bands_by_mass.arrays()),
        DRAFTS: Evidence(*tally.drafts.arrays()),
    }
    return tuple(
        judge_claim(name, own, level, rng=rng) for name, own in evidence.items() if own.numbers.size
    )


def _pooled_acceptance(tally: Tally, level: float) -> PooledAcceptance | None:
    accepted, ceilings = np.array(tally.accepted, bool), np.array(tally.ceilings)
    if not accepted.size:
        return None
    paths = [ChanceBets(stake).update(accepted, ceilings) for stake in STAKES]
    largest = max(0.0, float(mean_wealth(paths).max()))
    return PooledAcceptance(
        accepted.size,
        float(accepted.mean()),
        float(ceilings.mean()),
        float(np.exp(-largest)),
        level,
    )


def _metrics(tally: Tally) -> tuple[Metric, ...]:
    counted = count_metrics(tally.positions)
    if not tally.ceilings:
        return counted
    best = Metric(
        "optimal acceptance rate",
        float(np.mean(tally.ceilings)),
        "mean of α*(p, q) over positions that were reached with drafts: Σ min(p, q) for one draft",
    )
    return (counted[0], best, *counted[1:]) if counted else (best,)
