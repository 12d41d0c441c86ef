"""The audit of a recorded run, in one pass: a claim becomes numbers that are uniform if it holds."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from otmd.audit import counts, evidence, run_report, samples
from otmd.audit.causes import most_likely_cause
from otmd.audit.mistakes import Explanation
from otmd.audit.records import NOT_DECIDED, Record, Source, read_records
from otmd.drafts import DraftLaw
from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray, IntArray, Processing, wrong

_ROWS_SHOWN = 5
_CLASSES = {run_report.OUTPUT: evidence.BY_RATIO, run_report.OUTPUT_BY_MASS: evidence.BY_MASS}
# The bounds of these classes; where q = 0 the ratio is infinite.
_RATIOS = (0.5, 1.0, 2.0, 4.0, np.inf)
_MASSES = (0.001, 0.01, 0.1)
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
_PARTS = 4
_SHOWN_SLOTS = 8
# Equal drafts have close numbers: this moves a difference of 0 to the middle of the first of 16 cells.
_SHIFT = 1 / 32
_SMALLEST_FALSE_ALARM = 2e-5


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
        Equal seeds give equal audits.

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
    if samples.validate_level(false_alarm) < _SMALLEST_FALSE_ALARM:
        raise wrong("false_alarm", repr(false_alarm), f"at least {_SMALLEST_FALSE_ALARM:.0e}")
    samples.validate_fraction("bias", bias)
    validate_rng(rng)
    defaults = {"target": target_processing, "draft": draft_processing}
    tally, read = Tally(make, rng), partial(read_records, source, defaults)
    for record in read():
        tally.add(record)
    if not tally.positions:
        raise wrong("source", f"no rows in {source!s:.200}", "at least one")
    level = false_alarm / run_report.NUM_STATEMENTS
    recorded = ((name, own) for name, own in tally.evidence.items() if own.numbers)
    claims = tuple(evidence.judge_claim(name, own, level, rng=rng) for name, own in recorded)
    refuted = {own.name for own in claims if own.refuted}
    kinds = [own for own, rows in tally.cases.items() if rows]
    return run_report.RecordedRunAudit(
        num_rows=len(tally.positions),
        law=samples.law_name(law),
        false_alarm=false_alarm,
        bias=float(bias),
        cases=tuple(run_report.BoundaryCase(own, *_counted(tally.cases[own])) for own in kinds),
        vocabularies={size: _counted(rows) for size, rows in tally.vocabularies.items()},
        claims=claims,
        acceptance=tally.acceptance(level),
        bands=tuple(evidence.bands_of(own, tally.evidence[name]) for name, own in _CLASSES.items()),
        explanations=_explanations(refuted, {*kinds}, read, make, rng),
        most_repeated=tally.dependence.most_repeated() if run_report.SLOTS in refuted else "",
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
    of_drafts = (run_report.DRAFTS, run_report.SLOTS, run_report.ROWS)
    impossible = not run_report.OUTCOMES.isdisjoint(kinds)
    if not kinds.isdisjoint({"draft_impossible", "draft_never"}):
        return {}
    order = (*of_drafts, run_report.OUTPUT_BY_MASS, run_report.OUTPUT)
    name = next((name for name in order if name in refuted), run_report.OUTPUT)
    if not refuted and not impossible:
        return {}
    found = most_likely_cause("drafts" if name in of_drafts else "output", read, make, rng)
    return (
        {}
        if found is None or (impossible and (found.fit is None or found.fit.refuted))
        else {name: found}
    )


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
        self.evidence = {claim: evidence.Evidence.empty(1) for claim in _CLASSES} | {
            run_report.DRAFTS: evidence.Evidence.empty(0),
            run_report.SLOTS: self.dependence.slots,
            run_report.ROWS: self.dependence.rows,
        }
        self.ceilings: list[float] = []
        self._accepted: list[bool] = []

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

    def acceptance(self, level: float) -> run_report.PooledAcceptance | None:
        """Acceptance over all positions with sound drafts; None if there are none."""
        accepted, ceilings = np.array(self._accepted, bool), np.array(self.ceilings)
        if not accepted.size:
            return None
        rate, highest = float(accepted.mean()), float(ceilings.mean())
        stakes = map(evidence.ChanceBets, evidence.STAKES)
        wealth = evidence.mean_wealth([bet.update(accepted, ceilings) for bet in stakes])
        p_value = evidence.anytime_p_value(wealth)
        return run_report.PooledAcceptance(accepted.size, rate, highest, p_value, level)

    def _misplaced(self, record: Record, accepted: bool) -> str | None:
        """What is wrong with the place of a row in its step: a kind of boundary case, or None."""
        step, depth, was_accepted = self._last.get(record.request, (None, -1, True))
        self._last[record.request] = (record.step, record.depth, accepted)
        begins = record.step != step or (record.step is None and record.depth == 0)
        if record.depth != (0 if begins else depth + 1):
            return "depth_gap"
        decided = record.output_token != NOT_DECIDED
        return "after_rejection" if decided and not (begins or was_accepted) else None

    def _point(self, place: float, mass: float) -> float:
        """Draw a uniform point of [place, place + mass): the randomised probability integral transform."""
        return min(place + mass * self._rng.random(), _BELOW_ONE)

    def _look_at_drafts(self, record: Record) -> DraftLaw | None:
        """Record evidence of the drafts and return their law; None if it is unknown or did not draw them."""
        if record.draft is None:
            self.cases["draft_missing"].append(record.row)
        if not isinstance(record.draft, np.ndarray) or self._make is None:
            return None
        declared = samples.declared_law(self._make, record.draft, record.draft_tokens)
        if isinstance(declared, str):
            self.cases[declared].append(record.row)
            self.evidence[run_report.DRAFTS].add(self._point(0.0, 0.0), True)
            return None
        law, laws = declared
        drawn = [*zip(laws, record.draft_tokens.tolist(), strict=True)][samples.num_forced(law) :]
        for own, token in drawn:
            point = self._point(counts.mass_before(own, -own, token), float(own[token]))
            self.evidence[run_report.DRAFTS].add(point, False)
        self.dependence.add(drawn)
        return law

    def _look_at_output(self, record: Record, target: FloatArray, law: DraftLaw | None) -> None:
        output, tokens = record.output_token, record.draft_tokens
        accepted, mass = bool((tokens == output).any()), float(target[output])
        if mass == 0:
            kind = "impossible_accepted" if accepted else "output_impossible"
            self.cases[kind].append(record.row)

        def add(claim: str, key: FloatArray, bands: IntArray) -> None:
            point = self._point(counts.mass_before(target, key, output), mass)
            masses = np.bincount(bands, target, minlength=len(_CLASSES[claim]))
            own = int(bands[output]), masses / masses.sum()
            self.evidence[claim].add(point, mass == 0, own)

        by_mass = np.digitize(target, _MASSES)
        # The likeliest token is a class of its own.
        by_mass[target.argmax()] = len(_MASSES) + 1
        add(run_report.OUTPUT_BY_MASS, -target, by_mass)
        if not tokens.size:
            return
        draft = record.draft
        highest = None if law is None else samples.acceptance_ceiling(target, law)
        if self._make is None:
            draft = np.zeros(target.size)
            draft[tokens] = 1.0
            highest = min(1.0, float(target @ draft) + samples.SLACK)
        if isinstance(draft, np.ndarray):
            ratio = counts.ratios(target, draft)
            add(run_report.OUTPUT, ratio, np.digitize(ratio, _RATIOS))
        if highest is not None:
            self._accepted.append(accepted)
            self.ceilings.append(highest)


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
