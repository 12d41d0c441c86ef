"""The interface of a verifier, which picks the output token given the drafts and is lossless for its laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from otmd.curve import RatioCurve
from otmd.kernel import input_size
from otmd.laws import DraftLaw, Structure
from otmd.laws.base import RngLike, validate_law, validate_target
from otmd.optimum.acceptance import (
    optimal_acceptance,
    pairs_by_position,
    positions,
)
from otmd.optimum.certificate import OptimalityCertificate
from otmd.probabilities import FloatArray, validate_tol, wrong, wrong_type
from otmd.registry import VERIFIERS, find
from otmd.verifiers.prepared import PreparedVerifier, Verdict, decision_rng

IN_FLOAT32 = 1e-6
"""Probabilities of a user's verifier may be off by this much: it may compute in float32."""


class UnsupportedLaw(ValueError):  # noqa: N818 - the public interface's name
    """A verifier was asked to serve a draft law that it is not lossless for.

    Examples
    --------
    >>> import otmd
    >>> law = otmd.WithoutReplacement([0.5, 0.5], num_drafts=2)
    >>> try:
    ...     otmd.acceptance_rate(otmd.KSequential(), [0.5, 0.5], law)
    ... except otmd.UnsupportedLaw as error:
    ...     print(str(error).split(";")[0])
    KSequential does not serve WithoutReplacement(draft_probs(2,), num_drafts=2)
    """


class Verifier(ABC):
    """A lossless map from (drafts, target distribution, draft law) to an output token.

    Rates are exact, or lie between guaranteed bounds. Leading axes of ``target_probs`` are broadcast against
    those of the law.

    A subclass of your own defines :meth:`serves` and :meth:`prepare_position`. It may define
    :meth:`position_bounds`, if its rate is known without enumeration.

    Examples
    --------
    >>> import otmd
    >>> verifier = otmd.RecursiveRejection()
    >>> law = otmd.WithReplacement([0.25, 0.25, 0.5], num_drafts=2)
    >>> verifier.acceptance_rate([0.5, 0.25, 0.25], law)
    0.8125
    >>> verifier.output_distribution([0.5, 0.25, 0.25], law)
    array([0.5 , 0.25, 0.25])
    """

    tol = 1e-10
    """A rate that is less than this below α* counts as optimal in a :meth:`certificate`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def serves(self, structure: Structure) -> bool:
        """Whether the verifier is lossless for every law of this structure, of one position."""

    def supports(self, law: DraftLaw) -> bool:
        """Whether the verifier is lossless for this law; all positions of a law are of one kind."""
        structure = law.shared_structure()
        if structure is None:
            if 0 in law.batch_shape:
                return True
            structure = law[(0,) * len(law.batch_shape)].position_structure
        return self.serves(structure)

    def reported_name(self, structure: Structure) -> str:
        """The name by which the field knows the verifier for laws of this structure."""
        return type(self).__name__

    @abstractmethod
    def prepare_position(self, target: FloatArray, law: DraftLaw) -> PreparedVerifier:
        """Prepare one position; ``target`` (V,) is valid, the law is supported and has no leading axes."""

    def position_bounds(self, target: FloatArray, law: DraftLaw, tol: float) -> tuple[float, float]:
        """Bounds of the acceptance rate at one position; input as for :meth:`prepare_position`.

        By default the rate is that of :meth:`curve_rates`. Where that is not known, all drafts are
        enumerated: the rate is exact, and the vocabulary must be small.
        """
        single = law.position_structure.single
        if single is not None:
            rate = self.curve_rates(RatioCurve.unchecked(target, single.probs), law.num_drafts)
            if rate is not None:
                return float(rate), float(rate)
        prepared = self.prepare_position(target, law)
        tuples, probs = law.enumerate()
        accepted = [prepared.conditional_law(x)[np.unique(x)].sum() for x in tuples]
        rate = float(probs @ accepted)
        return rate, rate

    def curve_rates(self, curve: RatioCurve, num_drafts: int) -> FloatArray | None:
        """Rates (…) for drafts with replacement from the curve's q; None if not known."""
        return None

    def prepare(self, target_probs: ArrayLike, law: DraftLaw) -> PreparedVerifier:
        """Prepare the verifier for one position, to decide on many draws of drafts.

        Parameters
        ----------
        target_probs : array_like, shape (V,)
            p.
        law : DraftLaw
            A law without leading axes.

        Returns
        -------
        PreparedVerifier
            It decides on drafts (n,) by ``verify``.

        Raises
        ------
        ValueError
            For invalid input or leading axes; UnsupportedLaw for a law not served.
        """
        p = self._one_position("prepare", target_probs, law)
        with input_size(p.size):
            return self.prepare_position(p, law)

    def certificate(self, target_probs: ArrayLike, law: DraftLaw) -> OptimalityCertificate:
        """Compare the verifier's acceptance rate at one position with α*.

        Parameters and errors are those of :meth:`prepare`.
        """
        p = self._one_position("certificate", target_probs, law)
        upper = float(optimal_acceptance(p, law).rate)
        attained = float(self.acceptance_bounds(p, law)[0])
        return OptimalityCertificate(attained, upper, tol=self.tol)

    def acceptance_rate(self, target_probs: ArrayLike, law: DraftLaw) -> FloatArray | float:
        """Exact acceptance rate; see :func:`otmd.acceptance_rate` for parameters, result and errors."""
        low, high = self.acceptance_bounds(target_probs, law)
        return 0.5 * (low + high)

    def acceptance_bounds(
        self, target_probs: ArrayLike, law: DraftLaw, tol: float = 1e-6
    ) -> tuple[FloatArray | float, FloatArray | float]:
        """Bounds of the rate; see :func:`otmd.acceptance_bounds` for parameters, result and errors."""
        self._require(law)
        tol = validate_tol(tol)
        p = validate_target(target_probs, law)
        shared = law.shared_structure()
        low = high = None
        if shared is not None and shared.single is not None:
            curve = RatioCurve.unchecked(p, shared.single.probs)
            low = high = self.curve_rates(curve, law.num_drafts)
        if low is None or high is None:
            low, high = pairs_by_position(p, law, partial(self.position_bounds, tol=tol))
        # Rounding may have moved sums outside [0, 1].
        low, high = low.clip(0.0, 1.0), high.clip(0.0, 1.0)
        return (low, high) if low.shape else (float(low), float(high))

    def verify(
        self,
        target_probs: ArrayLike,
        law: DraftLaw,
        draft_tokens: ArrayLike,
        *,
        rng: RngLike = None,
    ) -> Verdict:
        """Pick the output token, distributed exactly as p over the draw of drafts and the decision.

        Parameters
        ----------
        target_probs : array_like, shape (…, V)
            p.
        law : DraftLaw
            The law that the tokens were drawn from.
        draft_tokens : array_like of int, shape (…, n)
            The drafts; their leading axes are broadcast against those of the target and the law.
        rng : int, sequence of int, numpy.random.Generator or None
            A seed or a generator, see :func:`numpy.random.default_rng`. Equal seeds give equal verdicts,
            independent of the drafts that :meth:`DraftLaw.sample` draws with the same seed; None, the
            default, draws others at every call. Where many verdicts are called for one after another, use
            one generator for all.

        Raises
        ------
        ValueError
            For invalid input; UnsupportedLaw for a law not served.
        """
        p = self._validate(target_probs, law)
        ids = law.validate_tokens(draft_tokens)
        generator = decision_rng(rng)
        prepared = np.empty(np.broadcast_shapes(p.shape[:-1], law.batch_shape), dtype=object)
        for index, target, position_law in positions(p, law):
            with input_size(p.size):
                prepared[index] = self.prepare_position(target, position_law)
        batch = np.broadcast_shapes(prepared.shape, ids.shape[:-1])
        ids = np.broadcast_to(ids, (*batch, law.num_drafts))
        token = np.empty(batch, np.int64)
        draft_index = np.empty(batch, np.int64)
        for index, verifier in np.ndenumerate(np.broadcast_to(prepared, batch)):
            verdict = verifier.verify(ids[index], rng=generator)
            token[index] = verdict.token
            draft_index[index] = verdict.draft_index
        if not batch:
            return Verdict(int(token), int(draft_index))
        return Verdict(token, draft_index)

    def output_distribution(self, target_probs: ArrayLike, law: DraftLaw) -> FloatArray:
        """Exact distribution (…, V) of the output token, by enumeration, for small vocabularies.

        For a lossless verifier this is p up to rounding. Parameters and errors are those of :meth:`verify`;
        too many tuples are a ValueError as well.
        """
        p = self._validate(target_probs, law)
        batch = np.broadcast_shapes(p.shape[:-1], law.batch_shape)
        output = np.zeros((*batch, law.vocab_size))
        for index, target, position_law in positions(p, law):
            with input_size(p.size):
                prepared = self.prepare_position(target, position_law)
            for tokens, prob in zip(*position_law.enumerate(), strict=True):
                output[index] += prob * prepared.conditional_law(tokens)
        return output

    def _validate(self, target_probs: ArrayLike, law: DraftLaw, copy: bool = False) -> FloatArray:
        self._require(law)
        return validate_target(target_probs, law, copy)

    def _one_position(self, method: str, target_probs: ArrayLike, law: DraftLaw) -> FloatArray:
        p = self._validate(target_probs, law, copy=True)
        if p.ndim != 1 or law.batch_shape:
            axes = f"leading axes {p.shape[:-1]} and {law.batch_shape}"
            raise wrong(method, axes, "one position")
        return p

    def _require(self, law: DraftLaw) -> None:
        """Raise TypeError for what is not a law, UnsupportedLaw for a law that is not served."""
        validate_law(law)
        if not self.supports(law):
            from otmd.verifiers import verifiers_serving

            names = ", ".join(type(verifier).__name__ for verifier in verifiers_serving(law))
            raise UnsupportedLaw(
                f"{type(self).__name__} does not serve {law!r}; {names} {'do' if ',' in names else 'does'}"
            )


def as_verifier(verifier: object, argument: str = "verifier") -> Verifier:
    """Return a verifier; a name, such as "k-sequential", or a class makes one. Else TypeError."""
    if isinstance(verifier, str):
        verifier = find(argument, verifier, VERIFIERS).load()
    if isinstance(verifier, type) and issubclass(verifier, Verifier):
        try:
            return verifier()
        except TypeError as reason:
            raise wrong_type(argument, verifier, f"an instance ({reason})") from reason
    if not isinstance(verifier, Verifier):
        raise wrong_type(argument, verifier, "a Verifier such as KSequential(), or its name")
    return verifier
