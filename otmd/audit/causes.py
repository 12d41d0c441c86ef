"""The most likely cause of a fault in a recorded run: chosen on half of its first rows, tested on others."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from otmd.audit import counts, samples
from otmd.audit.mistakes import (
    OUTPUT_MISTAKES,
    Explanation,
    Fit,
    OutputMistake,
    Position,
    Variants,
    best_settings,
    draft_mistakes,
    log_likelihoods,
)
from otmd.audit.records import NOT_DECIDED, Record
from otmd.audit.rule_faults import RejectionSteps
from otmd.drafts.base import draw_tokens
from otmd.engines.lossy import CertainTop
from otmd.probabilities import FloatArray, IntArray
from otmd.verifiers import KSequential, Preference, Verifier

# An explanation has to be a thousand times likelier than what was declared.
_LEAST_GAIN = float(np.log(1000.0))
# A mistake that is a hundred times likelier than another one excludes it.
_LEAST_LEAD = float(np.log(100.0))
# Likelihoods allow for this share of tokens that an engine gets wrong by rounding.
_ERRING = 1e-3
_LOSSLESS = ("p alone", "steps", KSequential(), Preference())
_MOST_POSITIONS = {"drafts": 400, "output": 2_000}
_MOST_HELD_OUT = 4_000
_FEWEST_POSITIONS = 50
_MOST_NUMBERS = 2_000_000
_MOST_NUMBERS_HELD_OUT = 50_000_000
# Neighbours are looked for among so many rows on each side.
_NEAR = 8
# A held-out outcome is ranked among so many draws; with it they fill cells that halve.
_DRAWS = 15
_SAMPLES_A_CELL = 30
# A mistake that is the whole cause is refuted with this probability at most.
_FIT_LEVEL = 0.01
# Multiples of the golden ratio, modulo 1, scatter neighbouring token ids.
_GOLDEN = 0.6180339887498949
_SOUND = np.empty(0)
_NOTHING = OutputMistake("", lambda position: {})
Records = Callable[[], Iterator[Record]]
Positions = Callable[[], Iterable[Position]]
"""Returns the same positions at each call, so that they need not all be held in memory."""


class _Outcome(NamedTuple):
    """A held-out row: its groups, its ranks (S,) by S statistics, and whether the mistake excludes it.

    The ``bias`` is the total variation between the mistake and what is sound.
    """

    groups: tuple[str, ...]
    ranks: IntArray
    impossible: bool
    bias: float


def most_likely_cause(
    side: str, read: Records, make: samples.LawMaker | None, rng: np.random.Generator
) -> Explanation | None:
    """The mistake that makes ``"drafts"`` or ``"output"`` 1,000 times likelier than what was declared.

    It is chosen on one half of the first rows, drawn at random. The other half tests whether it is all.
    """
    # Not the stream of the generator itself: the engine may have been seeded as it was.
    seed = int(rng.integers(2**63))
    rows = partial(_positions, read, make, side, seed)
    explain = _explain_drafts if side == "drafts" else _explain_output
    found = explain(partial(rows, False))
    if found is None:
        return None
    explanation, outcomes = found
    own_rng = np.random.default_rng([seed, 1])
    held_out = [*outcomes(partial(rows, True), own_rng)]
    return replace(explanation, fit=_fit(held_out, own_rng))


def _positions(
    read: Records, make: samples.LawMaker | None, side: str, seed: int, held_out: bool
) -> Iterator[Position]:
    """The first positions with drafts of a known law, or with an output token, of one half of the rows."""
    coins, seen, numbers = np.random.default_rng(seed), 0, 0
    most = _MOST_HELD_OUT if held_out else _MOST_POSITIONS[side]
    most_numbers = _MOST_NUMBERS_HELD_OUT if held_out else _MOST_NUMBERS
    for record, near in _with_neighbours(read()):
        if (coins.random() < 0.5) != held_out:
            continue
        position = _position(record, near, make, side)
        if position is not None:
            yield position
            seen, numbers = seen + 1, numbers + record.vocab_size
        if seen >= most or (seen >= _FEWEST_POSITIONS and numbers >= most_numbers):
            return


def _with_neighbours(records: Iterable[Record]) -> Iterator[tuple[Record, dict[str, list[Record]]]]:
    """Each row, with the rows before and after it, nearest first."""
    window: deque[Record | None] = deque(repeat(None, 2 * _NEAR + 1), 2 * _NEAR + 1)
    for latest in chain(records, repeat(None, _NEAR)):
        window.append(latest)
        rows = [*window]
        if (centre := rows[_NEAR]) is not None:
            before = [row for row in reversed(rows[:_NEAR]) if row is not None]
            after = [row for row in rows[_NEAR + 1 :] if row is not None]
            yield centre, {"before": before, "after": after}


def _position(
    record: Record, near: dict[str, list[Record]], make: samples.LawMaker | None, side: str
) -> Position | None:
    """The position of a row; None if it is not one of :func:`_positions`."""
    tokens, output = record.draft_tokens, record.output_token
    if max(output, tokens.max(initial=0)) >= record.vocab_size or tokens.min(initial=0) < 0:
        return None
    if isinstance(record.target, str) or (side == "output" and output == NOT_DECIDED):
        return None
    every = {name: _neighbours(record, near, name) for name in ("target", "draft")}
    found = (probs for own in every.values() for probs in own.values() if probs is not None)
    size = max(probs.size for probs in chain([record.target], found))
    record = _padded(record, size)
    law, q = None, record.draft
    if make is None and tokens.size:
        # Fixed drafts are certain.
        make, q = CertainTop, np.bincount(tokens, minlength=size) / tokens.size
    if make is not None and isinstance(q, np.ndarray):
        declared = samples.declared_law(make, q, tokens)
        law = None if isinstance(declared, str) else declared[0]
    if side == "drafts" and law is None:
        return None
    neighbours = {
        name: {words: None if probs is None else _pad(probs, size) for words, probs in own.items()}
        for name, own in every.items()
    }
    return Position(record, law, neighbours)


def _neighbours(record: Record, near: dict[str, list[Record]], side: str) -> Variants:
    """The distributions of rows near this one, by words; None if there are none."""
    # What comes after a row depends on its output, unless it is of another request.
    same = [row for row in near["before"] if row.request == record.request and _is_sound(row, side)]
    rows = {
        "the row before": same,
        "the depth before": [row for row in same[:1] if row.depth == record.depth - 1],
    }
    for words, first, last in (("next", "after", "before"), ("previous", "before", "after")):
        # A batch wraps around.
        batch = [row for row in (*near[first], *reversed(near[last])) if row.step == record.step]
        others = [row for row in batch if row.request != record.request]
        rows[f"the {words} request of the batch"] = [
            row
            for row in others
            if (row.request, row.depth) == (others[0].request, record.depth)
            and _is_sound(row, side)
        ]
    return {words: getattr(found[0], side) if found else None for words, found in rows.items()}


def _is_sound(row: Record, side: str) -> bool:
    return isinstance(getattr(row, side), np.ndarray)


def _pad(probs: FloatArray, size: int) -> FloatArray:
    return probs if probs.size == size else np.pad(probs, (0, size - probs.size))


def _padded(record: Record, size: int) -> Record:
    if record.vocab_size == size:
        return record
    sides = {
        side: _pad(probs, size)
        for side in ("target", "draft")
        if isinstance(probs := getattr(record, side), np.ndarray)
    }
    logits = {
        name: own._replace(
            numbers=np.pad(own.numbers, (0, size - own.numbers.size), constant_values=-np.inf)
        )
        for name in ("target_logits", "draft_logits")
        if (own := getattr(record, name)) is not None
    }
    return record._replace(vocab_size=size, **sides, **logits)


def _best(gains: dict[tuple[str, str], float]) -> tuple[Explanation, tuple[str, str]] | None:
    """The best explanation and its key, if it is likely enough; others nearly as likely are named."""
    tried = Counter(kind for kind, _ in gains)
    key = max(gains, key=lambda own: gains[own] - np.log(tried[own[0]]), default=None)
    best, *others = best_settings(gains) or [Explanation("", -np.inf)]
    if key is None or best.log_likelihood < _LEAST_GAIN:
        return None
    near = [own.mistake for own in others if own.log_likelihood > best.log_likelihood - _LEAST_LEAD]
    return replace(best, mistake=", or ".join([best.mistake, *near])), key


def _explain_drafts(positions: Positions) -> tuple[Explanation, Callable] | None:
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for own in positions():
        assert own.law is not None
        tokens = own.record.draft_tokens[None]
        declared, likelihoods = log_likelihoods(own.law, tokens, np.ones(1), _draft_side(own))
        # If the product of the draft probabilities underflows, nothing can be compared.
        for key in likelihoods if declared > -np.inf else ():
            gains[key] += likelihoods[key] - declared
    best = _best(gains)
    return best and (best[0], partial(_draft_outcomes, best[1]))


def _draft_side(position: Position):
    return position.side("draft") if isinstance(position.record.draft, np.ndarray) else None


def _draft_outcomes(
    key: tuple[str, str], positions: Positions, rng: np.random.Generator
) -> Iterator[_Outcome]:
    for index, own in enumerate(positions()):
        assert own.law is not None
        drawn, q = own.record.draft_tokens[None], own.law.inclusion_probs()
        every = draft_mistakes(own.law, _draft_side(own))
        mistake = next((x for x in every if (x.kind, x.setting) == key), None)
        if mistake is None:
            continue
        tuples = np.concatenate([drawn, mistake.sample(rng, _DRAWS)])
        slot = tuples[:, index % drawn.size]
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
        impossible = bool(mistake.tuple_prob(drawn)[0] == 0)
        # An unbiased estimate of the total variation, from draws of the mistake.
        relative = own.law.tuple_prob(tuples[1:]) / mistake.tuple_prob(tuples[1:])
        bias = float(np.maximum(1.0 - relative, 0.0).mean())
        yield _Outcome(_groups(own), _ranks(np.array(statistics), rng), impossible, bias)


def _explain_output(positions: Positions) -> tuple[Explanation, Callable] | None:
    rule = _likeliest_rule(_NOTHING, "", positions)
    gains: dict[tuple[str, str], float] = defaultdict(float)
    for own in positions():
        declared = _log_likelihood(own, _lossless_law(rule, own, own.target))
        for mistake in OUTPUT_MISTAKES:
            variants = {x: law for x, law in mistake.variants(own).items() if law is not None}
            if not variants:
                continue
            laws = np.stack([*variants.values()])
            if mistake.of_target:
                laws = _lossless_law(rule, own, laws)
            more = _log_likelihood(own, laws) - declared
            for setting, gain in zip(variants, more.tolist(), strict=True):
                gains[mistake.sentence, setting] += gain
    best = _best(gains)
    if best is None:
        return None
    explanation, (sentence, setting) = best
    mistake = next(own for own in OUTPUT_MISTAKES if own.sentence == sentence)
    # Faults of the rule are those of recursive rejection.
    rule = _likeliest_rule(mistake, setting, positions) if mistake.of_target else "steps"
    return explanation, partial(_output_outcomes, mistake, setting, rule)


def _likeliest_rule(mistake: OutputMistake, setting: str, positions: Positions) -> Verifier | str:
    """The lossless rule that explains the output best, together with a mistake."""
    totals = np.zeros(len(_LOSSLESS))
    for own in positions():
        laws = [_law(mistake, setting, rule, own) for rule in _LOSSLESS]
        totals += [0.0 if law is None else float(_log_likelihood(own, law)) for law in laws]
    return _LOSSLESS[int(totals.argmax())]


def _output_outcomes(
    mistake: OutputMistake,
    setting: str,
    rule: Verifier | str,
    positions: Positions,
    rng: np.random.Generator,
) -> Iterator[_Outcome]:
    for own in positions():
        output = own.record.output_token
        law = _law(mistake, setting, rule, own)
        if law is None:
            continue
        tokens = np.append(output, draw_tokens(law, rng, _DRAWS))
        statistics = np.array([*_statistics(own, law, tokens)])
        bias = float(np.abs(law - _lossless_law(rule, own, own.target)).sum() / 2.0)
        yield _Outcome(_groups(own), _ranks(statistics, rng), bool(law[output] == 0), bias)


def _law(
    mistake: OutputMistake, setting: str, rule: Verifier | str, position: Position
) -> FloatArray | None:
    """The output law (V,) given the drafts under a mistake; None if it is unknown."""
    law = mistake.variants(position).get(setting, _SOUND)
    if law is _SOUND:
        return _lossless_law(rule, position, position.target)
    return _lossless_law(rule, position, law) if mistake.of_target and law is not None else law


def _statistics(position: Position, law: FloatArray, tokens: IntArray) -> Iterator[NDArray]:
    """Numbers (…) by which the output token and draws from its law, ``tokens`` (…), are ranked."""
    p, q = position.target, position.record.draft
    is_draft = (position.record.draft_tokens[:, None] == tokens).any(axis=0)
    residual = p[tokens] - q[tokens] if isinstance(q, np.ndarray) else p[tokens]
    yield is_draft
    yield np.where(is_draft, np.inf, residual)
    yield tokens
    yield tokens * _GOLDEN % 1.0
    yield law[tokens]
    yield p[tokens]
    yield counts.ratios(law[tokens], p[tokens])
    yield counts.ratios(p[tokens], q[tokens]) if isinstance(q, np.ndarray) else p[tokens]
    # Faults of an index: of the token, or of the row.
    yield p[tokens - 1]
    yield p[(tokens + 1) % p.size]
    before = position.neighbours["target"]["the row before"]
    yield (p if before is None else before)[tokens]


def _log_likelihood(position: Position, laws: FloatArray) -> FloatArray:
    """Log-probability (…) of the output token under laws (…, V), which a rare error replaces."""
    token, p = position.record.output_token, position.target
    # The error is a token of the target or any other.
    return np.log((1.0 - _ERRING) * laws[..., token] + _ERRING * (p[token] + 1.0 / p.size) / 2.0)


def _lossless_law(rule: Verifier | str, position: Position, targets: FloatArray) -> FloatArray:
    """The output law (…, V) of a lossless rule with these targets; the targets if it cannot be run."""
    law, tokens = position.law, position.record.draft_tokens
    if law is not None and rule == "steps":
        return RejectionSteps(targets, law)(tokens)
    if law is not None and isinstance(rule, Verifier) and rule.supports(law):
        every = targets.reshape(-1, targets.shape[-1])
        found = [rule.prepare_position(own, law).conditional_law(tokens) for own in every]
        return np.reshape(found, targets.shape)
    return targets


def _groups(position: Position) -> tuple[str, ...]:
    """The groups of rows that are tested by themselves."""
    row = position.record
    kind = "first" if row.depth == 0 else "later"
    # Workers and buffers often take turns.
    return (
        "all",
        kind if row.draft_tokens.size else "without drafts",
        "odd" if row.row % 2 else "even",
    )


def _ranks(statistics: FloatArray, rng: np.random.Generator) -> IntArray:
    """The rank of the first of 1 + 15 values (S, 16), uniform if they are exchangeable; ties at random."""
    first, drawn = statistics[:, :1], statistics[:, 1:]
    return (drawn < first).sum(axis=1) + rng.integers(0, (drawn == first).sum(axis=1) + 1)


def _fit(outcomes: list[_Outcome], rng: np.random.Generator) -> Fit:
    """Test that the ranks are uniform: of all rows and of each group, by each statistic."""
    ranks = defaultdict(list)
    for own in outcomes:
        for group in own.groups:
            ranks[group].append(own.ranks)
    columns = [column for own in ranks.values() for column in np.array(own).T]
    # One more test, of outcomes that the mistake excludes.
    num_tests = len(columns) + 1
    level = _FIT_LEVEL / num_tests
    number, impossible = len(outcomes), sum(own.impossible for own in outcomes)
    least = float(binom.sf(impossible - 1, number, _ERRING))
    for column in columns:
        cells = _num_cells(column.size)
        seen = np.bincount(column * cells // (_DRAWS + 1), minlength=cells)
        least = min(least, counts.exact_p_value(seen, np.full(cells, 1.0 / cells), level, rng=rng))
    finds = counts.detectable_total_variation(max(1, number), _num_cells(number), level)
    bias = sum(own.bias for own in outcomes) / max(1, number)
    return Fit(number, min(1.0, least * num_tests), _FIT_LEVEL, finds, bias)


def _num_cells(num_samples: int) -> int:
    """A power of two, so that the ranks fill the cells equally."""
    return 2 ** int(np.clip(np.log2(max(1, num_samples) / _SAMPLES_A_CELL), 1, 4))
