"""The cases of ``otmd/testing/referee_cases.json``: ``python tests/referee_cases.py`` writes the file.

Distributions are weights, so that laws are rational. Probabilities are the fractions of ``reference.py``,
each rounded once, where it has the rule, and otherwise those that otmd enumerates.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
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
Laws = dict[str, dict[str, float]]

# A level of weights has a row for each token above, or one row for all of them: name, target, draft.
ONE_ROW_DRAFTED: list[tuple[str, list, list]] = [
    ("ordinary", [5, 3, 1, 1], [1, 2, 3, 4]),
    ("no target mass on the most likely draft", [0, 5, 3, 2], [7, 1, 1, 1]),
    ("no draft mass on the most likely target", [7, 1, 1, 1], [0, 5, 3, 2]),
    ("ties in the ratio", [2, 2, 1, 1, 2], [1, 1, 2, 2, 2]),
    ("equal", [5, 3, 1, 1], [5, 3, 1, 1]),
    ("disjoint supports", [5, 3, 0, 0], [0, 0, 1, 2]),
    ("one-hot draft", [5, 3, 1, 1], [0, 1, 0, 0]),
    ("one-hot target", [0, 0, 1, 0], [5, 3, 1, 1]),
    ("tokens that the target seldom takes", [20, 1, 1, 1, 1, 1], [2, 3, 4, 5, 6, 5]),
    ("uniform target of eight tokens", [1] * 8, [8, 7, 6, 5, 4, 3, 2, 1]),
]
CHAINS: list[tuple[str, list, list]] = [
    ("block accepts more than token", [[[1, 2]]] * 3, [[[2, 1]]] * 2),
    (
        "the target turns with the draft",
        [[[6, 3, 1]], [[8, 1, 1], [1, 8, 1], [1, 1, 8]], [[1, 1, 8], [8, 1, 1], [1, 8, 1]]],
        [[[1, 3, 6]], [[3, 3, 4], [4, 3, 3], [3, 4, 3]]],
    ),
    (
        "zeros one level down",
        [[[2, 1, 1]], [[0, 1, 3], [2, 0, 2], [1, 1, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]],
        [[[1, 1, 2]], [[3, 1, 0], [1, 2, 1], [0, 1, 3]]],
    ),
    (
        "drafted too often, too rarely, too often",
        [[[4, 1]], [[1, 4], [2, 3]], [[4, 1], [1, 1]], [[1, 9], [9, 1]]],
        [[[1, 4]], [[1, 4], [9, 1]], [[1, 4], [1, 1]]],
    ),
    (
        "three drafts of three tokens",
        [
            [[5, 3, 2]],
            [[1, 2, 7], [3, 3, 4], [6, 2, 2]],
            [[2, 5, 3]],
            [[7, 2, 1], [1, 7, 2], [2, 1, 7]],
        ],
        [[[2, 3, 5]], [[4, 4, 2], [2, 6, 2], [5, 0, 5]], [[3, 2, 5], [1, 1, 1], [2, 2, 6]]],
    ),
    (
        "four drafts, one of them certain",
        [[[3, 2]], [[1, 1], [4, 1]], [[2, 3]], [[1, 4], [3, 2]], [[1, 9], [4, 1]]],
        [[[1, 1]], [[3, 1], [1, 3]], [[0, 1]], [[2, 3]]],
    ),
    (
        "five drafts",
        [
            [[3, 2]],
            [[1, 4], [4, 1]],
            [[2, 3], [3, 2]],
            [[1, 2]],
            [[4, 1], [1, 4]],
            [[9, 1], [1, 9]],
        ],
        [[[2, 3]], [[2, 3], [3, 2]], [[1, 1]], [[3, 1], [1, 3]], [[1, 3], [2, 1]]],
    ),
    (
        "five drafts from the target itself",
        [[[3, 2]], [[1, 4], [4, 1]], [[2, 3]], [[1, 2]], [[4, 1], [1, 4]], [[9, 1], [1, 9]]],
        [[[3, 2]], [[1, 4], [4, 1]], [[2, 3]], [[1, 2]], [[4, 1], [1, 4]]],
    ),
]
TURNING = [[1, 4, 2], [3, 1, 3], [1, 1, 5]]
SEVERAL: list[tuple[str, str, tuple[int, ...], list, list]] = [
    ("two drafts", "with replacement", (2,), [[[5, 3, 2]], TURNING], [[[2, 3, 5]]]),
    (
        "three drafts, mostly the same",
        "with replacement",
        (3,),
        [[[2, 5, 3]], TURNING],
        [[[8, 1, 1]]],
    ),
    (
        "two distinct drafts",
        "without replacement",
        (2,),
        [[[1, 3, 4, 2]], [[1, 2, 3, 4], [4, 3, 2, 1], [1, 1, 1, 1], [5, 1, 1, 3]]],
        [[[6, 1, 2, 1]]],
    ),
    (
        "three distinct drafts of four tokens, one without mass",
        "without replacement",
        (3,),
        [[[1, 1, 2, 6]], [[1, 2, 3, 4], [4, 3, 2, 1], [1, 1, 1, 1], [5, 1, 1, 3]]],
        [[[5, 3, 2, 0]]],
    ),
    ("two strata", "strata", (2,), [[[3, 2, 4, 1]], [[1, 2, 3, 4]]], [[[4, 3, 2, 1]]]),
    (
        "three strata, no target on the first",
        "strata",
        (3,),
        [[[0, 5, 2, 3]], [[1, 1, 1, 2]]],
        [[[6, 3, 2, 1]]],
    ),
    (
        "two levels of two drafts",
        "with replacement",
        (2, 2),
        [[[5, 3, 2]], TURNING, [[1, 2, 3], [3, 2, 1], [2, 2, 2]]],
        [[[2, 3, 5]], [[3, 3, 1], [1, 4, 1], [2, 1, 1]]],
    ),
    (
        "two distinct drafts, one below each",
        "without replacement",
        (2, 1),
        [[[5, 3, 2]], TURNING, [[1, 2, 3], [3, 2, 1], [2, 2, 2]]],
        [[[1, 3, 6]], [[3, 3, 1], [1, 4, 1], [2, 1, 1]]],
    ),
    (
        "two levels of two strata",
        "strata",
        (2, 2),
        [[[5, 3, 2]], TURNING, [[1, 2, 3], [3, 2, 1], [2, 2, 2]]],
        [[[2, 3, 6]], [[4, 3, 1], [1, 5, 2], [2, 1, 4]]],
    ),
]
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


def cases() -> Iterable[dict[str, Any]]:
    """Every case without its laws."""
    for name, target, draft in ONE_ROW_DRAFTED:
        # The row of the bonus token is another one, and depends on the draft.
        below = [np.roll(np.arange(1, len(target) + 1), i).tolist() for i in range(len(target))]
        yield written(name, "chain", (1,), [[target], below], [[draft]])
    for name, target, draft in CHAINS:
        yield written(name, "chain", (1,) * len(draft), target, draft)
    for several in SEVERAL:
        yield written(*several)


def written(name: str, drafts: str, branching: tuple[int, ...], target: list, draft: list) -> dict[str, Any]:
    """A case as in the file: the draft distribution of each sibling in place of the node's."""
    siblings = [
        [[restricted(drafts, row, count, j) for j in range(count)] for row in level]
        for level, count in zip(draft, branching, strict=True)
    ]
    return {
        "name": name,
        "drafts": drafts,
        "branching": branching,
        "target": target,
        "draft": siblings,
    }


def restricted(drafts: str, row: list[int], count: int, j: int) -> list[int]:
    """The weights of draft j, which for strata are those of its stratum alone."""
    if drafts != "strata":
        return row
    slots = otmd.Stratified(np.array(row) / sum(row), count).position_structure.random
    members = slots.tokens[slots.starts[j] : slots.starts[j + 1]]
    return [weight if token in members else 0 for token, weight in enumerate(row)]


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
    if case["drafts"] not in ("without replacement", "chain", "with replacement"):
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


def laws(case: dict[str, Any]) -> Laws:
    """The law of every rule that serves the case."""
    return {rule: by_twins(case, rule) or by_otmd(case, rule) for rule in RULES[case["drafts"]]}


def text() -> str:
    """The content of the file, a case a line."""
    lines = [json.dumps(case | {"laws": laws(case)}) for case in cases()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
