"""Checks that a verifier is lossless, and that its rates are those of its output."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.enumeration import EnumeratedAudit, enumerated
from otmd.audit.samples import losslessness
from otmd.laws import DraftLaw
from otmd.laws.base import validate_law, validate_target
from otmd.optimum import optimal_acceptance
from otmd.probabilities import FloatArray, wrong
from otmd.testing.comparisons import (
    FALSE_ALARM,
    NUM_SAMPLES,
    SAME,
    SAME_RATE,
    agree,
    follows,
    refuses,
    within,
)
from otmd.testing.laws import hostile_targets
from otmd.verifiers import PoissonCoupling, Verifier
from otmd.verifiers.base import IN_FLOAT32, as_verifier

# The bounds of a rate must hold whatever they are asked to be apart at most.
_TOLERANCES = (0.3, 1e-3, 1e-8)
_MOST_TUPLES = 5_000


def check_verifier(
    verifier: Verifier | type[Verifier] | str,
    law: DraftLaw,
    *,
    target_probs: ArrayLike | None = None,
    rng: int | np.random.Generator = 0,
) -> None:
    """Fail unless a verifier is lossless for a law of drafts, and its rates are those of its decisions.

    Samples are compared with probabilities by an exact G-test at a false-alarm rate of 1e-5. A law that the
    verifier does not support must be an UnsupportedLaw error from every method.

    Parameters
    ----------
    verifier : Verifier or str
        A verifier, or the name of one. :class:`~otmd.PoissonCoupling` is sampled, any other verifier is
        enumerated.
    law : DraftLaw
        A law that can be enumerated, with a small vocabulary. With leading axes, each of its positions is
        checked, and all together are compared with them.
    target_probs : array_like, shape (V,), optional
        The target. By default targets are made for the law: random, with zeros and ties, one-hot, the
        inclusion probabilities, disjoint from the drafts, and with masses of 1e-300.
    rng : int or numpy.random.Generator
        Makes the targets and draws the samples.

    Raises
    ------
    AssertionError
        Names the method, its input, and what was given and expected.
    ValueError, TypeError
        For an invalid target or a law that is too large to enumerate; for what is no verifier or law.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.3, 0.2], num_drafts=2)
    >>> otmd.testing.check_verifier(otmd.RecursiveRejection(), law)
    """
    verifier = as_verifier(verifier)
    validate_law(law)
    rng = np.random.default_rng(rng)
    if not verifier.supports(law):
        target = np.full(law.vocab_size, 1.0 / law.vocab_size)
        for name in (
            "acceptance_rate", "acceptance_bounds", "certificate", "output_distribution", "prepare"
        ):  # fmt: skip
            refuses(f"{name} of {verifier!r} for {law!r}", getattr(verifier, name), target, law)
        verify = partial(verifier.verify, rng=rng)
        refuses(f"verify of {verifier!r} for {law!r}", verify, target, law, law.sample(rng=rng))
        return
    for index in np.ndindex(law.batch_shape):
        position = law[index]
        targets = hostile_targets(position, rng)
        if target_probs is not None:
            targets = {"given": validate_target(target_probs, position)}
        for name, target in targets.items():
            where = f"{verifier!r} for {position!r} and the target {target.tolist()} ({name})"
            _check_position(verifier, position, target, where)
        sampled = next(name for name in ("given", "zeros", "random") if name in targets)
        _check_decisions(verifier, position, targets[sampled], rng)
        _check_axes(verifier, position, np.stack([*targets.values()]))
    if law.batch_shape:
        axes = (2, *(1 for _ in law.batch_shape))
        _check_axes(verifier, law, rng.dirichlet(np.ones(law.vocab_size), axes))


def require_lossless(
    verifier: Verifier, law: Callable[[FloatArray, int], DraftLaw], num_drafts: int, name: str
) -> None:
    """Raise ValueError unless a verifier is lossless, and its bounds hold its rate, at small positions.

    Tuples are enumerated, at a vocabulary of n + 1 tokens or fewer. Where there are too many, 2,000 outputs
    are sampled at one position, and a lossless verifier is refused with probability at most 1e-4.
    """
    for kind, target, drafts in _small_positions(verifier, law, num_drafts):
        is_small = drafts.position_structure.num_tuples <= _MOST_TUPLES
        if is_small and not isinstance(verifier, PoissonCoupling):
            audit = enumerated(verifier, target, drafts, IN_FLOAT32)
        else:
            audit = losslessness(verifier, target, drafts, NUM_SAMPLES, false_alarm=1e-4)
        where = f"verifiers: {name}, n = {num_drafts}, V = {target.size}, {kind}"
        if audit.faulty:
            advice = "otmd.testing.check_verifier shows more"
            raise ValueError(f"{where}: {audit.verdict}; {advice}")
        if isinstance(audit, EnumeratedAudit):
            low, high = verifier.acceptance_bounds(target, drafts)
            if not low - IN_FLOAT32 <= audit.acceptance <= high + IN_FLOAT32:
                bounds = f"the bounds {low:.4f} and {high:.4f} of the rate"
                raise wrong(where, bounds, f"{audit.acceptance:.4f} between them")


def _small_positions(
    verifier: Verifier, law: Callable[[FloatArray, int], DraftLaw], num_drafts: int
) -> list[tuple[str, FloatArray, DraftLaw]]:
    """Targets and laws with few tuples, if the law exists and is served there; else a larger pair."""
    rng = np.random.default_rng(0)
    for vocab_size in (max(num_drafts + 1, 4), 3, 2):
        p, q = rng.dirichlet(np.ones(vocab_size), 2)
        pairs = {
            "random p and q": (p, q),
            "a zero in p": (_without(p, q.argmax()), q),
            "a zero in q": (p, _without(q, p.argmax())),
            "p = q": (q, q),
        }
        served = []
        for kind, (target, draft) in pairs.items():
            with suppress(ValueError):
                drafts = law(draft, num_drafts)
                is_small = drafts.position_structure.num_tuples <= _MOST_TUPLES
                if is_small and verifier.supports(drafts):
                    served.append((kind, target, drafts))
        if served and served[0][0] == "random p and q":
            return served
    p, q = rng.dirichlet(np.ones(num_drafts + 62), 2)
    return [("random p and q", p, law(q, num_drafts))]


def _without(probs: FloatArray, token: np.intp) -> FloatArray:
    left = np.where(np.arange(probs.size) == token, 0.0, probs)
    return left / left.sum()


def _check_position(verifier: Verifier, law: DraftLaw, target: FloatArray, where: str) -> None:
    """The output is the target, and the bounds hold the rate; neither is above the optimum."""
    before = target.copy()
    best = float(optimal_acceptance(target, law).rate)
    is_enumerated = not isinstance(verifier, PoissonCoupling)
    rate = _enumerated_rate(verifier, law, target, where) if is_enumerated else best
    within(f"rate of {where}", rate, 0.0, best, SAME_RATE)
    for tol in _TOLERANCES:
        low, high = map(float, verifier.acceptance_bounds(target, law, tol))
        what = f"acceptance_bounds(tol={tol:g}) of {where}"
        within(f"the lower end of {what}", low, 0.0, min(high, best), SAME_RATE)
        within(f"the upper end of {what}", high, low, 1.0, SAME_RATE)
        if is_enumerated:
            within(f"the enumerated rate in {what}", rate, low, high, SAME_RATE)
    agree(f"the target after the calls of {where}", target, before, 0)


def _enumerated_rate(verifier: Verifier, law: DraftLaw, target: FloatArray, where: str) -> float:
    """The acceptance rate by enumeration, once the output has been compared with the target."""
    prepared = verifier.prepare(target, law)
    unpickled = pickle.loads(pickle.dumps(prepared))
    output, rate = np.zeros(target.size), 0.0
    for i, (tokens, prob) in enumerate(zip(*law.enumerate(), strict=True)):
        given = prepared.conditional_law(tokens)
        what = f"conditional_law({tokens.tolist()}) of {where}"
        within(f"the least of {what}", float(given.min()), 0.0, 1.0, SAME)
        agree(f"the sum of {what}", given.sum(), 1.0, SAME)
        agree(f"{what} where p = 0", given[target == 0], np.zeros((target == 0).sum()), 0)
        if i < 5:
            agree(f"{what} after a pickle", unpickled.conditional_law(tokens), given, 0)
        output += prob * given
        rate += prob * float(given[np.unique(tokens)].sum())
    agree(f"the distribution of the output of {where}", output, target, SAME)
    return rate


def _check_decisions(verifier: Verifier, law: DraftLaw, target: FloatArray, rng: np.random.Generator) -> None:
    """Samples of verify follow the target, are accepted as often as the bounds say, and name their draft."""
    where = f"verify of {verifier!r} for {law!r} and the target {target.tolist()}"
    audit = losslessness(verifier, target, law, NUM_SAMPLES, FALSE_ALARM * 3, rng=rng)
    if audit.faulty:
        raise AssertionError(f"{where}: {audit}")
    low, high = map(float, verifier.acceptance_bounds(target, law))
    accepted = audit.acceptance
    if accepted.low > high + SAME_RATE or accepted.high < low - SAME_RATE:
        given = f"an acceptance rate between {accepted.low:.6f} and {accepted.high:.6f}"
        raise AssertionError(f"{where}: got {given}, expected one in [{low:.6f}, {high:.6f}]")
    tokens = law.sample((2, 10), rng=rng)
    verdict = verifier.verify(target, law, tokens, rng=rng)
    agree(f"shape of the tokens of {where}", np.shape(verdict.token), (2, 10), 0)
    decisions = np.stack([verdict.token, verdict.draft_index], axis=-1).reshape(-1, 2).tolist()
    drawn = tokens.reshape(-1, law.num_drafts).tolist()
    for drafts, (token, draft) in zip(drawn, decisions, strict=True):
        named = drafts[draft] if draft >= 0 else token
        if named != token or (draft < 0 and token in drafts):
            got = f"the token {token} as draft {draft} of {drafts}"
            raise AssertionError(f"{where}: got {got}, expected the index of the token, or -1")
    if not isinstance(verifier, PoissonCoupling):
        # Given the most likely drafts, samples follow the conditional distribution.
        tuples, probs = law.enumerate()
        most_likely = tuples[probs.argmax()]
        expected = verifier.prepare(target, law).conditional_law(most_likely)
        repeated = np.tile(most_likely, (NUM_SAMPLES, 1))
        output_tokens = verifier.verify(target, law, repeated, rng=rng).token
        seen = np.bincount(output_tokens, minlength=target.size)
        follows(f"{where}, given {most_likely}", seen, expected, rng)


def _check_axes(verifier: Verifier, law: DraftLaw, targets: FloatArray) -> None:
    """Targets along leading axes give what each of them gives."""
    axes = np.broadcast_shapes(targets.shape[:-1], law.batch_shape)
    where = f"{verifier!r} for {law!r} with leading axes {axes}"
    bounds = np.stack(verifier.acceptance_bounds(targets, law))
    if not isinstance(verifier, PoissonCoupling):
        output = verifier.output_distribution(targets, law)
        expected = np.broadcast_to(targets, output.shape)
        agree(f"output_distribution of {where}", output, expected, SAME)
    for index in np.ndindex(axes):
        position = law[index[len(index) - len(law.batch_shape) :]]
        target = np.broadcast_to(targets, (*axes, law.vocab_size))[index]
        what = f"{where} at {index}, target {target.tolist()}"
        alone = np.stack(verifier.acceptance_bounds(target, position))
        agree(f"acceptance_bounds of {what}", bounds[:, *index], alone, SAME)
