"""Were drafts drawn from the declared law, and if not, which common mistake explains them best."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from otmd.audit.arguments import validate_level
from otmd.audit.goodness import exact_p_value
from otmd.audit.mistakes import Mistake, mistakes
from otmd.audit.tuple_cells import counts_of_extremes, counts_of_tuples
from otmd.drafts import DraftLaw
from otmd.drafts.base import validate_rng
from otmd.probabilities import FloatArray, IntArray


@dataclass(frozen=True)
class Explanation:
    """How well a mistake explains the samples.

    Attributes
    ----------
    mistake : str
        In words, with its best setting.
    log_likelihood : float
        Natural logarithm of the samples' likelihood, less the logarithm of the number of settings tried.
    """

    mistake: str
    log_likelihood: float


@dataclass(frozen=True)
class DraftLawAudit:
    """What an audit of draft samples found.

    Attributes
    ----------
    num_samples : int
        N.
    false_alarm : float
        Half of it is for the bet on the mistakes, half for the tests of the law.
    impossible : int
        Samples that the declared law never draws. One is proof.
    log_likelihood : float
        Of the samples under the declared law.
    log_e_value : float
        Natural logarithm of the mean likelihood ratio of all mistakes. The ratio's expectation is at most 1
        under the declared law.
    p_values : tuple of float
        Of exact G-tests: of the tuples where they can be listed, else of the places of the least likely and
        of the likeliest draft.
    explanations : tuple of Explanation
        The mistakes, best first.
    """

    num_samples: int
    false_alarm: float
    impossible: int
    log_likelihood: float
    log_e_value: float
    p_values: tuple[float, ...]
    explanations: tuple[Explanation, ...]

    @property
    def faulty(self) -> bool:
        """Whether the declared law is refuted."""
        by_test = min(self.p_values) <= self.false_alarm / 2 / len(self.p_values)
        return self.impossible > 0 or by_test or self.log_e_value >= -np.log(self.false_alarm / 2)

    @property
    def best(self) -> Explanation | None:
        """The mistake that explains the samples better than the declared law, and best; None if none does."""
        first = self.explanations[0] if self.explanations else None
        better = first is not None and first.log_likelihood > self.log_likelihood
        return first if better else None

    @property
    def verdict(self) -> str:
        """One sentence."""
        if not self.faulty:
            return f"no deviation from the declared law found in {self.num_samples} samples"
        never = f" ({self.impossible} of them it never draws)" if self.impossible else ""
        told = f"the {self.num_samples} samples were not drawn from the declared law{never}"
        if self.best is None:
            return f"{told}; none of the common mistakes explains them better"
        return f"{told}; best explained by: {self.best.mistake}"

    def __str__(self) -> str:
        values = ", ".join(f"{value:.1e}" for value in self.p_values)
        lines = [
            f"  {own.log_likelihood:>14.1f}  {own.mistake}"
            for own in self.explanations[:5]
            if own.log_likelihood > -np.inf
        ]
        return "\n".join(
            [
                self.verdict,
                f"logarithm of the e-value {self.log_e_value:.1f}, p-values {values}; false-alarm rate "
                f"{self.false_alarm:.0e}",
                "log-likelihoods:",
                f"  {self.log_likelihood:>14.1f}  the declared law",
                *lines,
            ]
        )


def draft_law(
    samples: ArrayLike,
    law: DraftLaw,
    false_alarm: float = 1e-3,
    *,
    rng: np.random.Generator,
) -> DraftLawAudit:
    """Audit draft tokens: whether they were drawn from the declared law, and what may have gone wrong.

    Parameters
    ----------
    samples : array_like of int, shape (N, n)
        Independent draws of drafts.
    law : DraftLaw
        The declared law, without leading axes.
    false_alarm : float
        Probability, at most, that samples of the declared law are called faulty.
    rng : numpy.random.Generator
        Draws the outcomes of the exact tests.

    Returns
    -------
    DraftLawAudit

    Raises
    ------
    ValueError
        For invalid input.
    """
    if not isinstance(law, DraftLaw):
        raise ValueError(f"law: got {type(law).__name__}, wanted a DraftLaw")
    if law.batch_shape:
        raise ValueError(f"law: got leading axes {law.batch_shape}, wanted one position")
    tokens = law.validate_tokens(samples, "samples")
    if tokens.ndim != 2 or not len(tokens):
        raise ValueError(f"samples: got shape {tokens.shape}, wanted (N, n) with N ≥ 1")
    validate_level(false_alarm)
    validate_rng(rng)
    tuples, counts = np.unique(tokens, axis=0, return_counts=True)
    declared = law.tuple_prob(tuples)
    likelihood = _log_likelihood(declared, counts)
    by_kind: dict[str, list[tuple[float, Mistake]]] = defaultdict(list)
    for own in mistakes(law):
        by_kind[own.kind].append((_log_likelihood(own.tuple_prob(tuples), counts), own))
    found = [_explanation(settings) for settings in by_kind.values()]
    log_e_value = np.inf
    if np.isfinite(likelihood):
        log_e_value = _log_mean(list(by_kind.values())) - likelihood
    tests = counts_of_tuples(law, tuples, counts) or counts_of_extremes(law, tokens)
    level = false_alarm / 2 / len(tests)
    return DraftLawAudit(
        num_samples=len(tokens),
        false_alarm=false_alarm,
        impossible=int(counts[declared == 0].sum()),
        log_likelihood=likelihood,
        log_e_value=log_e_value,
        p_values=tuple(exact_p_value(seen, probs, level, rng=rng) for seen, probs in tests),
        explanations=tuple(sorted(found, key=lambda own: -own.log_likelihood)),
    )


def _log_likelihood(probs: FloatArray, counts: IntArray) -> float:
    with np.errstate(divide="ignore"):
        return float(counts @ np.log(probs))


def _explanation(settings: list[tuple[float, Mistake]]) -> Explanation:
    likelihood, own = max(settings, key=lambda pair: pair[0])
    words = f"{own.kind} ({own.setting})" if own.setting else own.kind
    return Explanation(words, likelihood - float(np.log(len(settings))))


def _log_mean(by_kind: list[list[tuple[float, Mistake]]]) -> float:
    """Logarithm of the mean likelihood over mistakes, each the mean over its settings."""
    if not by_kind:
        return -np.inf
    means = [
        logsumexp([own for own, _ in settings]) - np.log(len(settings)) for settings in by_kind
    ]
    return float(logsumexp(means) - np.log(len(means)))
