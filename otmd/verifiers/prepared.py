"""A verifier prepared for one position: it accepts one of the drafts, or draws from the residual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from otmd.laws import DraftLaw, Slots
from otmd.laws.base import RngLike, validate_rng
from otmd.laws.structure import draw_tokens
from otmd.probabilities import FloatArray, IntArray, validate_count, wrong

# Rounding may move a probability so far outside [0, 1], and the sum of a distribution so far from 1.
_ROUNDING = 1e-9
_SAME_SUM = 1e-6


@dataclass(frozen=True)
class Verdict:
    """The decision of a verifier.

    Attributes
    ----------
    token : int or ndarray of int64, shape (…)
        The output token.
    draft_index : int or ndarray of int64, shape (…)
        The index of the output token among the drafts; −1 where it is none of them.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.5], num_drafts=2)
    >>> otmd.TargetOnly().verify([1.0, 0.0], law, [1, 0], rng=0)
    Verdict(token=0, draft_index=1)
    """

    token: IntArray | int
    draft_index: IntArray | int


class PreparedVerifier(ABC):
    """A verifier prepared for one position, which decides on any number of draws of drafts.

    It looks at the drafts in order and accepts one of them or none. If it accepts none, it draws the output
    from the residual.

    Parameters
    ----------
    target : ndarray of float64, shape (V,)
        p.
    law : DraftLaw
        The law of the drafts, without leading axes.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithReplacement([0.5, 0.5], num_drafts=2)
    >>> prepared = otmd.TargetOnly().prepare([0.75, 0.25], law)
    >>> prepared.conditional_law([0, 0])
    array([0.75, 0.25])
    >>> prepared.verify([0, 1], rng=0)
    Verdict(token=1, draft_index=1)
    """

    def __init__(self, target: FloatArray, law: DraftLaw) -> None:
        self.target = target
        self.law = law

    @abstractmethod
    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        """Probability to accept draft i once all before it were rejected, shape (n,)."""

    @abstractmethod
    def residual(self, draft_tokens: IntArray) -> FloatArray:
        """Residual distribution: that of the output token once all drafts were rejected, shape (V,)."""

    def verify(self, draft_tokens: ArrayLike, *, rng: RngLike) -> Verdict:
        """Decide on drafts (n,); ``rng`` and errors are those of :meth:`Verifier.verify`."""
        ids = self.law.validate_drawable(draft_tokens)
        generator = decision_rng(rng)
        for i, accept in enumerate(self._checked_accept_probs(ids)):
            if generator.random() < accept:
                return Verdict(int(ids[i]), i)
        return verdict_of(int(draw_tokens(self._checked_residual(ids), generator, 1)[0]), ids)

    def conditional_law(self, draft_tokens: ArrayLike) -> FloatArray:
        """Distribution of the output token given the drafts (n,), shape (V,)."""
        ids = np.asarray(draft_tokens)
        output = np.zeros(self.target.size)
        undecided = 1.0
        for token, accept in zip(ids, self._checked_accept_probs(ids), strict=True):
            output[token] += undecided * accept
            undecided *= 1.0 - accept
        if undecided > 0:
            output += undecided * self._checked_residual(ids)
        return output

    def emission_probs(self, token: int, *, rng: RngLike = 0, samples: int = 4) -> FloatArray:
        """Probability that each draft is the first copy of a token, given that the verifier emits it.

        They are exact for most verifiers of otmd. Otherwise the entries are unbiased estimates: the token is
        put at each index in turn, the other drafts are drawn from ``law.next_draft_probs``, and a draw counts
        with the probability that the token is drafted there.

        Parameters
        ----------
        token : int
            The emitted token.
        rng : int, sequence of int, numpy.random.Generator or None
            A seed or a generator, which draws the other drafts for an estimate.
        samples : int
            The number of draws of the other drafts for an estimate.

        Returns
        -------
        ndarray of float64, shape (n, n)
            Entry (i, j) is P(draft i is the first that holds the token, and j later drafts hold it | the
            token is emitted). The sum is P(the token was drafted | it is emitted). The sum of
            :class:`~otmd.Preference`, :class:`~otmd.Optimal` and :class:`~otmd.TargetOnly` is always exact.

        Raises
        ------
        ValueError
            For a token that the target never emits.
        """
        token = validate_count("token", token, minimum=0, maximum=self.target.size - 1)
        if self.target[token] <= 0.0:
            raise wrong("token", token, "a token with mass: the target never emits this one")
        return self._emission_probs(token, validate_rng(rng), validate_count("samples", samples))

    def _emission_probs(self, token: int, rng: np.random.Generator, samples: int) -> FloatArray:
        """The result of :meth:`emission_probs`, for valid input; by default an estimate."""
        n = self.law.num_drafts
        masses = np.zeros((n, n))
        for _ in range(samples):
            # The drafts before the first copy of the token, and the probability that they hold none.
            before = np.empty(0, np.int64)
            weight = 1.0
            for i in range(n):
                probs = np.array(self.law.position_structure.next_draft_probs(before))
                if probs[token] > 0.0:
                    draft_tokens = np.append(before, token)
                    while draft_tokens.size < n:
                        following = self.law.position_structure.next_draft_probs(draft_tokens)
                        draft_tokens = np.append(draft_tokens, draw_tokens(following, rng, 1))
                    emitted = float(self.conditional_law(draft_tokens)[token])
                    more = np.count_nonzero(draft_tokens == token) - 1
                    masses[i, more] += weight * float(probs[token]) * emitted
                probs[token] = 0.0
                weight *= float(probs.sum())
                if weight == 0.0 or i + 1 == n:
                    break
                before = np.append(before, draw_tokens(probs, rng, 1))
        return masses / samples / float(self.target[token])

    def _with_exact_sum(
        self, token: int, total: float, rng: np.random.Generator, samples: int
    ) -> FloatArray:
        """The :meth:`emission_probs` from their sum; estimates where several drafts may hold the token."""
        probs = np.zeros((self.law.num_drafts, self.law.num_drafts))
        leading = self._leading_tokens
        slots = self._slots
        index = leading.size
        if token in leading:
            index = int(np.flatnonzero(leading == token)[0])
        elif slots is not None and slots.disjoint and slots.num_drafts == slots.copies.size:
            index += int(slots.number[token])
        elif total > 0.0:
            probs = PreparedVerifier._emission_probs(self, token, rng, samples)
            total -= float(probs.sum())
        # The error of an estimate goes to the first index, so that the sum stays exact.
        if total != 0.0:
            probs[index, 0] += total
        return probs

    @cached_property
    def _slots(self) -> Slots | None:
        """The slots of the random drafts, if these are independent and come after the deterministic ones."""
        structure = self.law.position_structure
        deterministic, random = structure.deterministic, structure.random
        if isinstance(random, Slots) and self._leading_tokens.size == deterministic.size:
            return random
        return None

    @cached_property
    def _leading_tokens(self) -> IntArray:
        return leading_tokens(self.law)

    def _checked_accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        """The result of :meth:`accept_probs`, checked, since a user may have written the subclass."""
        probs = np.asarray(self.accept_probs(draft_tokens))
        low = probs.min(initial=0.0)
        high = probs.max(initial=0.0)
        # Written so that NaN is refused as well.
        if probs.shape == draft_tokens.shape and low >= -_ROUNDING and high <= 1.0 + _ROUNDING:
            return probs
        expected = f"{draft_tokens.size} probabilities in [0, 1]"
        raise wrong(f"{type(self).__name__}.accept_probs", probs.tolist(), expected)

    def _checked_residual(self, draft_tokens: IntArray) -> FloatArray:
        """The result of :meth:`residual`, checked."""
        probs = np.asarray(self.residual(draft_tokens))
        total = float(probs.sum())
        sums_to_one = abs(total - 1.0) <= _SAME_SUM
        if probs.shape == self.target.shape and sums_to_one and probs.min() >= -_ROUNDING:
            return probs
        given = f"shape {probs.shape} and sum {total!r}"
        expected = f"a distribution of shape {self.target.shape}"
        raise wrong(f"{type(self).__name__}.residual", given, expected)


class Choice(Protocol):
    """A choice of one of the random drafts, or of none, at one position."""

    @cached_property
    @abstractmethod
    def accepted(self) -> FloatArray:
        """Probability that each token is accepted, shape (V,)."""
        ...

    @cached_property
    def rate(self) -> float:
        """Probability that some draft is accepted."""
        ...

    def choice_probs(self, tokens: IntArray, /) -> FloatArray:
        """Probability that each of the drafts (m,) is accepted, given these drafts, shape (m,)."""
        ...


class ChoosingVerifier(PreparedVerifier):
    """A prepared verifier that looks at all drafts at once and accepts one of them or none.

    The ``choice`` is among the random drafts. ``deterministic`` tokens (m,) are emitted only from the
    residual, and count as accepted there.
    """

    def __init__(
        self, target: FloatArray, law: DraftLaw, deterministic: IntArray, choice: Choice | None
    ) -> None:
        super().__init__(target, law)
        self.choice = choice
        self._deterministic = deterministic

    @property
    def accepted(self) -> FloatArray:
        """Probability that each token is accepted by choice, shape (V,)."""
        return self.choice.accepted if self.choice else np.zeros(self.target.size)

    @property
    def rate(self) -> float:
        """The acceptance rate: p of the deterministic tokens, and the rate of the choice."""
        chosen = self.choice.rate if self.choice else 0.0
        return float(self.target[self._deterministic].sum()) + chosen

    def accept_probs(self, draft_tokens: IntArray) -> FloatArray:
        chosen = np.zeros(draft_tokens.size)
        if self.choice and self._deterministic.size == 0:
            chosen = self.choice.choice_probs(draft_tokens)
        elif self.choice:
            able = ~np.isin(draft_tokens, self._deterministic)
            chosen[able] = self.choice.choice_probs(draft_tokens[able])
        # Given that all drafts before were rejected : chosen / left
        left = 1.0 - np.concatenate([[0.0], chosen[:-1].cumsum()])
        return np.minimum(1.0, np.divide(chosen, left, out=np.zeros(chosen.size), where=left > 0))

    def residual(self, draft_tokens: IntArray) -> FloatArray:
        return self._residual

    def _emission_probs(self, token: int, rng: np.random.Generator, samples: int) -> FloatArray:
        if token in self._deterministic:
            return self._with_exact_sum(token, 1.0, rng, samples)
        # The residual gives no token that was drafted at random.
        slots = self._slots
        if slots is not None and slots.is_single and slots.num_drafts > 1:
            probs = np.zeros((self.law.num_drafts, self.law.num_drafts))
            masses = self._copies(token, slots)
            # For a p below the rounding of 1, the sum may be anything.
            masses = masses / max(masses.sum(), self.target[token])
            probs[self._deterministic.size :, : slots.num_drafts] = masses
            return probs
        total = min(float(self.accepted[token] / self.target[token]), 1.0)
        return self._with_exact_sum(token, total, rng, samples)

    @abstractmethod
    def _copies(self, token: int, slots: Slots) -> FloatArray:
        """P(random draft i is the first copy of the token, j more follow, and one is accepted), (m, m).

        The m random drafts are drawn from one distribution.
        """

    @cached_property
    def _residual(self) -> FloatArray:
        return normalised(np.maximum(self.target - self.accepted, 0.0), self.target)


def leading_tokens(law: DraftLaw) -> IntArray:
    """The deterministic tokens that always come first, in their order."""
    tokens = np.empty(0, np.int64)
    for _ in law.position_structure.deterministic:
        probs = law.position_structure.next_draft_probs(tokens)
        token = int(probs.argmax())
        if probs[token] < 1.0:
            break
        tokens = np.append(tokens, token)
    return tokens


def copies_of_slots(
    drawn: FloatArray, accepted: FloatArray, before: FloatArray, after: FloatArray
) -> FloatArray:
    """P(draft i is the first copy of a token, j more follow, and one of them is accepted), shape (n, n).

    Drafts are independent. Draft i holds the token with probability ``drawn[i]``, and is also accepted, if
    none before it was, with probability ``accepted[i]``. It holds another token and does not rule the token
    out with probability ``before[i]`` before the token is accepted, and ``after[i]`` after it.
    """
    n = drawn.size
    masses = np.zeros((n, n))
    later = np.zeros(n + 1)
    behind = np.eye(1, n + 1)[0]
    # Coefficients by the number of copies: among the drafts from i on, and among those behind the accepted.
    for i in reversed(range(n)):
        first = accepted[i] * behind + (drawn[i] - accepted[i]) * later
        masses[i] = first[:n]
        later = np.roll(first, 1) + before[i] * later
        behind = after[i] * behind + drawn[i] * np.roll(behind, 1)
    return masses * np.append(1.0, before[:-1]).cumprod()[:, None]


def in_order_emission_probs(
    target: FloatArray, draft: FloatArray, accept: FloatArray, token: int
) -> FloatArray:
    """The emission probabilities of a verifier that looks at independent drafts one after another.

    Draft i is drawn from ``draft[i]``, shape (n, V), and is accepted with the probability that ``accept``
    (n, V) gives for its token. The residual gives no rejected draft.
    """
    drawn = draft[:, token]
    accepted = drawn * accept[:, token]
    before = np.einsum("iv,iv->i", draft, 1.0 - accept) - (drawn - accepted)
    masses = copies_of_slots(drawn, accepted, np.maximum(before, 0.0), 1.0 - drawn)
    # For a p below the rounding of 1, the sum may be anything.
    return masses / max(masses.sum(), target[token])


def decision_rng(rng: RngLike) -> np.random.Generator:
    """Return the generator that decides on drafts.

    That of a seed is independent of the drafts that the same seed draws: with the same random numbers, no
    verifier would be lossless.
    """
    generator = validate_rng(rng)
    return generator if generator is rng else generator.spawn(1)[0]


def verdict_of(token: int, draft_tokens: IntArray) -> Verdict:
    """The verdict for an output token: its index among the drafts (n,), −1 if it is none of them."""
    drafted = np.flatnonzero(draft_tokens == token)
    return Verdict(token, int(drafted[0]) if drafted.size else -1)


def accept_prob(target: FloatArray, drawn: FloatArray) -> FloatArray:
    """min(1, target/drawn) without overflow; 1 where drawn is 0, which is never reached."""
    return np.divide(target, drawn, out=np.ones_like(drawn), where=drawn > target)


def normalised(mass: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Mass (V,) divided by its sum; ``otherwise``, any distribution, if the sum is 0: it is never reached."""
    total = mass.sum()
    return mass / total if total > 0 else otherwise
