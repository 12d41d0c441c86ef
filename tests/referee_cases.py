"""The laws in ``otmd/testing/referee_cases.json``, which ``python tests/referee_cases.py`` writes.

A new case is a line of the file without its laws. Distributions are weights, so that laws are rational. A
level has a row for each token above, or one row for all of them; the draft has a row for each sibling, which
for strata has the weights of its stratum alone. Probabilities are the fractions of ``reference.py``, each
rounded once, where it has the rule, and otherwise those that otmd enumerates.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import reference

import otmd
import otmd.testing
from otmd import trees
from otmd.trees.base import Context
from otmd.trees.random_choices import every_outcome

FILE = Path(otmd.testing.__file__).with_name("referee_cases.json")
RULES: dict[str, dict[str, trees.TreeVerifier]] = {
    "chain": {
        "token-level": trees.TokenLevel(otmd.RecursiveRejection()),
        "block": trees.BlockVerification(),
    },
    "with replacement": {
        "recursive rejection": trees.TokenLevel(otmd.RecursiveRejection()),
        "k-seq": trees.TokenLevel(otmd.KSequential()),
    },
    "without replacement": {
        "recursive rejection": trees.TokenLevel(otmd.RecursiveRejection()),
        "traversal": trees.Traversal(),
    },
    "strata": {
        "preference": trees.TokenLevel(otmd.Preference()),
        "layer": trees.LayerVerification(),
    },
}
LAWS: dict[str, Callable] = {
    "chain": otmd.WithReplacement,
    "with replacement": otmd.WithReplacement,
    "without replacement": otmd.WithoutReplacement,
    "strata": otmd.Stratified,
}


def model(levels: list, convert: Callable[[list], Any]) -> Callable[[tuple[int, ...]], Any]:
    """Levels of weights as a function of the prefix."""

    def row(prefix: tuple[int, ...]) -> Any:
        level = levels[len(prefix)]
        return convert(level[prefix[-1] if prefix and len(level) > 1 else 0])

    return row


def by_otmd(case: dict[str, Any], rule: str) -> dict[str, float]:
    """The probability of each output, all drafts and all random choices of the rule enumerated."""
    unit = lambda weights: np.array(weights) / np.sum(weights)  # noqa: E731
    # The draft's row of a node is the sum of its strata.
    draft = [
        np.array(level).sum(1) if case["drafts"] == "strata" else np.array(level)[:, 0]
        for level in case["draft"]
    ]
    tree = trees.TokenTree(model(draft, unit), case["branching"], LAWS[case["drafts"]])
    law: dict[str, float] = defaultdict(float)
    run = partial(RULES[case["drafts"]][rule].run, Context(model(case["target"], unit), tree))
    for output, probability in every_outcome(run):
        law[" ".join(map(str, output))] += probability
    return {output: law[output] for output in sorted(law) if law[output] > 0}


def by_twins(case: dict[str, Any], rule: str) -> dict[str, float] | None:
    """The same in fractions, each rounded once; None where ``reference.py`` lacks the rule."""
    exact = lambda weights: reference.normalised(reference.exact(weights))  # noqa: E731
    target = model(case["target"], exact)
    draft = model([[siblings[0] for siblings in level] for level in case["draft"]], exact)
    if case["drafts"] == "strata":
        return None
    replaced = case["drafts"] == "with replacement"
    law_of = reference.with_replacement if replaced else reference.without_replacement
    drawn = reference.trees_by_layer(draft, case["branching"], law_of)
    if rule in ("block", "traversal"):
        decide = reference.traversal(target, draft)
    elif rule in ("token-level", "recursive rejection"):
        verifier = reference.rrs if replaced else reference.rrsw
        decide = reference.token_level(target, draft, lambda p, q, _: verifier(p, q))
    else:
        return None
    law = reference.emitted(drawn, decide)
    return {" ".join(map(str, output)): float(law[output]) for output in sorted(law, key=str)}


def laws(case: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The law of every rule that serves the case."""
    return {rule: by_twins(case, rule) or by_otmd(case, rule) for rule in RULES[case["drafts"]]}


if __name__ == "__main__":
    cases = json.loads(FILE.read_text("utf-8"))
    lines = [json.dumps(case | {"laws": laws(case)}) for case in cases]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
