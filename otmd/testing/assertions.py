"""Assertions of losslessness and of rates, and pairs of distributions on which rules have failed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from otmd.audit.base import ConditionalLaw, Sampler, as_rule, validate_level, validate_position
from otmd.audit.enumeration import enumerated
from otmd.audit.samples import losslessness
from otmd.audit.statistics import lower_bound, upper_bound
from otmd.laws import DraftLaw
from otmd.laws.base import RngLike
from otmd.probabilities import FloatArray, validate_count, wrong
from otmd.verifiers import Verifier

_MOST_TUPLES = 20_000
Pair = tuple[FloatArray, FloatArray]


def assert_lossless(
    verifier: Verifier | Sampler | ConditionalLaw | str,
    target_probs: ArrayLike,
    law: DraftLaw,
    *,
    returns: str = "token",
    tol: float = 1e-12,
    num_samples: int = 20_000,
    false_alarm: float = 1e-4,
    rng: RngLike = 0,
) -> None:
    """Fail unless a rule is lossless: exactly if its law can be enumerated, else as far as samples show.

    Parameters
    ----------
    verifier : Verifier, str or callable
        A verifier, or the name of one, is enumerated if the law has at most 20,000 tuples of drafts, and
        sampled otherwise.
    target_probs : array_like, shape (V,)
        p.
    law : DraftLaw
        The law of the drafts, without leading axes.
    returns : {"token", "tokens", "law"}
        The value of a callable: the token for drafts (n,), the tokens (N,) for drafts (N, n), or the law
        of the token (V,) for drafts (n,), which is enumerated.
    tol : float
        How far a token's probability may be off, if the rule is enumerated.
    num_samples : int
        How many samples are drawn, if the rule is sampled.
    false_alarm : float
        With what probability, at most, a lossless rule fails, if it is sampled.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator, which draws the samples. By default the test is the same at every run.

    Raises
    ------
    AssertionError
        With the verdict and the tokens that deviate most.
    ValueError, TypeError
        For invalid input; for a class in place of an instance, or swapped arguments.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.2, 0.2, 0.6], 2)
    >>> otmd.testing.assert_lossless(otmd.RecursiveRejection(), [0.6, 0.3, 0.1], law)
    """
    if returns not in ("token", "tokens", "law"):
        raise wrong("returns", repr(returns), '"token", "tokens" or "law"')
    validate_position(target_probs, law)
    verifier = as_rule(verifier)
    by_law = returns == "law"
    if isinstance(verifier, Verifier):
        by_law = law.position_structure.num_tuples <= _MOST_TUPLES
    if by_law:
        report = enumerated(verifier, target_probs, law, tol)
    else:
        batched = returns == "tokens"
        report = losslessness(verifier, target_probs, law, num_samples, false_alarm, batched=batched, rng=rng)
    if report.faulty:
        raise AssertionError(str(report))


def assert_rate(
    accepted: int, num_samples: int, rate: float | tuple[float, float], false_alarm: float = 1e-4
) -> None:
    """Fail unless a number of acceptances agrees with a rate, by an exact binomial interval.

    Parameters
    ----------
    accepted : int
        How often a draft was accepted.
    num_samples : int
        In how many independent samples.
    rate : float or (low, high)
        The acceptance rate, or guaranteed bounds of it as ``acceptance_bounds`` gives them.
    false_alarm : float
        With what probability, at most, a true rate fails.

    Raises
    ------
    AssertionError
        With the observed rate, its confidence interval, and the expected one.
    ValueError
        For invalid input.

    Examples
    --------
    >>> import otmd
    >>> otmd.testing.assert_rate(704, 1_000, 0.7)
    """
    trials = validate_count("num_samples", num_samples)
    hits = validate_count("accepted", accepted, minimum=0)
    if hits > trials:
        raise wrong("accepted", hits, f"at most num_samples = {trials}")
    level = validate_level(false_alarm) / 2
    low, high = (float(end) for end in np.broadcast_to(rate, 2))
    if not 0 <= low <= high <= 1 + 1e-9:
        raise wrong("rate", repr(rate), "a rate or bounds in [0, 1]")
    least = lower_bound(hits, trials, level)
    most = upper_bound(hits, trials, level)
    if least > high or most < low:
        expected = f"{low:.6f}" if low == high else f"between {low:.6f} and {high:.6f}"
        interval = f"between {least:.6f} and {most:.6f} (false-alarm rate {false_alarm:.0e})"
        observed = f"accepted {hits} of {trials} = {hits / trials:.6f}"
        raise AssertionError(f"{observed}, so the rate is {interval}; expected {expected}")


def hostile_pairs() -> list[Pair]:
    """Pairs of a target and a draft distribution on which rules have been seen to fail.

    For ``@pytest.mark.parametrize("p, q", otmd.testing.hostile_pairs())``; :func:`hostile_names` gives the
    ids. All are in float64 but one pair in float16 and one in float32. Supports differ in size: a law of
    distinct drafts exists only if ``np.count_nonzero(q)`` is at least the number of drafts.

    Returns
    -------
    list of tuple of ndarray
        Pairs (p, q), each of shape (V,).

    Examples
    --------
    >>> import otmd
    >>> p, q = otmd.testing.hostile_pairs()[0]
    >>> p, q
    (array([0.5, 0.3, 0.1, 0.1]), array([0.1, 0.2, 0.3, 0.4]))
    """
    pairs = []
    for target, draft, *dtype in _HOSTILE.values():
        p, q = np.asarray(target, np.float64), np.asarray(draft, np.float64)
        pairs.append(tuple((x / x.sum()).astype(*dtype or [np.float64]) for x in (p, q)))
    return pairs


def hostile_names() -> list[str]:
    """Names of the pairs of :func:`hostile_pairs`, in their order.

    Returns
    -------
    list of str
        One for each pair.

    Examples
    --------
    >>> import otmd
    >>> otmd.testing.hostile_names()[:2]
    ['ordinary', 'no target mass on the most likely draft']
    """
    return list(_HOSTILE)


def _zipf() -> Pair:
    rng = np.random.default_rng(0)
    masses = 1.0 / np.arange(1, 1001) ** 1.1
    return masses * rng.gamma(2.0, size=1000), masses * rng.gamma(2.0, size=1000)


_HOSTILE: dict[str, tuple] = {
    "ordinary": ([5, 3, 1, 1], [1, 2, 3, 4]),
    "no target mass on the most likely draft": ([0, 5, 3, 2], [7, 1, 1, 1]),
    "no draft mass on the most likely target": ([7, 1, 1, 1], [0, 5, 3, 2]),
    "no mass in either": ([5, 0, 3, 0, 2], [2, 0, 3, 4, 1]),
    "ties in the ratio": ([2, 2, 1, 1, 2], [1, 1, 2, 2, 2]),
    "all masses tie": ([1, 1, 1, 1], [1, 1, 1, 1]),
    "equal": ([5, 3, 1, 1], [5, 3, 1, 1]),
    "equal up to rounding": ([0.1, 0.2, 0.3, 0.4], [0.1 + 1e-16, 0.2, 0.3, 0.4]),
    "disjoint supports": ([5, 3, 0, 0], [0, 0, 1, 2]),
    "one-hot draft": ([5, 3, 1, 1], [0, 1, 0, 0]),
    "one-hot target": ([0, 0, 1, 0], [5, 3, 1, 1]),
    "one-hot both, equal": ([0, 1, 0], [0, 1, 0]),
    "one-hot both, different": ([0, 1, 0], [1, 0, 0]),
    "vocabulary of one": ([1], [1]),
    "vocabulary of two": ([9, 1], [1, 9]),
    "subnormal target mass": ([1, 1, 1e-310], [1, 2, 1]),
    "subnormal draft mass": ([1, 2, 1], [1, 1, 1e-310]),
    "thirty orders of magnitude": ([1, 1e-10, 1e-20, 1e-30], [1e-30, 1e-20, 1e-10, 1]),
    "rounded to float16": ([5, 3, 1, 0.5, 0.01], [1, 2, 3, 4, 0.3], np.float16),
    "rounded to float32": ([5, 3, 1, 0.5, 0.01], [1, 2, 3, 4, 0.3], np.float32),
    "Zipf, 1,000 tokens": _zipf(),
}
