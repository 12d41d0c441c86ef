"""Checks that a law of drafts keeps what its interface promises."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress

import numpy as np

from otmd.audit.drafts import counts_of_tuples
from otmd.laws import DraftLaw
from otmd.laws.base import validate_law
from otmd.optimum import optimal_acceptance
from otmd.optimum.bounds import draft_probability_bound
from otmd.probabilities import BoolArray, FloatArray, IntArray
from otmd.testing.comparisons import NUM_SAMPLES, SAME, SAME_RATE, agree, follows, within

# How many tuples are tried, and up to which vocabulary all subsets.
_MOST_TRIED, _MOST_SUBSETS = 100, 10


def check_law(law: DraftLaw, *, rng: int | np.random.Generator = 0) -> None:
    """Fail unless all methods of a law of drafts agree with each other, and its samples with them.

    Samples are compared with probabilities by an exact G-test at a false-alarm rate of 1e-5.

    Parameters
    ----------
    law : DraftLaw
        A law that can be enumerated, with a small vocabulary. With leading axes, each of its positions is
        checked, and all together are compared with them.
    rng : int or numpy.random.Generator
        Draws the samples, and the subsets and tuples where there are too many to try all.

    Raises
    ------
    AssertionError
        Names the method, its input, and what was given and expected.
    ValueError, TypeError
        For a law that is too large to enumerate; for what is not a law.

    Examples
    --------
    >>> import otmd
    >>> otmd.testing.check_law(otmd.Stratified([0.4, 0.3, 0.2, 0.1], num_drafts=2))
    """
    validate_law(law)
    rng = np.random.default_rng(rng)
    if law.batch_shape:
        _check_axes_of_law(law, rng)
    for index in np.ndindex(law.batch_shape):
        position = law[index]
        for smaller in [position, *_smaller_laws(position)]:
            _check_probs(smaller, rng)
            _check_sets(smaller, rng)
            _check_structure(smaller, rng)
        _check_optimum(position, rng)
        _check_samples(position, rng)
        _check_copies(position)


def hostile_targets(law: DraftLaw, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Target distributions (V,) on which verifiers have been seen to fail, for a law at a single position."""
    inclusion, size = law.inclusion_probs(), law.vocab_size
    mixed = rng.dirichlet(np.ones(size))
    masses = {
        "random": mixed,
        "zeros": np.where(rng.random(size) < 0.5, mixed, 0.0),
        "one-hot, often drafted": np.eye(size)[inclusion.argmax()],
        "one-hot, rarely drafted": np.eye(size)[inclusion.argmin()],
        "the inclusion probabilities": inclusion,
        "disjoint from the drafts": np.where(inclusion > 0, 0.0, mixed),
        "ties": rng.integers(1, 3, size).astype(np.float64),
        "masses of 1e-300": np.where(rng.permutation(size) < size / 2, 1e-300, mixed),
    }
    return {name: mass / mass.sum() for name, mass in masses.items() if mass.any()}


def _check_probs(law: DraftLaw, rng: np.random.Generator) -> None:
    """The probabilities of tuples, and of each draft given those before it."""
    tuples, probs = law.enumerate()
    drawn = dict(zip(map(tuple, tuples.tolist()), probs.tolist(), strict=True))
    agree(f"enumerate() of {law!r} lists tuples once", len(drawn), len(tuples), 0)
    agree(f"sum of the probabilities of {law!r}", probs.sum(), 1.0, SAME)
    listed = tuples[rng.permutation(len(tuples))[:_MOST_TRIED]]
    others = rng.integers(law.vocab_size, size=(_MOST_TRIED, law.num_drafts))
    for draft_tokens in np.concatenate([listed, others]):
        drafts = tuple(draft_tokens.tolist())
        where, expected = f"{drafts} of {law!r}", drawn.get(drafts, 0.0)
        agree(f"tuple_prob of {where}", law.tuple_prob(draft_tokens), expected, SAME)
        factors = _next_probs(law, drafts)
        agree(f"product of next_draft_probs of {where}", np.prod(factors), expected, SAME)
        # The probability of drafts that can be drawn may underflow to 0; its factors need not.
        able = expected > 0 or (len(factors) == law.num_drafts and min(factors) > 0)
        if able or np.prod(factors) == 0:
            agree(f"can_draw of {where}", law.position_structure.can_draw(draft_tokens), able, 0)


def _next_probs(law: DraftLaw, drafts: tuple[int, ...]) -> list[float]:
    """The probability of each draft given those before it, up to the first that is 0."""
    factors: list[float] = []
    for k, token in enumerate(drafts):
        probs = law.next_draft_probs(drafts[:k])
        where = f"next_draft_probs({drafts[:k]}) of {law!r}"
        agree(f"sum of {where}", probs.sum(), 1.0, SAME)
        agree(f"mass below 0 of {where}", np.minimum(probs, 0.0), np.zeros(law.vocab_size), 0)
        factors.append(float(probs[token]))
        if factors[-1] == 0:
            break
    return factors


def _check_sets(law: DraftLaw, rng: np.random.Generator) -> None:
    """Containment and inclusion."""
    tuples, probs = law.enumerate()
    size = law.vocab_size
    subsets = _subsets(size, rng)
    contained = [probs[subset[tuples].all(axis=-1)].sum() for subset in subsets]
    by_law = np.asarray(law.containment(subsets))
    for subset, given, expected in zip(subsets, by_law, contained, strict=True):
        tokens = np.flatnonzero(subset).tolist()
        agree(f"containment({tokens}) of {law!r}", given, expected, SAME_RATE)
    drafted = np.array([probs[(tuples == token).any(axis=-1)].sum() for token in range(size)])
    agree(f"inclusion_probs() of {law!r}", law.inclusion_probs(), drafted, SAME_RATE)


def _check_structure(law: DraftLaw, rng: np.random.Generator) -> None:
    """Deterministic tokens are not drawn at random; prefixes contain what they should; widening is right."""
    structure = law.position_structure
    tuples, probs = law.enumerate()
    if structure.random is not None:
        both = structure.random.drafted()[structure.deterministic].sum()
        agree(f"deterministic tokens among the random drafts of {law!r}", both, 0, 0)
    # Tokens of tuples whose probability underflows are not enumerated, and may be drafted.
    agree(f"tokens of tuples of {law!r} that are drafted", structure.drafted[tuples].all(), 1, 0)
    wider = structure.widened(law.vocab_size + 2)
    agree(f"tuples of {law!r} with two more tokens", wider.enumerate()[0], tuples, 0)
    agree(f"probabilities of {law!r} with two more tokens", wider.enumerate()[1], probs, SAME)
    if structure.random_probs() is not None:
        others = np.setdiff1d(np.arange(law.vocab_size), structure.deterministic)
        order = np.append(structure.deterministic, rng.permutation(others))
        prefixes = np.tril(np.ones((order.size + 1, order.size), bool), -1)[:, np.argsort(order)]
        where = f"prefix_containment({order.tolist()}) of {law!r}"
        agree(where, structure.prefix_containment(order), law.containment(prefixes), SAME_RATE)


def _check_optimum(law: DraftLaw, rng: np.random.Generator) -> None:
    """α* is the minimum over all subsets, at most that over those tried, and the value of its own subset."""
    subsets = _subsets(law.vocab_size, rng)
    contained = np.asarray(law.containment(subsets))
    for name, target in hostile_targets(law, rng).items():
        where = f"optimal_acceptance of {law!r} for {target.tolist()} ({name})"
        best = optimal_acceptance(target, law)
        lowest = float((1.0 + subsets @ target - contained).min())
        if law.vocab_size <= _MOST_SUBSETS:
            agree(where, best.rate, min(lowest, 1.0), SAME_RATE)
        bound = min(lowest, float(draft_probability_bound(target, law)))
        within(where, float(best.rate), 0.0, bound, SAME_RATE)
        cut = 1.0 + target[best.subset].sum() - law.containment(best.subset)
        agree(f"the value of the subset of {where}", cut, best.rate, SAME_RATE)


def _check_samples(law: DraftLaw, rng: np.random.Generator) -> None:
    seed = int(rng.integers(2**32))
    drawn = [law.sample(NUM_SAMPLES, rng=seed) for _ in range(2)]
    agree(f"sample of {law!r} with equal seeds", drawn[0], drawn[1], 0)
    if drawn[0].dtype != np.int64:
        raise AssertionError(f"sample of {law!r}: got {drawn[0].dtype}, expected int64")
    for size, axes in ((None, ()), ((2, 3), (2, 3)), (0, (0,))):
        shape = (*axes, law.num_drafts)
        agree(f"shape of sample({size}) of {law!r}", law.sample(size, rng=rng).shape, shape, 0)
    tuples, counts = np.unique(drawn[0], axis=0, return_counts=True)
    for draft_tokens in tuples:
        able = law.position_structure.can_draw(draft_tokens)
        agree(f"can_draw of the sample {draft_tokens} of {law!r}", able, 1, 0)
    for seen, probs in counts_of_tuples(law, tuples, counts):
        follows(f"sample of {law!r}", seen, probs, rng)


def _check_copies(law: DraftLaw) -> None:
    tuples, probs = law.enumerate()
    copies = {
        "copy": copy.copy(law),
        "pickle": pickle.loads(pickle.dumps(law)),
        "with_num_drafts(its own number)": law.with_num_drafts(law.num_drafts),
    }
    for name, copied in copies.items():
        agree(f"the {name} of {law!r}: its tuples", copied.enumerate()[0], tuples, 0)
        agree(f"the {name} of {law!r}: its probabilities", copied.enumerate()[1], probs, 0)


def _smaller_laws(law: DraftLaw) -> list[DraftLaw]:
    """The laws of the same family with fewer drafts, as far as they exist."""
    smaller = []
    for number in range(1, law.num_drafts):
        with suppress(ValueError):
            smaller.append(law.with_num_drafts(number))
            where = f"num_drafts of with_num_drafts({number}) of {law!r}"
            agree(where, smaller[-1].num_drafts, number, 0)
    return smaller


def _check_axes_of_law(law: DraftLaw, rng: np.random.Generator) -> None:
    """All positions together give what each of them gives."""
    tokens = law.sample(20, rng=rng)
    shape = (20, *law.batch_shape, law.num_drafts)
    agree(f"shape of sample(20) of {law!r}", tokens.shape, shape, 0)
    subsets = _subsets(law.vocab_size, rng)[:50]
    spread = np.expand_dims(subsets, tuple(range(1, 1 + len(law.batch_shape))))
    target = rng.dirichlet(np.ones(law.vocab_size))
    together = _values(law, target, spread, tokens)
    for index in np.ndindex(law.batch_shape):
        position = law[index]
        agree(f"leading axes of {law!r}[{index}]", position.batch_shape, (), 0)
        alone = _values(position, target, subsets, tokens[:, *index])
        for name, values in together.items():
            at = (slice(None), *index) if name in ("tuple_prob", "containment") else index
            agree(f"{name} of {law!r} at {index}", values[at], alone[name], SAME)


def _values(law: DraftLaw, target: FloatArray, subsets: BoolArray, tokens: IntArray) -> dict[str, np.ndarray]:
    best = optimal_acceptance(target, law)
    return {
        "inclusion_probs": law.inclusion_probs(),
        "tuple_prob": law.tuple_prob(tokens),
        "containment": np.asarray(law.containment(subsets)),
        "optimal_acceptance": np.asarray(best.rate),
        "optimal subset": best.subset,
    }


def _subsets(vocab_size: int, rng: np.random.Generator) -> BoolArray:
    """All subsets of a small vocabulary, else some at random, as rows (S, V) of booleans."""
    if vocab_size <= _MOST_SUBSETS:
        return (np.arange(2**vocab_size)[:, None] >> np.arange(vocab_size)) & 1 == 1
    share = rng.random((2**_MOST_SUBSETS, 1))
    return rng.random((2**_MOST_SUBSETS, vocab_size)) < share
