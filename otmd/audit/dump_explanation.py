"""Which common mistake explains recorded tokens best, over positions with distributions of their own."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from otmd.audit.boundary import law_of
from otmd.audit.drawn import Explanation
from otmd.audit.dump_laws import declared_law, wrong_with_drafts
from otmd.audit.mistakes import mistakes
from otmd.audit.records import NOT_DECIDED, Record
from otmd.drafts import ProposalLaw, WithReplacement
from otmd.probabilities import FloatArray, IntArray

_MOST_POSITIONS = 400
_FEWEST_POSITIONS = 50
_MOST_NUMBERS = 2_000_000
# Less than a thousand to one is no explanation.
_LEAST_GAIN = float(np.log(1000.0))


def explain(records: Iterable[Record], side: str, law: str) -> Explanation | None:
    """The mistake that makes the recorded tokens likeliest, if by a thousand times or more.

    Parameters
    ----------
    records : iterable of Record
        The first of them are looked at: 50 to 400, by the size of the vocabulary.
    side : str
        "draft": the drafts against q under ``law``. "target": the output tokens against p.
    law : str
        The declared law of the drafts.

    Returns
    -------
    Explanation or None
        Its logarithm of the likelihood is that against the record, less the logarithm of the settings tried.
    """
    gains: dict[tuple[str, str], float] = defaultdict(float)
    seen = numbers = 0
    for record in records:
        position = _position(record, side, law)
        if position is None:
            continue
        declared, tokens = position
        _add_gains(gains, declared, tokens)
        seen, numbers = seen + 1, numbers + declared.vocab_size
        if seen >= _MOST_POSITIONS or (seen >= _FEWEST_POSITIONS and numbers >= _MOST_NUMBERS):
            break
    return _best(gains)


def _best(gains: dict[tuple[str, str], float]) -> Explanation | None:
    if not gains:
        return None
    kind, setting = max(gains, key=lambda own: gains[own])
    tried = sum(own == kind for own, _ in gains)
    gain = gains[kind, setting] - float(np.log(tried))
    return (
        Explanation(f"{kind} ({setting})" if setting else kind, gain)
        if gain >= _LEAST_GAIN
        else None
    )


def _add_gains(
    gains: dict[tuple[str, str], float], declared: ProposalLaw, tokens: IntArray
) -> None:
    """Add log-likelihood ratios; a setting that changes nothing at a position, as a large top-k, adds 0."""
    with np.errstate(divide="ignore"):
        own = np.log(declared.tuple_prob(tokens))
        for mistake in mistakes(declared):
            likelihood = np.log(mistake.tuple_prob(tokens[None]))[0]
            gains[mistake.kind, mistake.setting] += float(likelihood - own)


def _position(record: Record, side: str, law: str) -> tuple[ProposalLaw, IntArray] | None:
    """The declared law at a position and the tokens drawn from it, where they are possible."""
    recorded = record.target if side == "target" else record.draft
    output = np.array([record.output_token])
    tokens = output if side == "target" else record.draft_tokens
    if recorded is None or not tokens.size or (side == "target" and output[0] == NOT_DECIDED):
        return None
    probs = law_of(recorded, record.vocab_size)
    if isinstance(probs, str) or tokens.min() < 0 or tokens.max() >= probs.size:
        return None
    if side == "target":
        return (_single(probs), tokens) if probs[output[0]] > 0 else None
    if wrong_with_drafts(law, probs, tokens) is not None:
        return None
    return declared_law(law, probs, tokens.size), tokens


def _single(probs: FloatArray) -> ProposalLaw:
    return WithReplacement(probs, 1)
