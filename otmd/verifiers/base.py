"""What a verifier is: a rule that picks the output token from the drafts, lossless for its laws."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from otmd.drafts import DraftLaw
from otmd.drafts.base import validate_rng
from otmd.optimum.acceptance import positions
from otmd.parallel import in_threads
from otmd.probabilities import FloatArray, validate_probs, validate_same_vocabulary
from otmd.verifiers.closed_form import ClosedForm
from otmd.verifiers.prepared import PreparedVerifier, Verdict


class UnsupportedLaw(ValueError):  # noqa: N818 - the public interface's name
    """A verifier was asked to serve a draft law that it is not lossless for."""


class Verifier(ABC):
    """A lossless rule from (drafts, target distribution, draft law) to an output token.

    Every rate is exact. Leading axes of ``target_probs`` are broadcast against those of the law.
    """

    serves: tuple[type[DraftLaw], ...]
    """The draft laws that the verifier is lossless for."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def supports(self, law: DraftLaw) -> bool:
        """Whether the verifier is lossless for this law."""
        return type(law) in self.serves

    @abstractmethod
    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        """Return the rule of a single position whose law is supported."""

    def _closed_form(self, laws: Sequence[DraftLaw]) -> ClosedForm | None:
        """Return the kernel that rates laws that differ in the number of drafts alone, if there is one."""
        return None

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        """Return bounds of the acceptance rate at a single position, of a law without a closed form."""
        raise NotImplementedError(f"{type(self).__name__}: wanted _bounds or _closed_form")

    def _family_bounds(
        self, target: FloatArray, laws: Sequence[DraftLaw], tol: float
    ) -> list[tuple[float, float]]:
        """Return the bounds for laws that differ in the number of drafts alone."""
        return [self.position_bounds(target, law, tol) for law in laws]

    def family_bounds(
        self, target: FloatArray, laws: Sequence[DraftLaw], tol: float
    ) -> list[tuple[float, float]]:
        """What :meth:`acceptance_bounds` says at a single position, for laws of one family, input unchecked.

        Parameters
        ----------
        target : ndarray of float64, shape (V,)
            p, known to be valid.
        laws : sequence of DraftLaw
            Supported laws without leading axes that differ in the number of drafts alone, ascending.
        tol : float
            How far apart the bounds may be.

        Returns
        -------
        list of (low, high)
        """
        closed = self._closed_form(laws)
        if closed:
            rates = closed.at_position(target).tolist()
            return [(rate, rate) for rate in rates]
        bounds = self._family_bounds(target, laws, tol)
        inside = np.clip(bounds, 0.0, 1.0).tolist()
        return [(low, high) for low, high in inside]

    def prepare(self, target_probs: ArrayLike, law: DraftLaw) -> PreparedVerifier:
        """Prepare one position, to verify many draws of drafts.

        Parameters
        ----------
        target_probs : array_like, shape (V,)
            p.
        law : DraftLaw
            A law without leading axes.

        Returns
        -------
        PreparedVerifier

        Raises
        ------
        ValueError
            For invalid input or leading axes; UnsupportedLaw for a law not served.
        """
        p = self._validate(target_probs, law, copy=True)
        if p.ndim != 1 or law.batch_shape:
            raise ValueError(
                f"prepare: got leading axes {p.shape[:-1]} and {law.batch_shape}, wanted one "
                "position"
            )
        return self.prepare_position(p, law[()])

    def acceptance_rate(self, target_probs: ArrayLike, law: DraftLaw) -> FloatArray | float:
        """Exact acceptance rate: P(the output token is among the drafts).

        Parameters
        ----------
        target_probs : array_like, shape (…, V)
            p.
        law : DraftLaw
            The law of the drafts.

        Returns
        -------
        float or ndarray of float64, shape (…)
            The middle of :meth:`acceptance_bounds` where only bounds are certain.

        Raises
        ------
        ValueError
            For invalid input; UnsupportedLaw for a law not served.
        """
        low, high = self.acceptance_bounds(target_probs, law)
        return 0.5 * (low + high)

    def acceptance_bounds(
        self,
        target_probs: ArrayLike,
        law: DraftLaw,
        tol: float = 1e-6,
        every_n: bool = False,
    ) -> tuple[FloatArray | float, FloatArray | float]:
        """Certain bounds of the acceptance rate; equal where it has a closed form.

        Parameters
        ----------
        target_probs : array_like, shape (…, V)
            p.
        law : DraftLaw
            The law of the drafts.
        tol : float
            How far apart the bounds may be. Where the work that takes is too much they are further
            apart, and still certain.
        every_n : bool
            Answer for the law of the same family with 1, 2, … ``law.num_drafts`` drafts.

        Returns
        -------
        low, high : float or ndarray of float64, shape (…) or (…, n)

        Raises
        ------
        ValueError
            For invalid input, or ``every_n`` for a law without smaller members; UnsupportedLaw for a
            law not served.
        """
        self._require_law(law)
        if isinstance(tol, bool) or not isinstance(tol, Real) or not tol > 0:
            raise ValueError(f"tol: got {tol!r}, wanted a positive number")
        laws = law.family() if every_n else [law]
        for own_law in laws:
            self._require(own_law)
        closed = self._closed_form(laws)
        if closed:
            low = closed.at_positions(target_probs)
            high = low.copy()
        else:
            low, high = self._bounds_by_position(target_probs, law, tol, every_n)
        if not every_n:
            low, high = low[..., 0], high[..., 0]
        return (low, high) if low.shape else (float(low), float(high))

    def _bounds_by_position(
        self, target_probs: ArrayLike, law: DraftLaw, tol: float, every_n: bool
    ) -> tuple[FloatArray, FloatArray]:
        p = self._validate(target_probs, law)
        every = list(positions(p, law))
        batch = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
        low, high = np.empty((2, *batch, law.num_drafts if every_n else 1))

        def work(start: int, stop: int) -> None:
            for index, target, own_law in every[start:stop]:
                bounds = self.family_bounds(target, own_law.family() if every_n else [own_law], tol)
                low[index], high[index] = np.transpose(bounds)

        in_threads(work, len(every), law.vocab_size)
        return low, high

    def verify(
        self,
        target_probs: ArrayLike,
        law: DraftLaw,
        draft_tokens: ArrayLike,
        *,
        rng: np.random.Generator,
    ) -> Verdict:
        """Pick the output token, distributed exactly as p over the draw of drafts and the decision.

        Parameters
        ----------
        target_probs : array_like, shape (…, V)
            p.
        law : DraftLaw
            The law that the tokens were drawn from.
        draft_tokens : array_like of int, shape (…, n)
            The drafts; their leading axes are broadcast against the others.
        rng : numpy.random.Generator
            Equal seeds give equal verdicts.

        Returns
        -------
        Verdict

        Raises
        ------
        ValueError
            For invalid input; UnsupportedLaw for a law not served.
        """
        p = self._validate(target_probs, law)
        ids = law.validate_tokens(draft_tokens)
        validate_rng(rng)
        own = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
        batch = np.broadcast_shapes(own, ids.shape[:-1])
        ids = np.broadcast_to(ids, (*batch, law.num_drafts))
        padded = (1,) * (len(batch) - len(own)) + own
        token, draft_index = np.empty(batch, np.int64), np.empty(batch, np.int64)
        rules = np.empty(padded, dtype=object)
        for index, target, own_law in positions(p, law):
            rules.reshape(own)[index] = self.prepare_position(target, own_law)
        for index, rule in np.ndenumerate(np.broadcast_to(rules, batch)):
            verdict = rule.verify(ids[index], rng)
            token[index], draft_index[index] = verdict.token, verdict.draft_index
        if not batch:
            return Verdict(int(token), int(draft_index))
        return Verdict(token, draft_index)

    def output_law(self, target_probs: ArrayLike, law: DraftLaw) -> FloatArray:
        """Exact law of the output token by enumeration of the drafts, for small vocabularies.

        Parameters
        ----------
        target_probs : array_like, shape (…, V)
            p.
        law : DraftLaw
            The law of the drafts.

        Returns
        -------
        ndarray of float64, shape (…, V)
            Equal to p, up to rounding: the verifier is lossless.

        Raises
        ------
        ValueError
            For invalid input or too many tuples; UnsupportedLaw for a law not served.
        """
        p = self._validate(target_probs, law)
        batch = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
        output = np.zeros((*batch, law.vocab_size))
        for index, target, own_law in positions(p, law):
            rule = self.prepare_position(target, own_law)
            for tokens, prob in zip(*own_law.enumerate(), strict=True):
                output[index] += prob * rule.conditional_law(tokens)
        return output

    def _validate(self, target_probs: ArrayLike, law: DraftLaw, copy: bool = False) -> FloatArray:
        self._require_law(law)
        p = validate_probs("target_probs", target_probs, copy)
        validate_same_vocabulary(p, law.vocab_size, law.batch_shape)
        return p

    def _require_law(self, law: DraftLaw) -> None:
        """Raise ValueError for what is no law, UnsupportedLaw for one not served."""
        if not isinstance(law, DraftLaw):
            raise ValueError(f"law: got {type(law).__name__}, wanted a DraftLaw")
        self._require(law)

    def _require(self, law: DraftLaw) -> None:
        """Raise UnsupportedLaw for a law not served."""
        if not self.supports(law):
            from otmd.verifiers import verifiers_serving

            names = ", ".join(type(verifier).__name__ for verifier in verifiers_serving(law))
            raise UnsupportedLaw(
                f"{type(self).__name__} does not serve {law!r}; {names} "
                f"{'do' if ',' in names else 'does'}"
            )
