"""The audit of a recorded run, in one pass: a claim becomes numbers that are uniform if it holds."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from otmd.audit import claims, counts, evidence, run_report, samples
from otmd.audit.causes import most_likely_cause
from otmd.audit.mistakes import Explanation
from otmd.audit.records import NOT_DECIDED, Record, Source, as_kept, mass_of_choice, read_records
from otmd.drafts import DraftLaw
from otmd.probabilities import FloatArray, IntArray, Processing, wrong

_ROWS_SHOWN = 5
_CLASSES = {
    claims.OUTPUT: evidence.BY_RATIO,
    claims.OUTPUT_BY_MASS: evidence.BY_MASS,
    claims.OUTPUT_BY_OCCURRENCE: evidence.BY_OCCURRENCE,
}
# The bounds of these classes; where q = 0 the ratio is infinite.
_RATIOS = (0.5, 1.0, 2.0, 4.0, np.inf)
_MASSES = (1e-9, 1e-6, 0.001, 0.01, 0.1)
# Rows with a smaller tail mass are remembered; the threshold for an alarm is smaller still.
_SMALL_TAIL = 0.01
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_PARTS = 4
_SHOWN_SLOTS = 8
# Equal drafts have close numbers: this moves a difference of 0 to the middle of the first of 16 cells.
_SHIFT = 1 / 32
SMALLEST_FALSE_ALARM = 4e-5
# Batches are powers of 2, as a rule, so slots of a batch recur in groups of every eighth row.
_EVERY = 8
# The kinds of rows with improbable tokens, and a claim that has a number for each of these tokens.
_IMPROBABLE = {"output_improbable": claims.OUTPUT, "draft_improbable": claims.DRAFTS}


def recorded_run(
    source: Source,
    law: str | samples.LawMaker = "with-replacement",
    false_alarm: float = 1e-3,
    *,
    bias: float = 0.1,
    target_processing: Processing | None = None,
    draft_processing: Processing | None = None,
    rng: np.random.Generator,
) -> run_report.RecordedRunAudit:
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
        Probability, at most, that a sound engine's run is called faulty.
    bias : float
        A run passes only if a total variation of this size would have been found with probability 0.9.
    target_processing, draft_processing : Processing, optional
        How recorded logits become the probabilities that the engine used, for all rows.
    rng : numpy.random.Generator
        Equal seeds give equal audits; the engine may use an equal seed.

    Raises
    ------
    ValueError
        For invalid arguments, and for a malformed file, row or field, which it names.

    Notes
    -----
    One pass keeps a few numbers of each row. If a claim is refuted, the first rows are read again to find
    the mistake that explains them. The recorded p is taken to be the p that was meant.
    """
    make = samples.law_maker(law)
    if samples.validate_level(false_alarm) < SMALLEST_FALSE_ALARM:
        raise wrong("false_alarm", repr(false_alarm), f"at least {SMALLEST_FALSE_ALARM:.0e}")
    samples.validate_fraction("bias", bias)
    rng = samples.derived_rng(rng, "recorded_run")
    defaults = {"target": target_processing, "draft": draft_processing}
    tally, read = Tally(make, rng), partial(read_records, source, defaults)
    for record in read():
        tally.add(record)
    if not tally.positions:
        raise wrong("source", f"no rows in {source!s:.200}", "at least one")
    level = false_alarm / claims.NUM_STATEMENTS
    tally.count_improbable(level)
    # Without drafts, the orders by q are those of token ids.
    left_out = () if tally.has_drafts else claims.ORDERS_BY_DRAFT
    recorded = (
        (name, own) for name, own in tally.evidence.items() if own.numbers and name not in left_out
    )
    judged = tuple(evidence.judge_claim(name, own, level, rng=rng) for name, own in recorded)
    refuted = {own.name for own in judged if own.refuted}
    kinds = [own for own, rows in tally.cases.items() if rows]
    return run_report.RecordedRunAudit(
        num_rows=len(tally.positions),
        law=samples.law_name(law),
        false_alarm=false_alarm,
        bias=float(bias),
        cases=tuple(run_report.BoundaryCase(own, *_counted(tally.cases[own])) for own in kinds),
        vocabularies={size: _counted(rows) for size, rows in tally.vocabularies.items()},
        claims=judged,
        acceptance=tally.acceptance(level),
        bands=tuple(evidence.bands_of(own, tally.evidence[name]) for name, own in _CLASSES.items()),
        explanations=_explanations(refuted, {*kinds}, read, make, rng),
        most_repeated=tally.dependence.most_repeated() if claims.SLOTS in refuted else "",
        metrics=run_report.metrics_of(tally.positions, tally.ceilings),
    )


def _counted(rows: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    return len(rows), tuple(rows[:_ROWS_SHOWN])


def _explanations(
    refuted: set[str],
    kinds: set[str],
    read: Callable[[], Iterator[Record]],
    make: samples.LawMaker | None,
    rng: np.random.Generator,
) -> dict[str, Explanation]:
    """The most likely mistake behind the first refuted claim: claims about drafts come before the output.

    A token that cannot come out has a usual cause, given its kind: a refuted one does not replace it.
    """
    of_drafts = [
        claim.name for claim in claims.CLAIMS.values() if claim.side == claims.DRAFT_TOKENS
    ]
    impossible = not run_report.OUTCOMES.isdisjoint(kinds)
    if not kinds.isdisjoint({"draft_impossible", "draft_never"}) or not (refuted or impossible):
        return {}
    order = (*of_drafts, claims.OUTPUT_BY_MASS, *claims.claims_in_order(claims.OUTPUTS))
    name = next((name for name in order if name in refuted), claims.OUTPUT)
    cause = most_likely_cause("drafts" if name in of_drafts else "output", read, make, rng)
    if cause is None or (impossible and (cause.fit is None or cause.fit.refuted)):
        return {}
    return {name: cause}


class Tally:
    """What is kept of the rows: evidence, boundary cases, metrics. ``make`` is None for fixed drafts."""

    def __init__(self, make: samples.LawMaker | None, rng: np.random.Generator) -> None:
        self._make, self._rng = make, rng
        self._last: dict[str, tuple[int | None, int, bool]] = {}
        # Of each row: depth, number of drafts, whether it was reached, whether a draft was accepted.
        self.positions: list[tuple[int, int, bool, bool]] = []
        # The rows of each kind of boundary case, and of each size of a vocabulary.
        self.cases: dict[str, list[int]] = {kind: [] for kind in run_report.KINDS}
        self.vocabularies: dict[int, array[int]] = defaultdict(lambda: array("q"))
        self.dependence = Dependence(rng)
        self._groupings = {side: _groupings() for side in (claims.OUTPUTS, claims.DRAFT_TOKENS)}
        self.evidence = {
            name: evidence.Evidence.empty(name in _CLASSES, self._groupings[side])
            for side in self._groupings
            for name in claims.claims_in_order(side)
        } | {claims.SLOTS: self.dependence.slots, claims.ROWS: self.dependence.rows}
        # Of each request: its number, and how often each token came out so far.
        self._requests: dict[str, tuple[int, Counter[int]]] = {}
        # Of rows with a small one: the probability of tokens not likelier than the one that came out.
        self._tails: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.ceilings: list[float] = []
        self._accepted: list[bool] = []
        # Whether a draft distribution was known where a token came out.
        self.has_drafts = False

    def add(self, record: Record) -> None:
        """Look at one row."""
        output, tokens = record.output_token, record.draft_tokens
        decided = output != NOT_DECIDED
        accepted = decided and bool((tokens == output).any())
        self.positions.append((record.depth, tokens.size, decided, accepted))
        if record.is_full:
            self.vocabularies[record.vocab_size].append(record.row)
        misplaced, beyond = self._misplaced(record, accepted), []
        if ((tokens < 0) | (tokens >= record.vocab_size)).any():
            beyond.append("draft_out_of_range")
        if not NOT_DECIDED <= output < record.vocab_size:
            beyond.append("output_out_of_range")
        sides = (("target", record.target), ("draft", record.draft))
        unsound = [f"{side}_{own}" for side, own in sides if isinstance(own, str)]
        for kind in filter(None, [misplaced, *unsound, *beyond]):
            self.cases[kind].append(record.row)
        if beyond:
            return
        law = self._look_at_drafts(record) if tokens.size and self._make else None
        if decided and not isinstance(record.target, str) and misplaced != "after_rejection":
            self._look_at_output(record, record.target, law)
        if decided:
            self._request(record)[1][output] += 1

    def acceptance(self, level: float) -> run_report.PooledAcceptance | None:
        """Acceptance over all positions with sound drafts; None if there are none."""
        accepted, ceilings = np.array(self._accepted, bool), np.array(self.ceilings)
        if not accepted.size:
            return None
        rate, highest = float(accepted.mean()), float(ceilings.mean())
        # With a stake of s·a the factor is 1 + s(X − a) ≤ exp(s(X − a)). So the last wealth is above 1 only
        # if the rate is above the mean ceiling.
        stakes = [evidence.ChanceBets(own * ceilings) for own in evidence.STAKES]
        wealth = evidence.mean_wealth([bet.update(accepted, ceilings) for bet in stakes])
        p_value = evidence.anytime_p_value(wealth[-1:])
        return run_report.PooledAcceptance(accepted.size, rate, highest, p_value, level)

    def _misplaced(self, record: Record, accepted: bool) -> str | None:
        """What is wrong with the place of a row in its step: a kind of boundary case, or None."""
        step, depth, was_accepted = self._last.get(record.request, (None, -1, True))
        self._last[record.request] = (record.step, record.depth, accepted)
        begins = record.step != step or (record.step is None and record.depth == 0)
        if record.depth != (0 if begins else depth + 1):
            return "depth_gap"
        decided, reached = record.output_token != NOT_DECIDED, begins or was_accepted
        if decided == reached:
            return None
        return "after_rejection" if decided else "output_missing"

    def _request(self, record: Record) -> tuple[int, Counter[int]]:
        return self._requests.setdefault(record.request, (len(self._requests), Counter()))

    def _occurrences(self, record: Record, size: int) -> FloatArray:
        """How often each token (V,) came out earlier in the request."""
        _, counter = self._request(record)
        tokens, found = np.fromiter(counter.keys(), int), np.fromiter(counter.values(), float)
        occurrences, within = np.zeros(size), tokens < size
        occurrences[tokens[within]] = found[within]
        return occurrences

    def _add_to_groups(self, record: Record, side: str) -> None:
        by_depth, by_request, by_row = self._groupings[side]
        if side == claims.OUTPUTS and not record.draft_tokens.size:
            by_depth.add(0, "extra tokens (no drafts)")
        else:
            deepest = evidence.MOST_GROUPS - 2
            depth = min(record.depth, deepest)
            by_depth.add(1 + depth, f"depth {depth}{' or more' if depth == deepest else ''}")
        by_request.add(self._request(record)[0], f"request {record.request}")
        row = len(self.positions) % _EVERY
        by_row.add(row, f"every {_EVERY}th row from row {record.row}")

    def _keep_tail(self, kind: str, record: Record, probs: FloatArray, token: int) -> None:
        tail = float(probs[probs <= probs[token]].sum())
        if tail <= _SMALL_TAIL:
            self._tails[kind].append((tail, record.row))

    def count_improbable(self, level: float) -> None:
        """Count the rows with tokens so improbable that a sound run has any with probability ``level``."""
        # A tail mass is at most x with probability x at most; there is one for each number of the claim.
        for kind, claim in _IMPROBABLE.items():
            number = len(self.evidence[claim].numbers)
            rows = [row for tail, row in self._tails[kind] if tail * number <= level]
            self.cases[kind].extend(dict.fromkeys(rows))

    def _point(self, place: float, mass: float) -> float:
        """Draw a uniform point of [place, place + mass): the randomised probability integral transform."""
        return min(place + mass * self._rng.random(), _BELOW_ONE)

    def _look_at_drafts(self, record: Record) -> DraftLaw | None:
        """Record evidence of the drafts and return their law; None if it is unknown or did not draw them."""
        if record.draft is None:
            self.cases["draft_missing"].append(record.row)
        if not isinstance(record.draft, np.ndarray) or self._make is None:
            return None
        tokens = record.draft_tokens
        # A law may depend on how ties are broken, so drafts with mass remain.
        if (record.draft[tokens] == 0).any():
            tokens = as_kept(tokens, record.draft, record.draft_ties, self._rng)
        declared = samples.declared_law(self._make, record.draft, tokens)
        if isinstance(declared, str):
            self.cases[declared].append(record.row)
            self._add_to_groups(record, claims.DRAFT_TOKENS)
            for claim in claims.claims_in_order(claims.DRAFT_TOKENS):
                self.evidence[claim].add(self._point(0.0, 0.0), True)
            return None
        law, laws = declared
        # Deterministic drafts have nothing to test.
        pairs = zip(laws, tokens.tolist(), strict=True)
        drawn = [(probs, token) for probs, token in pairs if probs[token] < 1.0]
        for probs, token in drawn:
            self._add_to_groups(record, claims.DRAFT_TOKENS)
            self._keep_tail("draft_improbable", record, probs, token)
            before, mass = claims.Before(probs, probs, np.zeros(0)), float(probs[token])
            for claim, key in claims.claims_in_order(claims.DRAFT_TOKENS).items():
                point = self._point(counts.mass_before(probs, key(before), token), mass)
                self.evidence[claim].add(point, False)
        self.dependence.add(drawn)
        return law

    def _look_at_output(self, record: Record, target: FloatArray, law: DraftLaw | None) -> None:
        output, tokens = record.output_token, record.draft_tokens
        accepted = bool((tokens == output).any())
        output = int(as_kept(np.array([output]), target, record.target_ties, self._rng)[0])
        mass = float(target[output])
        draft = self._draft_probs(record, target.size)
        drafted = np.zeros(target.size) if draft is None else draft
        self.has_drafts |= draft is not None
        before = claims.Before(target, drafted, self._occurrences(record, target.size))
        classes = self._classes(before, draft is not None)
        self._add_to_groups(record, claims.OUTPUTS)
        for claim, key in claims.claims_in_order(claims.OUTPUTS).items():
            point = self._point(counts.mass_before(target, key(before), output), mass)
            of_class = []
            if claim in classes:
                masses = np.bincount(classes[claim], target, minlength=len(_CLASSES[claim]))
                of_class = [(int(classes[claim][output]), masses / masses.sum())]
            self.evidence[claim].add(point, mass == 0, *of_class)
        if mass == 0:
            kind = "impossible_accepted" if accepted else "output_impossible"
            self.cases[kind].append(record.row)
            return
        self._keep_tail("output_improbable", record, target, output)
        highest = None if law is None else samples.acceptance_ceiling(target, law)
        if self._make is None and draft is not None:
            highest = min(1.0, float(target @ draft) + samples.SLACK)
        if highest is not None:
            chosen = mass_of_choice(target, record.target_ties)
            if law is not None and draft is not None:
                chosen += tokens.size * mass_of_choice(draft, record.draft_ties)
            self._accepted.append(accepted)
            self.ceilings.append(min(1.0, highest + chosen))

    def _draft_probs(self, record: Record, size: int) -> FloatArray | None:
        """The draft distribution of a row with drafts, indicators if they are fixed; None if it has none."""
        if self._make is None and record.draft_tokens.size:
            draft = np.zeros(size)
            draft[record.draft_tokens] = 1.0
            return draft
        return record.draft if isinstance(record.draft, np.ndarray) else None

    def _classes(self, before: claims.Before, is_drafted: bool) -> dict[str, IntArray]:
        """The class of each token (V,), for the claims that have classes."""
        by_mass = np.digitize(before.probs, _MASSES)
        # The likeliest token is a class of its own.
        by_mass[before.probs.argmax()] = len(_MASSES) + 1
        by_ratio = np.full(before.probs.size, len(_RATIOS) + 1)
        if is_drafted:
            by_ratio = np.digitize(counts.ratios(before.probs, before.draft_probs), _RATIOS)
        by_occurrence = (before.occurrences > 0).astype(np.int64)
        return dict(zip(_CLASSES, (by_ratio, by_mass, by_occurrence), strict=True))


def _groupings() -> list[evidence.Grouping]:
    return [
        evidence.Grouping("depth", listed=True),
        evidence.Grouping("request"),
        evidence.Grouping("position in the batch"),
    ]


class Dependence:
    """Evidence of whether drafts depend on one another.

    ``slots`` compares each draft with the earlier drafts of its position, ``rows`` with the same slot at the
    position before. ``pairs`` has, for two slots, the number of equal drafts and its expectation.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._last: list[tuple[int, float]] = []
        self.slots, self.rows = evidence.Evidence.empty(2), evidence.Evidence.empty(2)
        self.pairs: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, drawn: list[tuple[FloatArray, int]]) -> None:
        """Look at a position's drafts, each with its law (V,) given those before it."""
        own: list[tuple[int, float]] = []
        for slot, (probs, token) in enumerate(drawn):
            # Uniform given the past: the mass of smaller ids, and a random part of the token's own mass.
            number = float(probs[:token].sum() + probs[token] * self._rng.random())
            if own:
                earlier = np.unique([before for before, _ in own])
                _link(self.slots, number, own[-1][1], token in earlier, probs[earlier].sum())
                for i, (before, _) in enumerate(own[:_SHOWN_SLOTS]):
                    seen = self.pairs[i + 1, slot + 1]
                    seen[0] += before == token
                    seen[1] += float(probs[before])
            if slot < len(self._last) and self._last[slot][0] < probs.size:
                before, its_number = self._last[slot]
                _link(self.rows, number, its_number, token == before, probs[before])
            own.append((token, number))
        self._last = own

    def most_repeated(self) -> str:
        """The two slots whose drafts are equal too often, in words; empty if none are."""
        slots, (seen, wanted) = max(self.pairs.items(), key=lambda own: own[1][0] - own[1][1])
        told = "drafts {} and {} are equal {:,.0f} times, expected {:,.1f}"
        return told.format(*slots, seen, wanted) if seen > wanted else ""


def _link(links: evidence.Evidence, number: float, last: float, again: bool, chance: float) -> None:
    """Add a draft by its number, an earlier draft's, and whether it repeats one, which has this ``chance``.

    Of independent drafts, the difference of numbers modulo 1 is uniform, and so is that of their quarters.
    """
    chance = min(1.0, float(chance))
    quarter = (int(_PARTS * number) - int(_PARTS * last)) % _PARTS
    repeats, quarters = (int(again), (1.0 - chance, chance)), (quarter, (1 / _PARTS,) * _PARTS)
    links.add((number - last + _SHIFT) % 1.0, False, repeats, quarters)
