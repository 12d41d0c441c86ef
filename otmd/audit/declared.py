"""Laws of drafts that a recorded run declares by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from otmd.laws import ConditionalPoisson, DraftLaw, WithoutReplacement, WithReplacement
from otmd.laws.base import validate_one_position
from otmd.probabilities import FloatArray, IntArray, wrong
from otmd.registry import LAWS
from otmd.storage.files import one_line

LawMaker = Callable[[FloatArray, int], DraftLaw]
"""From q (V,) and the number of drafts to their law."""
# The law of plain decoding.
NO_DRAFTS = "none"
# A row records one q, which independent drafts share. Fixed drafts are decided by the text before them:
# n-grams, the argmax, the most likely tokens of a tree.
MAKERS: dict[str, LawMaker | None] = {
    **{entry.name: entry.load() for entry in LAWS.values() if entry.audited},
    "independent": WithReplacement,
    "fixed": None,
    NO_DRAFTS: None,
}
# Renaming tokens renames their drafts; other laws have an order of equally likely tokens.
WITHOUT_ORDER = (WithReplacement, WithoutReplacement, ConditionalPoisson)


def law_name(law: object) -> str:
    """The name of a law on the command line, with the law's parameters."""
    if isinstance(law, partial):
        parameters = ", ".join(f"{name}={value!r}" for name, value in law.keywords.items())
        return f"{law_name(law.func)} ({parameters})"
    name = law if isinstance(law, str) else getattr(law, "__name__", repr(law))
    return one_line(re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower())


def law_maker(law: str | LawMaker) -> LawMaker | None:
    """The maker of a law, given as such or by name; None for fixed drafts, ValueError for an unknown name."""
    if callable(law):
        return law
    if law not in MAKERS:
        raise wrong("law", repr(law), f"one of {', '.join(MAKERS)}, or a callable")
    return MAKERS[law]


def declared_law(
    make: LawMaker, draft_probs: FloatArray, draft_tokens: IntArray
) -> tuple[DraftLaw, list[FloatArray]] | None:
    """The law of a row's drafts (n,), and the distribution (V,) of each draft given those before it.

    None for drafts that the law never draws.
    """
    try:
        law = make(draft_probs, draft_tokens.size)
    except ValueError:
        # Fewer tokens with mass than drafts, or a number of drafts that the law is not defined for.
        return None
    structure = validate_one_position(law).position_structure
    top = draft_tokens[: structure.deterministic.size]
    if structure.deterministic_first and (top != structure.deterministic).any():
        # The engine may break ties of q in another way. By one unit in the last place, its tokens win them.
        steps = np.zeros(draft_probs.size)
        steps[top] = np.arange(top.size, 0, -1)
        law = make(draft_probs + steps * np.spacing(draft_probs), draft_tokens.size)
        structure = law.position_structure
    probs = [structure.next_draft_probs(draft_tokens[:j]) for j in range(draft_tokens.size)]
    possible = all(row[token] > 0 for row, token in zip(probs, draft_tokens, strict=True))
    return (law, probs) if possible else None
