"""The audit of a recorded run: is its output lossless, and are its drafts what they are said to be.

Each claim about many positions is turned into numbers that are uniform on [0, 1) given everything before, if
the claim holds. So they are independent, although a position depends on the tokens before it: counts in
equal cells have a known law, and bets on them are fair.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from otmd.audit import faults
from otmd.audit.draft_samples import Explanation, mistakes, other_distributions
from otmd.audit.evidence import BY_MASS, BY_RATIO, Claim, bands_of, judge_claim
from otmd.audit.records import NOT_DECIDED, Record, Source, read_records
from otmd.audit.run_report import (
    DRAFTS,
    NUM_STATEMENTS,
    OUTPUT,
    OUTPUT_BY_MASS,
    ROWS,
    SLOTS,
    BoundaryCase,
    PooledAcceptance,
    RecordedRunAudit,
    metrics_of,
)
from otmd.audit.run_tally import FIXED, RUN_LAWS, Tally, declared_law, law_of, wrong_with_drafts
from otmd.audit.samples import validate_fraction, validate_level, wrong
from otmd.audit.sequential import STAKES, ChanceBets, mean_wealth
from otmd.drafts import WithReplacement
from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray, IntArray, Processing
from otmd.verifiers import KSequential

_SMALLEST_FALSE_ALARM = 2e-5
_MOST_POSITIONS = {"draft": 400, "target": 2_000}
_FEWEST_POSITIONS = 50
_MOST_NUMBERS = 2_000_000
# An explanation has to be a thousand times likelier than what was declared.
_LEAST_GAIN = float(np.log(1000.0))
# The share of tokens that a rule may get wrong by rounding, and still be the likeliest.
_ERRING = 1e-3
_OF_TARGET = "the target is "
_RULE_FAULTS = {
    "after all rejections the token is drawn from p, not from the residual": faults.ResidualFromTarget,
    "after all rejections the token is drawn from q, not from the residual": faults.ResidualFromDraft,
    "the residual is not renormalised": faults.UnnormalisedResidual,
    "a draft that repeats a rejected one is skipped": faults.SkippedDuplicates,
    "the first draft is emitted unverified": faults.FirstDraftKept,
}


def recorded_run(
    source: Source,
    law: str = "with-replacement",
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
    law : str
        How the drafts of a position were drawn: with-replacement, without-replacement, greedy, or fixed for
        drafts that the text before them decides.
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
    One pass keeps a few numbers of each row; a second one over the first rows looks for the mistake that
    explains a refuted claim. The recorded p is taken to be the p that was meant.
    """
    if law not in RUN_LAWS:
        raise wrong("law", repr(law), f"one of {', '.join(RUN_LAWS)}")
    if validate_level(false_alarm) < _SMALLEST_FALSE_ALARM:
        raise wrong("false_alarm", repr(false_alarm), f"at least {_SMALLEST_FALSE_ALARM:.0e}")
    validate_fraction("bias", bias)
    validate_rng(rng)
    given = {"target": target_processing, "draft": draft_processing}
    defaults = {side: own for side, own in given.items() if own is not None}
    tally = Tally(law, rng)
    for record in read_records(source, defaults):
        tally.add(record)
    if tally.num_rows == 0:
        raise wrong("source", f"no rows in {source!s:.200}", "at least one")
    level = false_alarm / NUM_STATEMENTS
    evidence = {
        OUTPUT: tally.output_by_ratio,
        OUTPUT_BY_MASS: tally.output_by_mass,
        DRAFTS: tally.drafts,
        SLOTS: tally.dependence.slots,
        ROWS: tally.dependence.rows,
    }
    claims = tuple(
        judge_claim(name, own, level, rng=rng) for name, own in evidence.items() if own.numbers
    )
    return RecordedRunAudit(
        num_rows=tally.num_rows,
        law=law,
        false_alarm=false_alarm,
        bias=float(bias),
        cases=BoundaryCase.of(tally.cases.found),
        vocabularies={int(size): own for size, own in tally.vocabularies.found.items()},
        claims=claims,
        acceptance=_pooled_acceptance(tally, level),
        bands=(bands_of(BY_RATIO, tally.output_by_ratio), bands_of(BY_MASS, tally.output_by_mass)),
        explanations=_explanations(claims, source, defaults, law),
        most_repeated=tally.dependence.most_repeated(),
        metrics=metrics_of(tally.positions(), tally.ceilings),
    )


def _pooled_acceptance(tally: Tally, level: float) -> PooledAcceptance | None:
    accepted, ceilings = np.array(tally.accepted, bool), np.array(tally.ceilings)
    if not accepted.size:
        return None
    paths = [ChanceBets(stake).update(accepted, ceilings) for stake in STAKES]
    p_value = float(np.exp(-max(0.0, float(mean_wealth(paths).max()))))
    rate, mean_ceiling = float(accepted.mean()), float(ceilings.mean())
    return PooledAcceptance(accepted.size, rate, mean_ceiling, p_value, level)


def _explanations(
    claims: tuple[Claim, ...], source: Source, defaults: dict[str, Processing], law: str
) -> dict[str, Explanation]:
    """The likeliest mistake behind the refuted claims, from the first of them that explains the others.

    Wrong drafts make the output wrong as well, so the output is explained only if the drafts are sound.
    """
    refuted = {own.name for own in claims if own.refuted}
    about_drafts = [name for name in (DRAFTS, SLOTS, ROWS) if name in refuted]
    about_output = [name for name in (OUTPUT_BY_MASS, OUTPUT) if name in refuted]
    side = "draft" if about_drafts else "target"
    found = None
    if about_drafts or about_output:
        found = explain(read_records(source, defaults), side, law)
    return {} if found is None else {(about_drafts + about_output)[0]: found}


def explain(records: Iterable[Record], side: str, law: str) -> Explanation | None:
    """The mistake that makes the tokens of the first rows likeliest, if by a thousand times or more.

    For ``side`` "draft" the drafts are held against q under ``law``; for "target" the output tokens, given
    the drafts, against the likeliest of three sound rules: recursive rejection, K-SEQ, and tokens drawn from
    p alone. The likelihood is relative to the record, less the logarithm of the number of settings tried.
    """
    sums: dict[tuple[str, str], float] = defaultdict(float)
    seen = numbers = 0
    for record in records:
        likelihoods = list(_likelihoods(record, side, law))
        if not likelihoods:
            continue
        # Ratios to the first, so that a setting that changes nothing at a position may be left out there.
        for kind, setting, likelihood in likelihoods:
            with np.errstate(divide="ignore"):
                sums[kind, setting] += float(np.log(likelihood) - np.log(likelihoods[0][2]))
        seen, numbers = seen + 1, numbers + record.vocab_size
        enough = seen >= _FEWEST_POSITIONS and numbers >= _MOST_NUMBERS
        if seen >= _MOST_POSITIONS[side] or enough:
            break
    if not sums:
        return None
    declared = max(own for (kind, _), own in sums.items() if not kind)
    (kind, setting), best = max(sums.items(), key=lambda own: own[1])
    gain = best - declared - float(np.log(sum(own == kind for own, _ in sums)))
    words = f"{kind} ({setting})" if setting else kind
    return Explanation(words, gain) if gain >= _LEAST_GAIN else None


def _likelihoods(record: Record, side: str, law: str) -> Iterator[tuple[str, str, float]]:
    """Mistake, setting and likelihood of a row's tokens; what was declared has no name. Empty if unusable."""
    tokens, output = record.draft_tokens, record.output_token
    if max(output, tokens.max(initial=0)) >= record.vocab_size or tokens.min(initial=0) < 0:
        return
    q = None if record.draft is None else law_of(record.draft, record.vocab_size)
    sound = isinstance(q, np.ndarray) and tokens.size > 0 and law != FIXED
    if not isinstance(q, np.ndarray) or not sound or wrong_with_drafts(law, q, tokens) is not None:
        q = None
    if side == "draft":
        if q is not None:
            declared = declared_law(law, q, tokens.size)
            yield "", "", float(declared.tuple_prob(tokens))
            for own in mistakes(declared):
                yield own.kind, own.setting, float(own.tuple_prob(tokens[None])[0])
        return
    p = law_of(record.target, record.vocab_size)
    if output == NOT_DECIDED or isinstance(p, str) or p[output] == 0:
        return
    for kind, setting, rule in _rules(p, q, tokens, law):
        law_given = rule if isinstance(rule, np.ndarray) else rule(tokens)
        yield kind, setting, float((1.0 - _ERRING) * law_given[output] + _ERRING * p[output])


def _rules(
    p: FloatArray, q: FloatArray | None, draft_tokens: IntArray, law: str
) -> Iterator[tuple[str, str, FloatArray | Callable[[IntArray], FloatArray]]]:
    """Sound rules, which have no name, and faulty ones; just the law of the token without drafts from q."""
    yield "", "p alone", p
    if q is None or law == "greedy":
        for kind, setting, probs in other_distributions(p):
            yield _OF_TARGET + kind, setting, probs
        return
    distinct = law == "without-replacement"
    steps, others = faults.RecursiveRejectionSteps, faults.WithoutReplacementSteps
    if distinct:
        steps, others = others, steps
    yield "", "steps", steps(p, q)
    if not distinct:
        prepared = KSequential().prepare(p, WithReplacement(q, draft_tokens.size))
        yield "", "K-SEQ", prepared.conditional_law
    for kind, setting, probs in other_distributions(p):
        yield _OF_TARGET + kind, setting, steps(probs, q)
    for kind, fault in _RULE_FAULTS.items():
        rule = fault(p, q)
        rule.distinct = distinct
        yield kind, "", rule
    if draft_tokens.size > 1:
        believed = "independent" if distinct else "distinct"
        yield f"the drafts are verified as if they were {believed}", "", others(p, q)
