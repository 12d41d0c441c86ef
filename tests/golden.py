"""Golden values: what otmd answers on about 360 instances with every kind of trouble.

``golden.json`` holds groups of instances: ``in`` is the input, ``out`` the right values. A feature that goes
takes its group along. ``python tests/golden.py --write`` adds the values of an instance that has none.

Distributions are given as weights. Nothing that depends on the order of random draws is a value: recorded
runs and texts have their verdict alone, and are long enough for any seed to give the same.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import otmd
from otmd import exact, trees
from otmd.laws import DraftLaw, Slots
from otmd.models import open_dataset

FILE = Path(__file__).with_name("golden.json")
Values = dict[str, Any]
Array = np.ndarray


def unit(weights: Any) -> Array:
    wide = np.asarray(weights, dtype=np.float64)
    return wide / wide.sum(axis=-1, keepdims=True)


# ---------------------------------------------------------------- the names of golden.json in otmd


class Smoothed(DraftLaw):
    """A user's law: independent drafts from (q + uniform)/2, so that it depends on V."""

    def structure(self, q: Array) -> Slots:
        return Slots.single(0.5 * (q + 1.0 / q.size), self.num_drafts)


def top_then(q: Any, num_drafts: int, top: int = 1, rest: str = "with-replacement") -> otmd.TopThen:
    return otmd.TopThen(q, num_drafts, top=top, rest=LAWS[rest])


LAWS: dict[str, Any] = {
    "with-replacement": otmd.WithReplacement,
    "without-replacement": otmd.WithoutReplacement,
    "stratified": otmd.Stratified,
    "greedy": otmd.Greedy,
    "top-k": otmd.TopK,
    "hub": otmd.Hub,
    "conditional-poisson": otmd.ConditionalPoisson,
    "top-then": top_then,
    "independent": otmd.Independent,
    "joint": lambda q, tuples, vocab_size: otmd.Joint(tuples, q, vocab_size),
    "two drafters": lambda q, n: otmd.Independent([q, q[::-1]][:n]),
    "equal drafters": lambda q, n: otmd.Independent([q] * n),
    "smoothed": Smoothed,
}
VERIFIERS: dict[str, otmd.Verifier] = {
    "recursive-rejection": otmd.RecursiveRejection(),
    "k-sequential": otmd.KSequential(),
    "spechub": otmd.SpecHub(),
    "preference": otmd.Preference(),
    "target-only": otmd.TargetOnly(),
}
# A coupling decides on no drafts that it is given, so its output is not enumerated.
RATED = VERIFIERS | {"poisson-coupling": otmd.PoissonCoupling()}
OPTIMAL = otmd.Optimal()
# Without Optimal: its plans are not unique, and what is accepted below a node depends on which it is.
RULES: dict[str, trees.TreeVerifier] = {
    **{
        f"token-level {name}": trees.TokenLevel(verifier)
        for name, verifier in VERIFIERS.items()
        if name != "target-only"
    },
    "layer recursive-rejection": trees.LayerVerification(otmd.RecursiveRejection()),
    "layer preference": trees.LayerVerification(otmd.Preference()),
    "layer": trees.LayerVerification(),
    "subtree": trees.SubtreeVerification(),
    "block": trees.BlockVerification(),
    "traversal": trees.Traversal(),
    "multi-path": trees.GreedyMultiPath(),
}
TREES: dict[str, Any] = {
    "iid-paths": trees.IIDPaths,
    "most-likely": trees.MostLikelyTree,
    "fixed-shape": lambda draft, shape, law: trees.TokenTree(draft, shape, LAWS[law]),
    "adaptive": lambda draft, quotas, law: trees.AdaptiveTree(draft, quotas, law=LAWS[law]),
}
DIVERGENCES = ("total_variation", "kl", "reverse_kl", "chi_squared", "leniency")
MEASURED = ("with-replacement", "without-replacement", "stratified", "greedy", "hub", "top-k")


# ---------------------------------------------------------------- what otmd answers


def sums(p: Array, law: otmd.DraftLaw) -> tuple[Values, Array]:
    """The answers for every size of the vocabulary, and the cut."""
    best = otmd.optimal_acceptance(p, law)
    of_cut = 1.0 + p[best.subset].sum() - law.containment(best.subset)
    out: Values = {"optimum": float(best.rate), "optimum of the cut": float(of_cut)}
    for name, verifier in RATED.items():
        if verifier.supports(law):
            out[f"rate {name}"] = [float(x) for x in otmd.acceptance_bounds(verifier, p, law)]
    return out, best.subset


def enumerated(verifier: otmd.Verifier, p: Array, law: otmd.DraftLaw) -> tuple[Array, float]:
    """The distribution of the output and the acceptance rate, by all drafts."""
    prepared = verifier.prepare(p, law)
    output, accepted = np.zeros(p.size), 0.0
    for tokens, prob in zip(*law.enumerate(), strict=True):
        given = prepared.conditional_law(tokens)
        output += prob * given
        accepted += float(prob * given[np.unique(tokens)].sum())
    return output, accepted


def pair(name: str, p: Any, q: Any, exactly: bool = False, **further: Any) -> tuple[Array, otmd.DraftLaw]:
    """A target and a law from weights; with ``exactly``, from probabilities that stay as they are."""
    return unit(p), LAWS[name](np.array(q, float) if exactly else unit(q), **further)


def position(law_name: str, **given: Any) -> Values:
    """Also the sums of the law, and the bias of each verifier: the largest error of its output."""
    p, law = pair(law_name, **given)
    out, subset = sums(p, law)
    tokens = np.arange(p.size)
    chosen = np.stack([tokens < p.size - 1, tokens % 2 == 0, subset])
    out |= {
        "cut": np.flatnonzero(subset).tolist(),
        "inclusion": law.inclusion_probs().tolist(),
        "containment": np.asarray(law.containment(chosen)).tolist(),
    }
    for name, verifier in (VERIFIERS | {"optimal": OPTIMAL}).items():
        if verifier.supports(law):
            output, accepted = enumerated(verifier, p, law)
            out[f"bias {name}"] = float(np.abs(output - p).max())
            out[f"{'attained' if verifier is OPTIMAL else 'enumerated'} {name}"] = accepted
    return out


def large(law_name: str, seed: int, size: int, num_drafts: int) -> Values:
    """A full vocabulary: logits of spread 3, and a draft model whose logits differ by a third of it."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal(size)
    p = otmd.probs_from_logits(logits)
    law = LAWS[law_name](otmd.probs_from_logits(logits + rng.standard_normal(size)), num_drafts)
    out, subset = sums(p, law)
    out |= {"size of the cut": int(subset.sum()), "mass of the cut": float(p[subset].sum())}
    if OPTIMAL.supports(law):
        out["attained optimal"] = float(otmd.acceptance_bounds(OPTIMAL, p, law)[0])
    return out | {"mass of the drafts": float(p @ law.inclusion_probs())}


def frontier(law_name: str, **given: Any) -> Values:
    p, law = pair(law_name, **given)
    out: Values = {}
    for name in DIVERGENCES:
        front = otmd.lossy_frontier(p, law, name)
        least = float(name == "leniency")
        cost = np.asarray(front.divergence_at((0.5, 0.9, 0.99))).tolist()
        out |= {
            f"frontier {name}: rate": np.asarray(front.rate_at((least, least + 0.01, least + 0.2))).tolist(),
            f"frontier {name}: divergence": ["inf" if x == np.inf else x for x in cost],
            f"frontier {name}: output": front.output_distribution(least + 0.01).tolist(),
        }
    return out


def fractions(law_name: str, p: list[str], law: list[Any]) -> Values:
    tables = {
        "WithReplacement": exact.with_replacement,
        "WithoutReplacement": exact.without_replacement,
        "Independent": exact.independent,
    }
    best = exact.optimal_acceptance(p, tables[law_name](*law))
    out: Values = {"exact optimum": str(best.rate), "exact cut": list(best.subset)}
    if law_name == "WithReplacement":
        out["exact k-sequential"] = str(exact.k_sequential(p, *law)[1].evalf(30))
    return out


def tree(kind: str, target: Any, draft: Any, law: list[Any], exactly: bool = False) -> Values:
    """The tokens per step of each rule that serves the tree, the bias of its output, and the bounds."""
    target = trees.TableModel([unit(table) for table in target])
    draft_model = trees.TableModel(draft if exactly else [unit(table) for table in draft])
    drafted = TREES[kind](draft_model, *law)
    out: Values = {"best tokens": trees.optimal_block_efficiency(target, drafted).value}
    if kind != "adaptive":
        out["tokens bound"] = trees.tokens_per_step(trees.InclusionBound(), target, drafted).value
    expected = trees.target_distribution(target, drafted.depth + 1)
    for name, rule in RULES.items():
        try:
            out[f"tokens {name}"] = trees.tokens_per_step(rule, target, drafted).value
        except otmd.UnsupportedLaw:
            continue
        if expected.size <= 8:
            output = trees.output_distribution(rule, target, drafted)
            out[f"bias {name}"] = float(np.abs(output - expected).max())
    return out


def recorded(rng: np.random.Generator, law: str, num_drafts: int, verifier: str, rows: int, depth: int = 1,
             fault: str = "") -> Iterator[Values]:  # fmt: skip
    """The rows of a simulated engine: 30 tokens, and 20 contexts at random."""
    logits = rng.normal(0, 2, (20, 30))
    logits[:, 7] = -np.inf if fault == "a token without mass" else logits[:, 7]
    p = otmd.probs_from_logits(logits)
    q = otmd.probs_from_logits(logits + rng.normal(0, 2.5, logits.shape))
    recorded_q = unit(np.sqrt(q)) if fault == "another q" else q
    hot = unit(p**0.4)
    laws = [LAWS[law](x, num_drafts) for x in q]

    @cache
    def rule(context: int, level: int) -> tuple[Array, Any]:
        faulty = fault == "temperature" or (fault == "second level" and level == 1)
        used = (hot if faulty else p)[context]
        return used, VERIFIERS[verifier].prepare(used, laws[context])

    row = step = 0
    while row < rows:
        for level in range(depth + 1):
            context = int(rng.integers(20))
            output, prepared = rule(context, level)
            at = {"step": step, "depth": level, "target_probs": p[context]}
            tokens = np.empty(0, np.int64)
            if level < depth:
                tokens = laws[context].sample(rng=rng)
                tokens = tokens[:1].repeat(num_drafts) if fault == "equal drafts" else tokens
                at["draft_probs"] = recorded_q[context]
                output = prepared.conditional_law(tokens)
                drafted = np.isin(np.arange(30), tokens)
                if fault == "unverified":
                    output = unit(drafted)
                elif fault == "residual":
                    output = np.where(drafted, output, 0) + output[~drafted].sum() * q[context]
            token = int(rng.choice(30, p=unit(output)))
            token = 7 if fault == "a token without mass" and row == 200 else token
            yield at | {"draft_tokens": tokens, "output_token": token}
            row += 1
            if token not in tokens:
                break
        step += 1


def run(seed: int = 0, **given: Any) -> Values:
    rows = [*recorded(np.random.default_rng([5, seed]), **given)]
    return judged(otmd.audit.recorded_run(rows, given["law"], bias=0.3))


def chain_texts(rng: np.random.Generator, table: Array, count: int, faulty: int) -> list[Values]:
    """Texts of a Markov chain; at the index ``faulty`` the token before the last decides."""
    rows = []
    for _ in range(count):
        text = [0]
        for index in range(8):
            row = table[text[-2 if index == faulty else -1]]
            text.append(int(rng.choice(row.size, p=row)))
        rows.append({"prompt_tokens": text[:1], "output_tokens": text[1:]})
    return rows


def texts(count: int, temperature: float = 1.0, faulty: int = -1, seed: int = 0) -> Values:
    rng = np.random.default_rng([6, seed])
    logits = 2 * rng.standard_normal((20, 20))
    rows = chain_texts(rng, otmd.probs_from_logits(logits / temperature), count, faulty)

    def oracle(prefixes: list[tuple[int, ...]]) -> Array:
        return logits[[prefix[-1] for prefix in prefixes]]

    return judged(otmd.audit.texts(rows, oracle, bias=0.3))


def judged(report: Any) -> Values:
    return {
        "verdict": report.outcome,
        "verdict by side": {part.subject: part.outcome for part in report.statements},
        "refuted": sorted(claim.name for claim in report.claims if claim.refuted),
        "cases": sorted(event.kind for event in report.events),
    }


def data(kind: str, target: Any, draft: Any, steps: list[Values]) -> Values:
    """A data set as ``measure`` sees it; a logit None is −∞."""
    arrays = {}
    for side, rows in (("target", target), ("draft", draft)):
        given = np.array([[-np.inf if x is None else x for x in row] for row in rows])
        arrays[f"{side}_{kind}"] = unit(given) if kind == "probs" else given
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **arrays, prompt_id=np.array([f"p{i // 2}" for i in range(len(target))]))
        table = otmd.measure(
            open_dataset(path),
            laws=[(name, LAWS[name]) for name in MEASURED],
            verifiers=list(VERIFIERS.values()),
            num_drafts=(1, 2, 3),
            processing=[otmd.Processing(**step) for step in steps],
            workers=1,
        )
    out: Values = defaultdict(list)
    for row in table.iter_rows(named=True):
        cell = f"T={row['temperature']:g} k={row['top_k']} {row['law']} {row['num_drafts']}"
        out[f"bounds {cell} {row['verifier']}"].append([row["rate_low"], row["rate_high"]])
        if len(out[f"optima {cell}"]) == row["index"]:
            out[f"optima {cell}"].append(row["optimal"])
    return dict(out)


KINDS: dict[str, Any] = {
    function.__name__: function for function in (position, large, frontier, fractions, tree, run, texts, data)
}


def values(group: str, given: Values) -> Values:
    """The answers of otmd for an instance of a group, such as ``position greedy``."""
    kind, *law = group.split(maxsplit=1)
    # Some answers are known to be no number; JSON has none.
    with np.errstate(all="ignore"):
        answered = json.dumps(KINDS[kind](*law, **given))
    return json.loads(answered, parse_constant=lambda _: None)


# ---------------------------------------------------------------- comparison


TOLERANCES = {
    **dict.fromkeys(("optimum", "optima", "rate", "enumerated", "bounds"), 1e-12),
    **dict.fromkeys(("inclusion", "containment", "bias", "mass", "cut"), 1e-12),
    **dict.fromkeys(("tokens", "frontier"), 1e-10),
    "attained": 1e-9,
    "best": 1e-8,
}
"""Largest distance of a value from the golden one, by the first word of its name. Others must be equal."""
WIDTH = 1e-4
"""Largest width of the bounds of a rate without closed form."""


def distance(key: str, given: Any, golden: Any) -> float:
    """Distance of a value from the golden one; inf for another shape, and for what is no number.

    Bounds must hold the golden rate, or meet the golden bounds, and coincide where those do. What ``Optimal``
    attains may be more. Further claims may be refuted.
    """
    kind = key.split()[0]
    if kind == "refuted":
        return 0.0 if set(golden) <= set(given) else np.inf
    if kind not in TOLERANCES:
        return 0.0 if given == golden else np.inf
    given, golden = np.array(given, np.float64), np.array(golden, np.float64)
    if kind == "rate":
        given, golden = np.broadcast_to(given, 2), np.broadcast_to(golden, 2)
    if given.shape != golden.shape or (np.isnan(given) != np.isnan(golden)).any():
        return np.inf
    if kind in ("rate", "bounds"):
        (low, high), (least, most) = given.T, golden.T
        apart = [low - most, least - high, high - low - np.where(least < most, WIDTH, 0.0)]
    else:
        apart = np.where(given == golden, 0.0, golden - given)
        apart = apart if kind == "attained" else np.abs(apart)
    # NaN stands for a law that is undefined at a position.
    return max(0.0, float(np.nanmax(apart, initial=0.0)))


def is_right(key: str, given: Any, golden: Any) -> bool:
    return distance(key, given, golden) <= TOLERANCES.get(key.split()[0], 0.0)


# ---------------------------------------------------------------- writing


def check(group: str, given: Values, out: Values) -> None:
    """Check answers by brute force or by bounds; those of frontiers, fractions and data are not checked.

    α* of a position is that of all subsets and drafts, of a large vocabulary that of its cut. Rates are those
    over all drafts, and at most α*. On trees, the optimum is between the rules and the bound.
    """
    best = [value for key, value in out.items() if key in ("optimum of the cut", "best tokens")]
    if group.startswith("position"):
        p, law = pair(group.split()[1], **given)
        tuples, probs = law.enumerate()
        subsets = np.array([*product([False, True], repeat=p.size)])
        contained = [probs[subset[tuples].all(axis=-1)].sum() for subset in subsets]
        best.append(1.0 + (subsets @ p - contained).min())
    for key, value in out.items():
        kind, _, name = key.partition(" ")
        if key == "optimum":
            assert np.ptp([value, *best]) <= 1e-12, (group, given, value, best)
        elif kind == "rate":
            enumerated = out.get(f"enumerated {name}", value[0])
            assert value[0] - 1e-12 <= enumerated <= min(value[1], best[0]) + 1e-12, (group, given, key)
        elif kind == "tokens":
            above, below = (value, best[0]) if name == "bound" else (best[0], value)
            assert above >= below - 1e-8, (group, given, key)


def right_values(group: str, given: Values, out: Values) -> Values:
    """The golden values where otmd answers ``out``: outputs have no bias, and ``Optimal`` attains α*.

    Of a run or of texts, further seeds must be judged alike; what only some of them refute is no value.
    """
    check(group, given, out)
    if group in ("run", "texts"):
        for seed in range(1, 6):
            other = values(group, given | {"seed": seed})
            out = out | {"refuted": sorted({*out["refuted"]} & {*other["refuted"]})}
            assert other | {"refuted": out["refuted"]} == out, (group, given, other, out)
    right = out | {key: 0.0 for key in out if key.startswith("bias")}
    right |= {key: out["optimum"] for key in out if key.startswith("attained")}
    rates = {key: value for key, value in out.items() if key.startswith("rate")}
    return right | {key: low for key, (low, high) in rates.items() if low == high}


def lines_of(value: Values, depth: int) -> str:
    """JSON with a line for each entry of the outer levels."""
    entries = (
        f"{json.dumps(key)}: {lines_of(x, depth - 1) if depth > 1 else json.dumps(x, ensure_ascii=False)}"
        for key, x in value.items()
    )
    return "{\n" + ",\n".join(entries) + "\n}"


def write() -> None:
    golden = json.loads(FILE.read_text("utf-8"))
    for group, instances in golden.items():
        for name, instance in instances.items():
            if "out" not in instance:
                out = values(group, instance["in"])
                instance["out"] = right_values(group, instance["in"], out)
                wrong = [key for key, right in instance["out"].items() if not is_right(key, out[key], right)]
                assert not wrong, (group, name, wrong)
    FILE.write_text(lines_of(golden, depth=2) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/golden.py --write")
    write()
