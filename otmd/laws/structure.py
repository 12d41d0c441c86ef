"""The structure of a draft law at one position: its deterministic tokens, and how the other drafts are drawn.

The structure carries the mathematics: draws, probabilities, containment and inclusion follow from it. The
optimum and verifiers match on the kinds of random drafts, and not on classes of laws. So a law that returns
its structure is served by everything that serves this kind of structure. Input is checked before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from otmd.laws.distinct import Distinct, Race
from otmd.laws.drafts import Drafts
from otmd.laws.slots import Slots
from otmd.probabilities import BoolArray, FloatArray, IntArray

_NO_TOKENS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Structure:
    """The drafts of a position: first the deterministic tokens, then the random drafts.

    Attributes
    ----------
    deterministic : ndarray of int64, shape (m,)
        Tokens that are always drafted, in this order. No random draft is one of them.
    random : Drafts or None
        The other drafts: Slots, a Race, a Table or another kind; None if there are none.
    vocab_size : int
        V.

    Examples
    --------
    >>> import otmd
    >>> structure = otmd.Greedy([0.4, 0.3, 0.2, 0.1], num_drafts=3).position_structure
    >>> structure.deterministic
    array([0, 1])
    >>> structure.random.num_drafts
    1
    """

    deterministic: IntArray
    random: Drafts | None
    vocab_size: int
    deterministic_first: ClassVar[bool] = True
    """Whether the deterministic tokens come before the random drafts, as in all structures but HubPairs."""

    @classmethod
    def of(cls, drafts: Structure | Drafts) -> Structure:
        """The structure, or that of drafts without deterministic tokens; a single random draft has slots."""
        if not isinstance(drafts, Structure):
            drafts = cls(_NO_TOKENS, drafts, drafts.vocab_size)
        random = drafts.random
        if random and random.num_drafts == 1 and not isinstance(random, Slots):
            q = random.probs if isinstance(random, Distinct) else random.inclusion_probs()
            return replace(drafts, random=Slots.single(q, 1))
        return drafts

    @property
    def num_drafts(self) -> int:
        """The number of drafts n."""
        return self.deterministic.size + (self.random.num_drafts if self.random else 0)

    @property
    def slots(self) -> Slots | None:
        """The slots, if all drafts are drawn independently and none is deterministic; else None."""
        random = self.random
        return random if isinstance(random, Slots) and not self.deterministic.size else None

    @property
    def single(self) -> Slots | None:
        """The slots, if all drafts are drawn from one distribution at random; else None."""
        slots = self.slots
        return slots if slots is not None and slots.is_single else None

    @property
    def race(self) -> Race | None:
        """The race, if all drafts are drawn without replacement and none is deterministic; else None."""
        random = self.random
        return random if isinstance(random, Race) and not self.deterministic.size else None

    @property
    def num_tuples(self) -> int:
        """The number of tuples that :meth:`enumerate` goes through."""
        return self.random.num_tuples if self.random else 1

    @property
    def drafted(self) -> BoolArray:
        """Whether a token may be drafted, shape (V,)."""
        drafted = self.random.drafted() if self.random else np.zeros(self.vocab_size, bool)
        drafted[self.deterministic] = True
        return drafted

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw ``count`` tuples, shape (count, n)."""
        first = np.tile(self.deterministic, (count, 1))
        return np.hstack([first, self.random.sample(rng, count)]) if self.random else first

    def _split(self, draft_tokens: IntArray) -> tuple[IntArray, IntArray]:
        """The deterministic and the random drafts of tuples (…, n)."""
        start = self.deterministic.size
        return draft_tokens[..., :start], draft_tokens[..., start:]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        """Whether drafts (n,) may be drawn. It may be True where Q underflows to 0."""
        first, others = self._split(draft_tokens)
        begins = bool((first == self.deterministic).all())
        return begins and (self.random is None or self.random.can_draw(others))

    def tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        """Q of tuples (T, n), shape (T,)."""
        first, others = self._split(draft_tokens)
        begins = (first == self.deterministic).all(axis=-1)
        return begins * (self.random.tuple_prob(others) if self.random else 1.0)

    def next_draft_probs(self, prefix: IntArray) -> FloatArray:
        """Distribution of draft k + 1 given the first k drafts (k,), k < n, shape (V,).

        Zero everywhere if no draws begin with these drafts.
        """
        first, others = self._split(prefix)
        begins = (first == self.deterministic[: first.size]).all()
        if self.random is None or first.size < self.deterministic.size:
            return begins * np.eye(1, self.vocab_size, self.deterministic[first.size])[0]
        return begins * self.random.next_draft_probs(others)

    def containment(self, subset: BoolArray) -> float:
        """g(H) of a subset (V,): 0 if it lacks a deterministic token, else g of the random drafts."""
        if not subset[self.deterministic].all():
            return 0.0
        return self.random.containment(subset) if self.random else 1.0

    def inclusion_probs(self) -> FloatArray:
        """P(token is among the drafts), shape (V,)."""
        drafted = self.random.inclusion_probs() if self.random else np.zeros(self.vocab_size)
        drafted[self.deterministic] = 1.0
        return drafted

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        if self.random is None:
            return self.deterministic[None], np.ones(1)
        tokens, probs = self.random.enumerate()
        return np.hstack([np.tile(self.deterministic, (len(tokens), 1)), tokens]), probs

    def widened(self, vocab_size: int) -> Structure:
        """The same drafts in a larger vocabulary; they are never one of the additional tokens."""
        random = self.random.widened(vocab_size) if self.random else None
        return replace(self, random=random, vocab_size=vocab_size)

    def random_probs(self) -> FloatArray | None:
        """The distribution that a token is drawn from at random, q or that of its stratum, (V,).

        0 everywhere if all drafts are deterministic; None for other random drafts.
        """
        match self.random:
            case None:
                return np.zeros(self.vocab_size)
            case Slots() as slots if slots.is_single or slots.is_strata:
                return slots.token_probs
            case Distinct(probs=q):
                return q
        return None

    def prefix_containment(self, order: IntArray) -> FloatArray:
        """Containment g of each prefix of the tokens in an order (V,), shape (V + 1,).

        The order begins with the deterministic tokens, and :meth:`random_probs` is not None.
        """
        contained = self.random.prefix_containment(order) if self.random else np.ones(order.size + 1)
        contained[: self.deterministic.size] = 0.0
        return contained

    def random_target(self, target: FloatArray) -> FloatArray:
        """The target (V,) with 0 for the deterministic tokens."""
        if self.deterministic.size:
            target = target.copy()
            target[self.deterministic] = 0.0
        return target
