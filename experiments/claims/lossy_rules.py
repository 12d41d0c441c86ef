"""Distance of engines' lossy rules to the frontier of acceptance and divergence.

    python -m experiments lossy_rules

Measures rules on one sampled draft, and rules of the engines' catalogue on the draft model's n most likely
tokens. Reads the positions of ``positions.py``, and collects them if they are not there. Stores a row for
each position and rule: the acceptance rate, the total variation and the KL divergence of the output from the
target, the largest rate within each divergence, and the least of each divergence at the rate. For as many
drafts from strata it stores the rate of the preference rule, which is lossless, and the least of each
divergence at the lossy rule's rate.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import otmd
from experiments.claims.positions import positions, texts_of
from experiments.runner import run, show
from otmd.engines import lossy
from otmd.engines.catalogue import distances

COUNTS = (1, 4)
DIVERGENCES: tuple[Any, ...] = ("total_variation", "kl")

Output = tuple[np.ndarray, float]


def replaced(draft: np.ndarray, accept: np.ndarray, otherwise: np.ndarray) -> Output:
    """Accept the draft with these probabilities, else draw from another distribution: output and rate."""
    rejected = draft * (1.0 - accept)
    return draft * accept + rejected.sum() * otherwise, float(draft @ accept + rejected @ otherwise)


def typical(p: np.ndarray, q: np.ndarray, threshold: float, alpha: float) -> Output:
    """Typical acceptance (Medusa, arXiv:2401.10774): p(x) > min(ε, δ e^{−H(p)}), else the argmax."""
    entropy = -float(p[p > 0] @ np.log(p[p > 0]))
    accept = (p > min(threshold, alpha * np.exp(-entropy))).astype(float)
    return replaced(q, accept, np.eye(1, p.size, int(p.argmax()))[0])


def thresholds(p: np.ndarray, q: np.ndarray, single: float, accumulated: float) -> Output:
    """SGLang's target-only sampling: accept if p(x) ≥ single or coin ≤ p(x)/accumulated, else p without x."""
    accept = np.where(p >= single, 1.0, np.minimum(p / accumulated, 1.0))
    rejected = np.where(p < 1.0, q * (1.0 - accept) / np.where(p < 1.0, 1.0 - p, 1.0), 0.0)
    return q * accept + p * (rejected.sum() - rejected), float(q @ accept)


def lenience(p: np.ndarray, q: np.ndarray, factor: float) -> Output:
    """Leviathan et al. 2023, A.5: speculative sampling with l·q in the place of q."""
    accepted = np.minimum(q, p / factor)
    residual = np.maximum(p - factor * q, 0.0)
    return accepted + (1.0 - accepted.sum()) * residual / residual.sum(), float(accepted.sum())


def top_within(p: np.ndarray, q: np.ndarray, count: int, distance: float) -> Output:
    """Accept one of the top k within δ of the largest p (Stern et al. 2018), else draw from p."""
    kth = np.partition(p, p.size - count)[p.size - count]
    return replaced(q, ((p >= kth) & (p >= p.max() - distance)).astype(float), p)


def mixture(p: np.ndarray, q: np.ndarray, weight: float) -> Output:
    """Speculative sampling of a mixture of target and draft."""
    output = (1.0 - weight) * p + weight * q
    return output, float(np.minimum(output, q).sum())


def cactus(p: np.ndarray, q: np.ndarray, budget: float) -> Output:
    """Cactus (Hao and Mou 2026, arXiv:2604.04987; their code, cactus/cactus.py).

    A draft x is verified for the target that gives x the probability h = p(x) + √(2 δ p(x) (1 − p(x))), at
    most 1, and the other tokens the rest in proportion to p.
    """
    raised = np.minimum(p + np.sqrt(2.0 * budget * p * (1.0 - p)), 1.0)
    rejected = np.maximum(q - raised, 0.0)
    # The residual of x is (s p − q)₊, s = (1 − h)/(1 − p(x)). Sums over its tokens, those with q/p below s:
    scale = (1.0 - raised) / np.maximum(1.0 - p, 1e-300)
    ratio = np.divide(q, p, out=np.full(p.size, np.inf), where=p > 0)
    order = np.argsort(ratio)
    below = np.searchsorted(ratio[order], scale)
    masses = [np.append(0.0, x[order].cumsum())[below] for x in (p, q)]
    # It is at least what was rejected.
    residual = np.maximum(scale * masses[0] - masses[1], rejected)
    share = np.divide(rejected, residual, out=np.zeros(p.size), where=rejected > 0)
    # For a token y: Σ share (s p(y) − q(y)) over the drafts x with s above q(y)/p(y).
    by_scale = np.argsort(scale)
    above = np.searchsorted(scale[by_scale], ratio, side="right")
    of_p, of_q = (np.append(x[by_scale][::-1].cumsum()[::-1], 0.0)[above] for x in (share * scale, share))
    accepted = np.minimum(q, raised)
    return accepted + np.maximum(p * of_p - q * of_q, 0.0), float(accepted.sum())


RULES = {
    "typical, ε .09, δ .3": lambda p, q: typical(p, q, 0.09, 0.3),
    "typical, ε .3, δ .09": lambda p, q: typical(p, q, 0.3, 0.09),
    "thresholds .5 and 1": lambda p, q: thresholds(p, q, 0.5, 1.0),
    "thresholds 1 and .5": lambda p, q: thresholds(p, q, 1.0, 0.5),
    "thresholds .2 and .2": lambda p, q: thresholds(p, q, 0.2, 0.2),
    "lenience .5": lambda p, q: lenience(p, q, 0.5),
    "lenience .2": lambda p, q: lenience(p, q, 0.2),
    "top 10 within .3": lambda p, q: top_within(p, q, 10, 0.3),
    "Cactus, δ 1": lambda p, q: cactus(p, q, 1.0),
    "Cactus, δ .1": lambda p, q: cactus(p, q, 0.1),
    "mixture .2": lambda p, q: mixture(p, q, 0.2),
    "mixture .5": lambda p, q: mixture(p, q, 0.5),
}

SIBLINGS = {
    "typical, ε .09, δ .3": lossy.typical(0.09, 0.3),
    "typical, ε .3, δ .09": lossy.typical(0.3, 0.09),
    "thresholds .5 and .9": lossy.thresholds(0.5, 0.9),
    "thresholds .5 and 1": lossy.thresholds(0.5, 1.0),
    "thresholds 1 and .5": lossy.thresholds(1.0, 0.5),
    "thresholds .2 and .2": lossy.thresholds(0.2, 0.2),
    "relaxed, top 10 within .6": lossy.relaxed(10, 0.6),
    "relaxed, top 10 within .3": lossy.relaxed(10, 0.3),
}
"""Rules on several deterministic drafts, whose output ``otmd.engines`` has exactly."""


class Way(NamedTuple):
    """A rule with its drafts: their law, and from p and q the distribution of the output and the rate."""

    rule: str
    drafts: str
    num_drafts: int
    law: Callable[[np.ndarray], otmd.DraftLaw]
    output: Callable[[np.ndarray, np.ndarray], Output]


def sampled_ways() -> list[Way]:
    """The rules on one draft from q."""
    law = partial(otmd.WithReplacement, num_drafts=1)
    return [Way(name, "sampled", 1, law, output) for name, output in RULES.items()]


def certain_ways(count: int) -> list[Way]:
    """The rules on the n most likely tokens of q."""
    return [
        Way(
            name,
            "certain",
            count,
            lambda q, rule=rule: rule.law(q, count),
            partial(rule.output_distribution, num_drafts=count),
        )
        for name, rule in SIBLINGS.items()
    ]


def position_rows(p: np.ndarray, q: np.ndarray) -> Iterator[dict[str, Any]]:
    """One row a rule at one position."""
    for ways in (sampled_ways(), *map(certain_ways, COUNTS)):
        law = ways[0].law(q)
        strata = otmd.Stratified(q, ways[0].num_drafts)
        fronts = {name: otmd.lossy_frontier(p, law, name) for name in DIVERGENCES}
        others = {name: otmd.lossy_frontier(p, strata, name) for name in DIVERGENCES}
        lossless = {
            "lossless": fronts["kl"].lossless_rate,
            "strata": float(otmd.acceptance_rate(otmd.Preference(), p, strata)),
        }
        for way in ways:
            output, rate = way.output(p, q)
            at = min(rate, 1.0)
            row = dict(zip(DIVERGENCES, distances(output, p), strict=True))
            best = {f"rate_within_{n}": fronts[n].rate_at(row[n]) for n in fronts}
            least = {f"least_{n}": fronts[n].divergence_at(at) for n in fronts}
            least |= {f"strata_least_{n}": others[n].divergence_at(at) for n in others}
            about = {"rule": way.rule, "drafts": way.drafts, "num_drafts": way.num_drafts}
            yield about | lossless | {"rate": rate} | row | best | least


def lossy_rules(
    rng: np.random.Generator, prompt: int, draft: str, temperature: float
) -> Iterator[dict[str, Any]]:
    """One row for each rule and each position of a prompt's text."""
    for index, (p, q) in enumerate(positions(prompt, draft, temperature)):
        for row in position_rows(p, q):
            yield {"index": index, **row}


def main(arguments: list[str]) -> pl.DataFrame:
    """Measure, and print means by rule, among them the KL divergence of a hundred such tokens."""
    table = run(lossy_rules, arguments, 2.0, data=texts_of)
    by = ["temperature", "drafts", "num_drafts", "rule"]
    means = table.group_by(by).agg(pl.col(pl.Float64).exclude("temperature").mean())
    show(means.with_columns(kl_of_100=100 * pl.col("kl")).sort(by))
    return table
