"""The laws, verifiers and tree verifiers of otmd, by the names in the command line, docs and tests.

A class is imported when it is first used, so that listing names is quick. A new law or verifier is one line
here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A public class of otmd.

    Attributes
    ----------
    class_name, title : str
        The name in ``otmd``, and a few words for messages.
    measured, compared : bool
        Whether :func:`otmd.measure` and :func:`otmd.compare` include it by default.
    """

    class_name: str
    title: str
    measured: bool = True
    compared: bool = True

    @property
    def name(self) -> str:
        """The name on the command line, such as ``top-then`` for ``TopThen``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.class_name).lower()

    def load(self) -> Any:
        """The class."""
        return getattr(import_module("otmd"), self.class_name)


@dataclass(frozen=True)
class LawEntry(Entry):
    """A law of drafts.

    Attributes
    ----------
    audited : bool
        Whether a recorded run may declare it by name: a row records one q, and no further parameter.
    tensor_form : str
        The closed forms on tensors that hold for it: ``"single"``, ``"greedy"`` or none.
    """

    audited: bool = True
    tensor_form: str = ""


@dataclass(frozen=True)
class VerifierEntry(Entry):
    """A verifier.

    Attributes
    ----------
    coupling : bool
        Whether it is a coupling without communication. These verify no trees, and take longer than others.
    reported_names : tuple of str
        Names from the literature under which its rates are reported, where it is the same verifier.
    """

    coupling: bool = False
    reported_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class TreeVerifierEntry(Entry):
    """A verifier of draft trees. It decides itself about a law of trees: UnsupportedLaw.

    Attributes
    ----------
    short_name : str
        The name on the command line, where it is not that of the class.
    node_verifier : VerifierEntry, optional
        For :class:`~otmd.trees.TokenLevel`, the verifier that decides at each node.
    """

    short_name: str = ""
    node_verifier: VerifierEntry | None = None

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.short_name or super().name

    def load(self) -> Any:
        """The class, or TokenLevel with its verifier: called without arguments, either makes one."""
        tree_verifier = getattr(import_module("otmd.trees"), self.class_name)
        if self.node_verifier is None:
            return tree_verifier
        return partial(tree_verifier, self.node_verifier.load()())


LAWS = {entry.name: entry for entry in (
    LawEntry("WithReplacement", "drawn independently, with replacement", tensor_form="single"),
    LawEntry("WithoutReplacement", "drawn without replacement, or duplicates redrawn"),
    LawEntry("Stratified", "one draw from each stratum, the head first (stratified)"),
    LawEntry("Greedy", "the most likely tokens and one draw from the rest (greedy)", tensor_form="greedy"),
    LawEntry("Hub", "pairs with the most likely token (SpecHub)", tensor_form="greedy"),
    LawEntry("TopK", "the most likely tokens, all deterministic"),
    LawEntry("ConditionalPoisson", "sets drawn ∝ the product of their masses (conditional Poisson)",
             measured=False),
    LawEntry("TopThen", "the most likely tokens, then draws of another law",
             measured=False, compared=False, audited=False),
    LawEntry("Independent", "drawn independently, each from a distribution of its own",
             measured=False, compared=False, audited=False),
)}  # fmt: skip
"""The laws by their names on the command line, in the order in which they are shown."""

VERIFIERS = {entry.name: entry for entry in (
    VerifierEntry("RecursiveRejection", "recursive rejection"),
    VerifierEntry("KSequential", "K-SEQ"),
    VerifierEntry("SpecHub", "SpecHub"),
    VerifierEntry("Preference", "the preference rule",
                  reported_names=("MaximalCoupling", "GreedyCoupling")),
    VerifierEntry("TargetOnly", "target-only sampling"),
    VerifierEntry("PoissonCoupling", "Poisson coupling", measured=False, coupling=True),
    VerifierEntry("Optimal", "the optimal verifier", measured=False),
)}  # fmt: skip
"""The verifiers by their names on the command line, in the order in which they are shown.

Optimal attains α*, which every measured row holds in any case, and takes longer than all the others.
"""

TREE_VERIFIERS = {entry.name: entry for entry in (
    *(TreeVerifierEntry("TokenLevel", f"{entry.title} at each node", short_name=name, node_verifier=entry)
      for name, entry in VERIFIERS.items() if not entry.coupling),
    TreeVerifierEntry("BlockVerification", "block verification"),
    TreeVerifierEntry("Traversal", "traversal verification"),
    TreeVerifierEntry("SubtreeVerification", "node by node", short_name="subtree"),
    TreeVerifierEntry("LayerVerification", "layer by layer", short_name="layer"),
    TreeVerifierEntry("GreedyMultiPath", "greedy multi-path verification"),
)}  # fmt: skip
"""The tree verifiers by their names on the command line, in the order in which they are shown."""


# Names from the literature and from other packages, for what otmd names otherwise.
_SYNONYMS = {
    **dict.fromkeys(("rrs", "rrsw", "rrswo", "specinfer", "mss"), "recursiverejection"),
    **dict.fromkeys(("kseq", "spectr"), "ksequential"),
    **dict.fromkeys(("iid", "sampling"), "withreplacement"),
    **dict.fromkeys(("gumbeltopk", "rsd"), "withoutreplacement"),
    **dict.fromkeys(("gumbel", "gumbelcoupling"), "poissoncoupling"),
    **dict.fromkeys(("softmax", "processlogits"), "probsfromlogits"),
    **dict.fromkeys(("optimalrate", "alpha", "alphastar"), "optimalacceptance"),
}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def nearest(name: str, names: Iterable[str]) -> str:
    """The one of the names that a synonym or a misspelt name means; empty if none is near."""
    by_letters = {_letters(meant): meant for meant in names}
    meant = _SYNONYMS.get(_letters(name), _letters(name))
    return by_letters.get(next(iter(get_close_matches(meant, by_letters, 1, 0.75)), ""), "")


def find(argument: str, name: str, registry: Mapping[str, Entry]) -> Entry:
    """The entry of a name on the command line, a class name or a title, such as K-SEQ; else ValueError."""
    for entry in registry.values():
        if _letters(name) in (_letters(entry.class_name), _letters(entry.title)):
            return entry
    meant = nearest(name, registry)
    hint = f": is {meant} meant?" if meant else ""
    raise ValueError(f"{argument}: got {name!r}, expected one of {', '.join(registry)}{hint}")
