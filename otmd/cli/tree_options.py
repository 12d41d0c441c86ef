"""How the options that name a draft tree and a rule are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from otmd.cli import UsageError
from otmd.cli.options import LAWS, VERIFIERS, counts, split

if TYPE_CHECKING:
    from otmd.harness import Draft, Speculation
    from otmd.probabilities import Processing
    from otmd.sequences import SequenceRule, TreeLaw

PATH_RULES = {"block-verification": "BlockVerification", "traversal": "Traversal"}
RULES = (*VERIFIERS, *PATH_RULES)
DEFAULT_DEPTH, DEFAULT_LIKELIEST = 4, 12
# What serves each kind of tree, and does best at no cost.
DEFAULT_RULES = {
    "paths": "k-sequential",
    "with-replacement": "k-sequential",
    "without-replacement": "recursive-rejection",
    "greedy": "greedy-coupling",
    "hub": "spec-hub",
    "conditional-poisson": "target-only",
    "likeliest": "target-only",
}
# A toy of this size finds out whether a rule serves a tree before any model is loaded.
TOY_TOKENS = 64


@dataclass(frozen=True)
class Tree:
    """A draft tree as the options name it.

    Attributes
    ----------
    kind : str
        A key of ``DEFAULT_RULES``.
    label : str
        For tables.
    depth : int
        Its longest path.
    law : callable
        From a draft model to the law of trees.
    """

    kind: str
    label: str
    depth: int
    law: "Callable[[Any], TreeLaw]"

    def draft_processing(self, target: "Processing") -> "Processing":
        """What the draft is processed with.

        The likeliest paths are the model's own, and a law of one token, which temperature 0 makes, has no
        second draft; whatever else is drawn from is processed like the target.
        """
        from otmd.probabilities import Processing

        own = self.kind == "likeliest" or target.temperature == 0
        return Processing() if own else target


def read_tree(
    paths: int | None,
    branching: str | None,
    law: str | None,
    likeliest: int | None,
    depth: int | None,
) -> Tree:
    """Read the options of a tree: one of ``paths``, ``branching`` and ``likeliest``, or none."""
    from otmd import drafts, sequences

    given = {"--paths": paths, "--branching": branching, "--likeliest": likeliest}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)}: got both, wanted one shape of tree")
    if law is not None and branching is None:
        raise UsageError(f"--law: got {law!r} without --branching, whose nodes it is for")
    if branching is not None:
        if depth is not None:
            raise UsageError("--depth: got it beside --branching, which says how deep it is")
        shape = tuple(counts("--branching", piece)[0] for piece in split("--branching", branching))
        name = law or "without-replacement"
        if name not in LAWS:
            raise UsageError(f"--law: got {name!r}, wanted one of {', '.join(LAWS)}")
        node_law = getattr(drafts, LAWS[name])
        label = f"tree {'×'.join(map(str, shape))}, {name}"
        return Tree(
            name, label, len(shape), lambda model: sequences.TokenTree(model, shape, node_law)
        )
    length = depth or DEFAULT_DEPTH
    if paths is not None:
        label = f"{paths} paths of {length}"
        return Tree("paths", label, length, lambda model: sequences.IIDPaths(model, paths, length))
    budget = likeliest or DEFAULT_LIKELIEST
    label = f"likeliest {budget}, depth {length}"
    return Tree(
        "likeliest", label, length, lambda model: sequences.LikeliestTree(model, budget, length)
    )


def read_rule(name: str | None, tree: Tree) -> "tuple[str, SequenceRule]":
    """Read the name of a rule, by default the one for this kind of tree, and see that it serves the tree."""
    from otmd import sequences, verifiers

    chosen = name or DEFAULT_RULES[tree.kind]
    if chosen not in RULES:
        raise UsageError(f"--rule: got {chosen!r}, wanted one of {', '.join(RULES)}")
    if chosen in PATH_RULES:
        rule = getattr(sequences, PATH_RULES[chosen])()
    else:
        rule = sequences.TokenLevel(getattr(verifiers, VERIFIERS[chosen])())
    toy = np.full(TOY_TOKENS, 1 / TOY_TOKENS)
    try:
        rule.step(lambda _: toy, tree.law(lambda _: toy), rng=np.random.default_rng(0))
    except ValueError as error:
        raise UsageError(f"--rule: {chosen} does not serve this tree: {error}") from error
    return chosen, rule


def ways_of_decoding(
    draft: "Draft", tree: Tree, rule_name: str, rule: "SequenceRule", processing: "Processing"
) -> "dict[str, Speculation | None]":
    """The target alone, a single path as long as the tree is deep, and the tree, by their names in tables."""
    from otmd.harness import Speculation
    from otmd.sequences import IIDPaths, TokenLevel
    from otmd.verifiers import MaximalCoupling

    one = Speculation(
        draft, lambda model: IIDPaths(model, 1, tree.depth), TokenLevel(MaximalCoupling())
    )
    chosen = Speculation(draft, tree.law, rule, tree.draft_processing(processing))
    return {
        "target alone": None,
        f"one path of {tree.depth}": one,
        f"{tree.label}; {rule_name}": chosen,
    }
