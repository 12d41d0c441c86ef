"""The most likely cause of a fault in a recorded run: chosen on half of its first rows, tested on others."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from otmd.audit import counts, samples
from otmd.audit.draft_mistakes import draft_mistakes, log_likelihoods
from otmd.audit.mistakes import Explanation, Fit, Side, best_settings
from otmd.audit.output_mistakes import OUTPUT_MISTAKES, OutputMistake, RejectionSteps
from otmd.audit.positions import Position, PositionReader, Records
from otmd.laws.base import draw_tokens
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers import KSequential, Preference, Verifier

# An explanation has to be a thousand times more likely than what was declared.
_LEAST_GAIN = float(np.log(1000.0))
# A mistake that is a hundred times more likely than another one excludes it.
_LEAST_LEAD = float(np.log(100.0))
# Likelihoods allow for this share of tokens that an engine gets wrong by rounding.
_ERRING = 1e-3
# Log-likelihoods that differ by less are equal up to rounding.
_SAME = 1e-6
# A held-out outcome is ranked among so many draws; with it they fill cells that halve.
_DRAWS = 15
_SAMPLES_A_CELL = 30
# A mistake that is the whole cause is refuted with this probability at most.
_FIT_LEVEL = 0.01
# Multiples of the golden ratio, modulo 1, scatter neighbouring token ids.
_GOLDEN = 0.6180339887498949
_SOUND = np.empty(0)
_NO_MISTAKE = OutputMistake("", lambda position: {})


class _Outcome(NamedTuple):
    """A held-out row: its groups, its ranks (S,) by S statistics, and whether the mistake excludes it.

    The ``bias`` is the total variation between the mistake and what is sound.
    """

    groups: tuple[str, ...]
    ranks: IntArray
    impossible: bool
    bias: float


class _Cause(NamedTuple):
    """An explanation, and the outcome of a held-out position: None where the mistake cannot be made.

    ``outcome`` takes the number of the position, the position and a generator.
    """

    explanation: Explanation
    outcome: Callable[[int, Position, np.random.Generator], _Outcome | None]


def most_likely_cause(
    subject: str, read: Records, make_law: samples.LawMaker | None, rng: np.random.Generator
) -> Explanation | None:
    """The mistake that makes ``"drafts"`` or ``"output"`` 1,000 times more likely than what was declared.

    It is chosen on one half of the first rows, drawn at random, and tested on the held-out half.
    """
    # Not the stream of the generator itself: the engine may have been seeded as it was.
    seed = int(rng.integers(2**63))
    positions = PositionReader(read, make_law, subject, seed, held_out=False)
    cause = _cause_of_drafts(positions) if subject == "drafts" else _cause_of_output(positions)
    if cause is None:
        return None
    draws = np.random.default_rng([seed, 1])
    held_out = positions._replace(held_out=True)()
    outcomes = (cause.outcome(index, position, draws) for index, position in enumerate(held_out))
    return replace(cause.explanation, fit=_fit([x for x in outcomes if x is not None], draws))


class _Best(NamedTuple):
    explanation: Explanation
    kind: str
    setting: str


def _best(gains: dict[tuple[str, str], float]) -> _Best | None:
    """The best explanation, if it is likely enough; others nearly as likely are named."""
    ranked = best_settings(gains)
    if not ranked:
        return None
    key, best = next(iter(ranked.items()))
    if best.log_likelihood < _LEAST_GAIN:
        return None
    least = best.log_likelihood - _LEAST_LEAD
    near = [x.mistake for x in ranked.values() if x is best or x.log_likelihood > least]
    return _Best(replace(best, mistake=", or ".join(near)), *key)


def _cause_of_drafts(positions: PositionReader) -> _Cause | None:
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for position in positions():
        assert position.law is not None
        tokens = position.record.draft_tokens[None]
        likelihoods = log_likelihoods(position.law, tokens, np.ones(1), _draft_side(position))
        # If the product of the draft probabilities underflows, nothing can be compared.
        if likelihoods.declared > -np.inf:
            for key, likelihood in likelihoods.mistakes.items():
                gains[key] += likelihood - likelihoods.declared
    best = _best(gains)
    return None if best is None else _Cause(best.explanation, partial(_draft_outcome, best))


def _draft_side(position: Position) -> Side | None:
    return None if position.record.draft.probs is None else position.side("draft")


def _draft_outcome(
    best: _Best, index: int, position: Position, rng: np.random.Generator
) -> _Outcome | None:
    assert position.law is not None
    mistakes = draft_mistakes(position.law, _draft_side(position))
    key = (best.kind, best.setting)
    mistake = next((x for x in mistakes if (x.kind, x.setting) == key), None)
    if mistake is None:
        return None
    recorded = position.record.draft_tokens[None]
    q = position.law.inclusion_probs()
    tuples = np.concatenate([recorded, mistake.sample(rng, _DRAWS)])
    slot = tuples[:, index % recorded.size]
    ordered = np.sort(tuples, axis=-1)
    statistics = [
        q[tuples].sum(axis=-1),
        q[slot],
        slot,
        slot * _GOLDEN % 1.0,
        (np.diff(ordered, axis=-1) > 0).sum(axis=-1),
        tuples.argmax(axis=-1),
        q[tuples].argmax(axis=-1),
    ]
    impossible = bool(mistake.tuple_prob(recorded)[0] == 0)
    # An unbiased estimate of the total variation, from draws of the mistake.
    relative = position.law.tuple_prob(tuples[1:]) / mistake.tuple_prob(tuples[1:])
    bias = float(np.maximum(1.0 - relative, 0.0).mean())
    return _Outcome(_groups(position), _ranks(np.array(statistics), rng), impossible, bias)


Lossless = Callable[[Position, FloatArray], FloatArray]
"""The distributions of the output token (…, V) of a lossless verifier for targets (…, V) at a position."""


def _target_alone(position: Position, targets: FloatArray) -> FloatArray:
    return targets


def _rejection_in_steps(position: Position, targets: FloatArray) -> FloatArray:
    law = position.law
    tokens = position.record.draft_tokens
    return targets if law is None else RejectionSteps(targets, law)(tokens)


def _as_verified(verifier: Verifier, position: Position, targets: FloatArray) -> FloatArray:
    law = position.law
    if law is None or not verifier.supports(law):
        return targets
    tokens = position.record.draft_tokens
    rows = targets.reshape(-1, targets.shape[-1])
    outputs = [verifier.prepare_position(target, law).conditional_law(tokens) for target in rows]
    return np.reshape(outputs, targets.shape)


_LOSSLESS: tuple[Lossless, ...] = (
    _target_alone,
    _rejection_in_steps,
    partial(_as_verified, KSequential()),
    partial(_as_verified, Preference()),
)


class _Hypothesis(NamedTuple):
    """A verifier, lossless but for a mistake with a setting."""

    mistake: OutputMistake
    setting: str
    verifier: Lossless

    def output(self, position: Position) -> FloatArray | None:
        """The distribution of the output (V,) given the drafts; None if it is unknown."""
        probs = self.mistake.variants(position).get(self.setting, _SOUND)
        if probs is _SOUND:
            return self.verifier(position, position.target)
        if probs is None or not self.mistake.of_target:
            return probs
        return self.verifier(position, probs)


def _cause_of_output(positions: PositionReader) -> _Cause | None:
    verifier = _most_likely_verifier(_NO_MISTAKE, "", positions)
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for position in positions():
        for key, gain in _gains_of_output(verifier, position):
            gains[key] += gain
    best = _best(gains)
    if best is None:
        return None
    mistake = next(mistake for mistake in OUTPUT_MISTAKES if mistake.sentence == best.kind)
    # Faults of the verifier are those of recursive rejection.
    verifier = _rejection_in_steps
    if mistake.of_target:
        verifier = _most_likely_verifier(mistake, best.setting, positions)
    hypothesis = _Hypothesis(mistake, best.setting, verifier)
    return _Cause(best.explanation, partial(_output_outcome, hypothesis))


def _gains_of_output(
    verifier: Lossless, position: Position
) -> Iterator[tuple[tuple[str, str], float]]:
    """The log-likelihood ratio of each mistake and setting against a lossless verifier."""
    declared = _log_likelihood(position, verifier(position, position.target))
    for mistake in OUTPUT_MISTAKES:
        variants = mistake.variants(position)
        by_setting = {setting: probs for setting, probs in variants.items() if probs is not None}
        if not by_setting:
            continue
        outputs = np.stack([*by_setting.values()])
        if mistake.of_target:
            outputs = verifier(position, outputs)
        gains = _log_likelihood(position, outputs) - declared
        for setting, gain in zip(by_setting, gains.tolist(), strict=True):
            yield (mistake.sentence, setting), gain


def _most_likely_verifier(
    mistake: OutputMistake, setting: str, positions: PositionReader
) -> Lossless:
    """The lossless verifier that explains the output best, together with a mistake."""
    hypotheses = [_Hypothesis(mistake, setting, verifier) for verifier in _LOSSLESS]
    totals = np.zeros(len(hypotheses))
    for position in positions():
        outputs = [hypothesis.output(position) for hypothesis in hypotheses]
        totals += [0.0 if x is None else float(_log_likelihood(position, x)) for x in outputs]
    # With one draft all but the first are the same verifier, and the steps are the fastest.
    return _LOSSLESS[int(np.argmax(totals >= totals.max() - _SAME))]


def _output_outcome(
    hypothesis: _Hypothesis, _: int, position: Position, rng: np.random.Generator
) -> _Outcome | None:
    output = hypothesis.output(position)
    if output is None:
        return None
    recorded = position.record.output_token
    tokens = np.append(recorded, draw_tokens(output, rng, _DRAWS))
    statistics = np.array([*_statistics(position, output, tokens)])
    lossless = hypothesis.verifier(position, position.target)
    bias = float(np.abs(output - lossless).sum() / 2.0)
    ranks = _ranks(statistics, rng)
    return _Outcome(_groups(position), ranks, bool(output[recorded] == 0), bias)


def _statistics(position: Position, output: FloatArray, tokens: IntArray) -> Iterator[NDArray]:
    """Numbers (…) by which the output token and draws from its distribution, ``tokens`` (…), are ranked."""
    p = position.target
    q = position.record.draft.probs
    is_draft = (position.record.draft_tokens[:, None] == tokens).any(axis=0)
    residual = p[tokens] if q is None else p[tokens] - q[tokens]
    yield is_draft
    yield np.where(is_draft, np.inf, residual)
    yield tokens
    yield tokens * _GOLDEN % 1.0
    yield output[tokens]
    yield p[tokens]
    yield counts.ratios(output[tokens], p[tokens])
    yield p[tokens] if q is None else counts.ratios(p[tokens], q[tokens])
    # Faults of an index: of the token, or of the row.
    yield p[tokens - 1]
    yield p[(tokens + 1) % p.size]
    before = position.neighbours["target"]["the row before"]
    yield (p if before is None else before)[tokens]


def _log_likelihood(position: Position, outputs: FloatArray) -> FloatArray:
    """Log-probability (…) of the output token under distributions (…, V), which a rare error replaces."""
    token = position.record.output_token
    p = position.target
    # The error is a token of the target or any other.
    error = (p[token] + 1.0 / p.size) / 2.0
    return np.log((1.0 - _ERRING) * outputs[..., token] + _ERRING * error)


def _groups(position: Position) -> tuple[str, ...]:
    """The groups of rows that are tested by themselves."""
    record = position.record
    depth = "first" if record.depth == 0 else "later"
    # Workers and buffers often take turns.
    parity = "odd" if record.row % 2 else "even"
    return ("all", depth if record.draft_tokens.size else "without drafts", parity)


def _ranks(statistics: FloatArray, rng: np.random.Generator) -> IntArray:
    """The rank of the first of 1 + 15 values (S, 16), uniform if they are exchangeable; ties at random."""
    first = statistics[:, :1]
    drawn = statistics[:, 1:]
    return (drawn < first).sum(axis=1) + rng.integers(0, (drawn == first).sum(axis=1) + 1)


def _fit(outcomes: list[_Outcome], rng: np.random.Generator) -> Fit:
    """Test that the ranks are uniform: of all rows and of each group, by each statistic."""
    ranks_by_group = defaultdict(list)
    for outcome in outcomes:
        for group in outcome.groups:
            ranks_by_group[group].append(outcome.ranks)
    columns = [column for ranks in ranks_by_group.values() for column in np.array(ranks).T]
    # One more test, of outcomes that the mistake excludes.
    num_tests = len(columns) + 1
    level = _FIT_LEVEL / num_tests
    number = len(outcomes)
    impossible = sum(outcome.impossible for outcome in outcomes)
    smallest = float(binom.sf(impossible - 1, number, _ERRING))
    for column in columns:
        num_cells = _num_cells(column.size)
        observed = np.bincount(column * num_cells // (_DRAWS + 1), minlength=num_cells)
        uniform = np.full(num_cells, 1.0 / num_cells)
        smallest = min(smallest, counts.exact_p_value(observed, uniform, level, rng=rng))
    at_least_one = max(1, number)
    detectable = counts.detectable_total_variation(at_least_one, _num_cells(number), level)
    bias = sum(outcome.bias for outcome in outcomes) / at_least_one
    return Fit(number, min(1.0, smallest * num_tests), _FIT_LEVEL, detectable, bias)


def _num_cells(num_samples: int) -> int:
    """A power of two, so that the ranks fill the cells equally."""
    return 2 ** int(np.clip(np.log2(max(1, num_samples) / _SAMPLES_A_CELL), 1, 4))
