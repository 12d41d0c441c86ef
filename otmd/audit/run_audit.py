"""The audit of a recorded run: is its output lossless, and are its drafts what they are said to be.

Each claim about many positions is turned into numbers that are uniform on [0, 1) given everything before, if
the claim holds. So they are independent, although a position depends on the tokens before it: counts in
equal cells have a known law, and bets on them are fair.
"""

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from otmd.audit.evidence import (
    BY_MASS,
    BY_RATIO,
    STAKES,
    ChanceBets,
    anytime_p_value,
    bands_of,
    judge_claim,
    mean_wealth,
)
from otmd.audit.mistakes import Explanation, Position, explain_drafts, explain_output
from otmd.audit.records import NOT_DECIDED, Record, Source, read_records
from otmd.audit.run_report import (
    DRAFTS,
    KINDS,
    NUM_STATEMENTS,
    OUTCOMES,
    OUTPUT,
    OUTPUT_BY_MASS,
    ROWS,
    SLOTS,
    BoundaryCase,
    PooledAcceptance,
    RecordedRunAudit,
    metrics_of,
)
from otmd.audit.run_tally import LawMaker, Tally, declared_law, law_maker
from otmd.audit.samples import validate_fraction, validate_level
from otmd.drafts.base import validate_rng
from otmd.probabilities import Processing, wrong

_SMALLEST_FALSE_ALARM = 2e-5
_MOST_POSITIONS = {"drafts": 400, "output": 2_000}
_FEWEST_POSITIONS = 50
_MOST_NUMBERS = 2_000_000


def recorded_run(
    source: Source,
    law: str | LawMaker = "with-replacement",
    false_alarm: float = 1e-3,
    *,
    bias: float = 0.1,
    target_processing: Processing | None = None,
    draft_processing: Processing | None = None,
    rng: np.random.Generator,
) -> RecordedRunAudit:
    """Audit a recorded run of an engine.

    Parameters
    ----------
    source : str, Path or sequence of mapping
        A ``.jsonl``, ``.parquet`` or ``.safetensors`` file, or rows with the same fields.
    law : str or callable
        How the drafts of a position were drawn: with-replacement, without-replacement, conditional-poisson,
        greedy, hub, stratified, certain-top, independent, or fixed for drafts that the text before them
        decides. Or a callable that makes the law of ``draft_probs`` (V,) and ``num_drafts``, such as
        ``partial(Stratified, sharpness=1.5)``.
    false_alarm : float
        Probability, at most, that anything said by chance of a sound engine's run is wrong.
    bias : float
        A run passes only if a total variation of this size would have been found with probability 0.9.
    target_processing, draft_processing : Processing, optional
        Turns recorded logits into the probabilities that were used, for all rows.
    rng : numpy.random.Generator
        Equal seeds give equal audits.

    Raises
    ------
    ValueError
        For invalid arguments, and for a malformed file, row or field, which it names.

    Notes
    -----
    One pass keeps a few numbers of each row. If a claim is refuted, the first rows are read again, to find
    the mistake that explains them. The recorded p is taken to be the p that was meant.
    """
    make = law_maker(law)
    if validate_level(false_alarm) < _SMALLEST_FALSE_ALARM:
        raise wrong("false_alarm", repr(false_alarm), f"at least {_SMALLEST_FALSE_ALARM:.0e}")
    validate_fraction("bias", bias)
    validate_rng(rng)
    given = {"target": target_processing, "draft": draft_processing}
    defaults = {side: own for side, own in given.items() if own is not None}
    tally = Tally(make, rng)
    for record in read_records(source, defaults):
        tally.add(record)
    if tally.num_rows == 0:
        raise wrong("source", f"no rows in {source!s:.200}", "at least one")
    level = false_alarm / NUM_STATEMENTS
    recorded = ((name, own) for name, own in tally.evidence.items() if own.numbers)
    claims = tuple(judge_claim(name, own, level, rng=rng) for name, own in recorded)
    refuted = {own.name for own in claims if own.refuted}
    # Outcomes that cannot happen have their own likely causes, and other tokens may mislead.
    proved = not OUTCOMES.isdisjoint(tally.cases)
    return RecordedRunAudit(
        num_rows=tally.num_rows,
        law=_name_of(law),
        false_alarm=false_alarm,
        bias=float(bias),
        cases=tuple(BoundaryCase(own, *tally.cases[own]) for own in KINDS if own in tally.cases),
        vocabularies={int(size): own for size, own in tally.vocabularies.items()},
        claims=claims,
        acceptance=_pooled_acceptance(tally, level),
        bands=(
            bands_of(BY_RATIO, tally.evidence[OUTPUT]),
            bands_of(BY_MASS, tally.evidence[OUTPUT_BY_MASS]),
        ),
        explanations={} if proved else _explanations(refuted, source, defaults, make),
        most_repeated=tally.dependence.most_repeated() if SLOTS in refuted else "",
        metrics=metrics_of(tally.positions(), tally.ceilings),
    )


def _name_of(law: str | LawMaker) -> str:
    """A law as the command line calls it, with its parameters."""
    if isinstance(law, str):
        return law
    if isinstance(law, partial):
        told = ", ".join(f"{name}={own!r}" for name, own in law.keywords.items())
        return f"{_name_of(law.func)} ({told})"
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", getattr(law, "__name__", repr(law))).lower()


def _pooled_acceptance(tally: Tally, level: float) -> PooledAcceptance | None:
    accepted, ceilings = np.array(tally.accepted, bool), np.array(tally.ceilings)
    if not accepted.size:
        return None
    wealth = mean_wealth([ChanceBets(stake).update(accepted, ceilings) for stake in STAKES])
    rate, mean_ceiling = float(accepted.mean()), float(ceilings.mean())
    return PooledAcceptance(accepted.size, rate, mean_ceiling, anytime_p_value(wealth), level)


def _explanations(
    refuted: set[str], source: Source, defaults: dict[str, Processing], make: LawMaker | None
) -> dict[str, Explanation]:
    """The likeliest mistake behind refuted claims; of the output only where the drafts are sound."""
    explained = {
        "drafts": ((DRAFTS, SLOTS, ROWS), explain_drafts),
        "output": ((OUTPUT_BY_MASS, OUTPUT), explain_output),
    }
    for side, (claims, explain) in explained.items():
        for name in (name for name in claims if name in refuted):
            found = explain(partial(_first_positions, source, defaults, make, side))
            return {} if found is None else {name: found}
    return {}


def _first_positions(
    source: Source, defaults: dict[str, Processing], make: LawMaker | None, side: str
) -> Iterator[Position]:
    """The first positions with drafts of a known law, or with an output token that p may emit."""
    seen = numbers = 0
    for record in read_records(source, defaults):
        own = _position(record, make, side)
        if own is not None:
            yield own
            seen, numbers = seen + 1, numbers + record.vocab_size
        enough = seen >= _FEWEST_POSITIONS and numbers >= _MOST_NUMBERS
        if seen >= _MOST_POSITIONS[side] or enough:
            return


def _position(record: Record, make: LawMaker | None, side: str) -> Position | None:
    """What an explanation needs of a row; None for a row that it cannot use."""
    p, q, tokens, output = record.target, record.draft, record.draft_tokens, record.output_token
    if max(output, tokens.max(initial=0)) >= record.vocab_size or tokens.min(initial=0) < 0:
        return None
    law = None
    if make is not None and isinstance(q, np.ndarray):
        declared = declared_law(make, q, tokens)
        law = None if isinstance(declared, str) else declared[0]
    if isinstance(p, str) or (side == "drafts" and law is None):
        return None
    if side == "output" and (output == NOT_DECIDED or p[output] == 0):
        return None
    return Position(p, law, tokens, output)
