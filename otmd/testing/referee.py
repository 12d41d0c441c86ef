# SPDX-License-Identifier: Apache-2.0
"""A test of an engine's verifier by its output, in one file that needs NumPy alone.

Copy it, with ``referee_cases.json``, into the engine's tests, and give :func:`judge` a function that
verifies a batch. ``python referee.py`` judges two sound verifiers of chains and seven faults. The cases hold
small target and draft distributions, and for each rule the exact law of its output, computed by otmd.

A case is drawn N times. Its outputs are counted, and the counts n compared with the law π by the evidence

    E = mean over c of  ∏ᵢ c πᵢ (c πᵢ + 1) … (c πᵢ + nᵢ − 1) / πᵢ^nᵢ  ÷  c (c + 1) … (c + N − 1),

the likelihood under a Dirichlet prior of strength c around π, divided by the likelihood under π. If outputs
follow π, the expectation of E is exactly 1, whatever N is, and so is that of the mean of E over cases. By
Markov's inequality 1/E is a p-value, mostly 1 for sound verifiers. An output of probability 0 makes it 0.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from math import log, pi, prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray
Rng: TypeAlias = np.random.Generator
CASES = Path(__file__).with_name("referee_cases.json")
# Strengths c of the prior in units of N: a strong one sees small deviations that many outputs share.
_STRENGTHS = (0.1, 1.0, 10.0)


class Case(NamedTuple):
    """Distributions given the depth and the token above, and ``branching`` drafts below a node, by depth.

    ``target[d]`` (V, V) and ``draft[d]`` (V, b, V) have a row for each token above; for the root all are
    equal. ``drafts`` is "chain", "with replacement", "without replacement" or "strata". ``laws[rule]`` has
    the probability of each output: "1 0" is the draft 1, accepted, and the token 0 after it.
    """

    name: str
    drafts: str
    branching: tuple[int, ...]
    target: list[Array]
    draft: list[Array]
    laws: dict[str, dict[str, float]]


class Finding(NamedTuple):
    """A law against its counts: the p-value, the bias, and, where it fails, the output that deviates most.

    A total variation of ``bias`` in any case would have been seen with probability 0.9, in the direction that
    chi-square sees last: half of the outputs (by mass) too likely in proportion, the others too unlikely.
    """

    p_value: float
    bias: float
    worst: str


class Report(NamedTuple):
    """The ``verdict`` of :func:`judge`, with what it rests on; ``print`` shows it.

    The verdict is "PASS", "NOT LOSSLESS", or "ANOTHER RULE": the text follows the target, but the accepted
    path and the token after it do not follow the rule.
    """

    verdict: str
    tested: str
    text: Finding
    joint: Finding

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.tested}"]
        for name, (p_value, bias, worst) in (("text", self.text), ("path and token", self.joint)):
            seen = f"a bias of about {bias:.2f} would have been seen"
            seen = seen if bias < 1 else "no bias would have been seen for sure: draw more"
            lines.append(f"  law of the {name}: p-value {p_value:.2g}; {seen}")
            lines += [f"    {worst}"] if worst else []
        return "\n".join(lines)


def judge(
    verify: Callable[..., Any],
    rule: str = "token-level",
    num_draws: int = 20_000,
    false_alarm: float = 1e-4,
    seed: int = 0,
) -> Report:
    """Test a verifier on every case that the rule serves.

    Any lossless rule passes the test of the text: where a step ends early, the text is continued from the
    target, so that all texts have L + 1 tokens. The declared rule also passes the test of its own output,
    the accepted path and the token after it.

    Parameters
    ----------
    verify : callable
        ``verify(target_probs, draft_probs, draft_tokens, rng)`` returns ``output_tokens`` (B, L + 1), −1
        after the last token of a step, alone or in a tuple with the number (B,) of accepted drafts. For a
        chain of n drafts, L = n, and the arguments are float64 (B, n + 1, V) and (B, n, V), and drafts
        (B, n). ``rng`` is a numpy.random.Generator; an engine with its own takes a seed from it.

        Trees of L levels have a fifth argument, the :class:`Case`. Their N nodes are in order of depth,
        siblings together: ``target_probs`` (B, N + 1, V) has a row for the root and each draft, and
        ``draft_probs`` (B, N, V) the distribution that each draft was drawn from, without replacement that
        before earlier siblings were removed. Equal siblings continue at the first of them; a token of the
        residual that is among the drafts counts as accepted.
    rule : str
        "token-level" or "block" for chains; for trees "recursive rejection", "k-seq", "preference",
        "traversal" or "layer".
    num_draws : int
        The number of draws of each case. Cases of one shape are shuffled into one batch.
    false_alarm : float
        With what probability, at most, a sound verifier fails. Each of the two tests has half of it.
    seed : int
        Draws everything.

    Returns
    -------
    Report
        The verdict, p-values, and the bias that would have been seen.

    Examples
    --------
    >>> from otmd.testing import referee
    >>> referee.judge(referee.rejection, num_draws=1_000).verdict
    'PASS'
    """
    if not isinstance(num_draws, int):
        raise TypeError(f"num_draws: got {type(num_draws).__name__}, expected an integer ≥ 1")
    if num_draws < 1:
        raise ValueError(f"num_draws: got {num_draws}, expected an integer ≥ 1")
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm: got {false_alarm}, expected a number between 0 and 1")
    rng, level = np.random.default_rng(seed), false_alarm / 2
    cases = [case for case in load() if rule in case.laws]
    if not cases:
        rules = ", ".join(dict.fromkeys(name for case in load() for name in case.laws))
        raise ValueError(f"rule: got {rule!r}, expected one of {rules}")
    texts, outputs = _count(verify, cases, num_draws, rng)
    text = _compare(cases, [text_law(case) for case in cases], texts, level, rng)
    joint = _compare(cases, [joint_law(case, rule) for case in cases], outputs, level, rng)
    verdict = "PASS" if joint.p_value > level else "ANOTHER RULE"
    verdict = verdict if text.p_value > level else "NOT LOSSLESS"
    return Report(verdict, f"{rule}, {len(cases)} cases of {num_draws:,} draws", text, joint)


def load() -> list[Case]:
    """Read the file of cases, whose distributions are weights; a single row serves every token above."""
    cases = []
    for case in json.loads(CASES.read_text("utf-8")):
        size = len(case["target"][0][0])
        for name in ("target", "draft"):
            levels = [_unit(np.array(level, np.float64)) for level in case[name]]
            case[name] = [np.broadcast_to(level, (size, *level.shape[1:])) for level in levels]
        cases.append(Case(**case | {"branching": tuple(case["branching"])}))
    return cases


def _unit(weights: Array) -> Array:
    return weights / weights.sum(-1, keepdims=True)


def text_law(case: Case) -> Array:
    """Probabilities of all texts of L + 1 tokens, in the order of their digits in base V."""
    law = case.target[0][0]
    for rows in case.target[1:]:
        law = law[..., None] * rows
    return law.ravel()


def joint_law(case: Case, rule: str) -> Array:
    """Probabilities of all outputs, in the order of (token + 1) as digits in base V + 1; no token is 0."""
    length = len(case.branching) + 1
    law = np.zeros((case.target[0].shape[-1] + 1,) * length)
    for output, probability in case.laws[rule].items():
        digits = [int(token) + 1 for token in output.split()]
        law[tuple(digits + [0] * (length - len(digits)))] = probability
    return law.ravel() / law.sum()


def _draw(weights: Array, rng: Rng) -> Array:
    """A token for each row of weights (…, V), which need not sum to 1."""
    sums = weights.cumsum(-1)
    return (sums <= rng.random((*weights.shape[:-1], 1)) * sums[..., -1:]).sum(-1)


def _draw_inputs(case: Case, number: int, rng: Rng) -> list[Array]:
    above = np.zeros((number, 1), np.int64)
    target, draft, tokens = [case.target[0][above]], [], []
    for depth, count in enumerate(case.branching):
        probs = case.draft[depth][above]
        siblings: list[Array] = []
        for j in range(count):
            row = probs[:, :, j].copy()
            for token in siblings if case.drafts == "without replacement" else []:
                np.put_along_axis(row, token[..., None], 0.0, -1)
            siblings.append(_draw(row, rng))
        above = np.stack(siblings, -1).reshape(number, -1)
        target.append(case.target[depth + 1][above])
        draft.append(probs.reshape(number, above.shape[1], -1))
        tokens.append(above)
    return [np.concatenate(parts, axis=1) for parts in (target, draft, tokens)]


def _count(verify: Callable, cases: list[Case], number: int, rng: Rng) -> tuple[list, list]:
    """Counts of the texts and of the outputs of each case."""
    groups = defaultdict(list)
    for i, case in enumerate(cases):
        groups[case.branching, case.drafts, len(case.target[0])].append(i)
    texts, outputs = [np.empty(0)] * len(cases), [np.empty(0)] * len(cases)
    for (branching, drafts, size), members in groups.items():
        # A random order shows a verifier that mixes up the requests of a batch.
        order = rng.permutation(len(members) * number)
        drawn = [_draw_inputs(cases[i], number, rng) for i in members]
        batch = [np.concatenate(parts)[order] for parts in zip(*drawn, strict=True)]
        more = () if drafts == "chain" else (cases[members[0]],)
        emitted = np.empty((order.size, len(branching) + 1), np.int64)
        emitted[order] = _checked(verify(*batch, rng, *more), batch[2], branching, size)
        for i, output in zip(members, np.split(emitted, len(members)), strict=True):
            text, above = output.copy(), np.zeros(number, np.int64)
            for depth, rows in enumerate(cases[i].target):
                drawn_on = _draw(rows[above], rng)
                above = text[:, depth] = np.where(text[:, depth] < 0, drawn_on, text[:, depth])
            for counts, digits, base in ((texts, text, size), (outputs, output + 1, size + 1)):
                code = digits @ base ** np.arange(len(branching) + 1)[::-1]
                counts[i] = np.bincount(code, minlength=base ** (len(branching) + 1))
    return texts, outputs


def _checked(given: Any, tokens: Array, branching: tuple[int, ...], size: int) -> Array:
    """The output (B, L + 1), if its tokens but the last of each row are drafts from the root down."""
    is_pair = isinstance(given, tuple) and len(given) == 2
    output, accepted = given if is_pair else (given, None)
    shape = len(tokens), len(branching) + 1
    expected = f"integers {shape}, one to {shape[1]} tokens below {size}, then −1 only"
    try:
        output = np.array(output)
    except ValueError as reason:
        raise ValueError(f"output_tokens: expected {expected} ({reason})") from reason
    fits = output.shape == shape and output.dtype.kind in "iu"
    if fits:
        is_token = output >= 0
        fits = is_token[:, 0].all() and np.diff(is_token * 1).max() <= 0
        fits = fits and -1 <= output.min() <= output.max() < size
    if not fits:
        had = f"{output.dtype} {output.shape}, {np.atleast_1d(output)[:2].tolist()} …"
        raise ValueError(f"output_tokens: got {had}, expected {expected}")
    length = (output >= 0).sum(1) - 1
    if accepted is not None and not np.array_equal(length, accepted):
        raise ValueError(f"num_accepted: expected ({len(tokens)},), the tokens of each row less 1")
    alive, start = np.ones((len(tokens), 1), bool), 0
    for depth, count in enumerate(branching):
        stop = start + prod(branching[: depth + 1])
        alive = alive.repeat(count, axis=1) & (tokens[:, start:stop] == output[:, depth, None])
        for i in np.flatnonzero((length > depth) & ~alive.any(1))[:1]:
            had = f"{output[i].tolist()} for the drafts {tokens[i].tolist()}"
            raise ValueError(f"output_tokens: got {had}, expected drafts before the last token")
        start = stop
    return output


def _compare(cases: list, laws: list, counts: list, level: float, rng: Rng) -> Finding:
    logs = np.array([log_evidence(*pair) for pair in zip(counts, laws, strict=True)])
    mean = float(np.logaddexp.reduce(logs)) - log(len(cases))
    p_value = 0.0 if mean == np.inf else float(np.exp(-np.clip(mean, 0.0, 700.0)))
    number = int(counts[0].sum())
    bias = max(detectable_bias(law, number, log(len(cases) / level), rng) for law in laws)
    if p_value > level:
        return Finding(p_value, bias, "")
    i = int(logs.argmax())
    expected = number * laws[i]
    k = int(((counts[i] - expected) ** 2 / np.maximum(expected, 1e-9)).argmax())
    length, size = len(cases[i].branching) + 1, len(cases[i].target[0])
    base = round(laws[i].size ** (1 / length))
    digits = np.array(np.unravel_index(k, (base,) * length)) - (base - size)
    output = " ".join(str(token) for token in digits if token >= 0)
    times = f"came {counts[i][k]:,} times, expected {expected[k]:,.1f}"
    return Finding(p_value, bias, f"{cases[i].name}: {output} {times}")


def log_evidence(counts: Array, law: Array) -> Array:
    """Log E of counts (…, K) for a law (K,); infinite where an output of probability 0 came."""
    n, probs = counts[..., law > 0], law[law > 0]
    total = np.maximum(n.sum(-1), 1)
    c = np.multiply.outer(_STRENGTHS, total)
    prior = c[..., None] * probs
    ratios = _log_gamma(prior + n) - _log_gamma(prior) - n * np.log(probs)
    logs = ratios.sum(-1) - _log_gamma(c + total) + _log_gamma(c)
    mean = np.logaddexp.reduce(logs) - log(len(_STRENGTHS))
    return np.where(counts[..., law == 0].any(-1), np.inf, mean)


def _log_gamma(x: Array) -> Array:
    """Log Γ by Stirling's series, eight steps further on, to 1e-9; the math module's takes a number."""
    s = x + 8
    series = (s - 0.5) * np.log(s) - s + 0.5 * log(2 * pi) + 1 / (12 * s) - 1 / (360 * s**3)
    return series + 1 / (1260 * s**5) - sum(np.log(x + i) for i in range(8))


def detectable_bias(law: Array, number: int, threshold: float, rng: Rng) -> float:
    """The total variation at which log E exceeds a threshold in 9 of 10 experiments; 0 if K = 1."""
    mass, half = np.zeros(2), np.zeros(law.size, np.int64)
    for i in np.argsort(-law):
        half[i] = mass.argmin()
        mass[half[i]] += law[i]
    # From the larger half to the smaller.
    direction = law * np.where(half == mass.argmin(), 1, -1) / np.maximum(mass, 1e-300)[half]
    low, high = 0.0, 1.0 if mass.min() > 0 else 0.0
    for _ in range(9 if high else 0):
        middle = (low + high) / 2
        biased = np.maximum(law + min(middle, mass.max()) * direction, 0.0)
        drawn = rng.multinomial(number, biased / biased.sum(), 100)
        is_seen = (log_evidence(drawn, law) > threshold).mean() >= 0.9
        low, high = (low, middle) if is_seen else (middle, high)
    return high


def rejection(target: Array, draft: Array, tokens: Array, rng: Rng, **fault: Callable) -> Array:
    """Token-level rejection: accept while u q < p, then draw from (p − q)₊; a fault replaces a part."""
    target = fault.get("rows", np.asarray)(target)
    row, depth = np.arange(len(tokens)), tokens.shape[1]
    p, q = (probs[row[:, None], np.arange(depth), tokens] for probs in (target, draft))
    accepted = fault.get("accept", lambda p, q, u: u * q < p)(p, q, rng.random(p.shape))
    length = np.cumprod(accepted, axis=1).sum(1)
    # After the last draft nothing is subtracted, and the token is the extra one.
    after, q = np.pad(draft, ((0, 0), (0, 1), (0, 0))), np.pad(q, ((0, 0), (0, 1)))
    residual = fault.get("residual", lambda p, q, q_of_draft: p - q)
    left = residual(target[row, length], after[row, length], q[row, length, None])
    return _output(tokens, length, np.maximum(left, 0.0), target[row, length], rng)


FAULTS: dict[str, dict[str, Callable[..., Array]]] = {
    # Of a uniform target the cosine similarity is .990, and the total variation .07.
    "biased by .07": {"rows": lambda p: _unit(p * (1.14 - 0.28 * (np.arange(p.shape[-1]) % 2)))},
    "p >= q, else the argmax": {
        "accept": lambda p, q, u: p >= q,
        "residual": lambda p, *_: p * (p == p.max(-1, keepdims=True)),
    },
    "bonus token from the row before": {"rows": lambda p: np.append(p[:, :-1], p[:, -2:-1], axis=1)},
    "drafts of q < .3 dropped": {
        "accept": lambda p, q, u: (u * q < p) & (q >= 0.3),
        "residual": lambda p, q, q_of_draft: np.where(q_of_draft < 0.3, p, p - q),
    },
    "coin of 8 bits, <=": {"accept": lambda p, q, u: np.floor(256 * u) / 256 * q <= p},
    "residual forgotten": {"residual": lambda p, *_: p},
    "drafts ignored": {"accept": lambda p, q, u: u < 0, "residual": lambda p, *_: p},
}


def block(target: Array, draft: Array, tokens: Array, rng: Any) -> Array:
    """Block verification (Sun et al. 2024): the longest prefix that passes is accepted."""
    row, depth = np.arange(len(tokens)), tokens.shape[1]
    reached, at, length = np.ones(row.size), np.ones(row.size), np.zeros(row.size, np.int64)
    for i in range(depth):
        ratio = target[row, i, tokens[:, i]] / draft[row, i, tokens[:, i]]
        passing = reached = np.minimum(reached * ratio, 1.0)
        if i + 1 < depth:
            left = np.maximum(reached[:, None] * target[:, i + 1] - draft[:, i + 1], 0.0).sum(-1)
            total = left + 1 - reached
            passing = np.divide(left, total, out=np.ones(row.size), where=total > 0)
        accepted = rng.random(row.size) < passing
        length, at = np.where(accepted, i + 1, length), np.where(accepted, reached, at)
    last, after = target[row, length], np.pad(draft, ((0, 0), (0, 1), (0, 0)))
    left = np.maximum(at[:, None] * last - after[row, length], 0.0)
    return _output(tokens, length, left, last, rng)


def _output(tokens: Array, length: Array, left: Array, last: Array, rng: Rng) -> Array:
    """The accepted drafts, and a token of the residual, or of the target where the residual is 0."""
    output = np.pad(tokens, ((0, 0), (0, 1)))
    output[np.arange(output.shape[1]) > length[:, None]] = -1
    weights = np.where(left.sum(-1, keepdims=True) > 0, left, last)
    output[np.arange(len(tokens)), length] = _draw(weights, rng)
    return output


if __name__ == "__main__":
    print("token-level rejection", judge(rejection), sep="\n")
    print("block verification", judge(block, "block"), sep="\n")
    print("block verification, declared as token-level rejection", judge(block), sep="\n")
    for name, fault in FAULTS.items():
        print(name, judge(partial(rejection, **fault)), sep="\n")
