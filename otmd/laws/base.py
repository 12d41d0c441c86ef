"""The interface of draft laws: joint distributions of the draft tokens at one position."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from otmd.kernel import input_size
from otmd.laws.structure import Slots, Structure, Table, all_random
from otmd.probabilities import (
    BoolArray,
    FloatArray,
    IntArray,
    broadcast_index,
    validate_count,
    validate_probs,
    validate_same_vocabulary,
    wrong,
    wrong_type,
)

_MOST_TUPLES = 5_000_000
# What follows from how a law draws its drafts, and is asked for in place of the drafts themselves.
_FOLLOWS = {
    "position_structure",
    "shared_structure",
    "position_next_draft_probs",
    "count_sets",
    "can_draw",
}
RngLike = np.random.Generator | int | Sequence[int] | None
"""Every ``rng``: a generator, a seed, or None for a seed from the system (SPEC 7)."""
MOST_DRAFTS = 10_000
"""The largest number of drafts at one position."""


class DraftLaw(ABC):
    """The joint distribution Q of the n draft tokens proposed at one position.

    A law may hold many positions, along leading axes: ``law[index]`` is the law of one of them. Users call
    :meth:`sample`, :meth:`tuple_prob`, :meth:`next_draft_probs`, :meth:`containment`,
    :meth:`inclusion_probs` and :meth:`enumerate`.

    Attributes
    ----------
    num_drafts : int
        n, how many tokens are drafted.
    vocab_size : int
        V.
    batch_shape : tuple of int
        The leading axes; ``()``, the default, for a single position.

    Notes
    -----
    A subclass sets ``num_drafts`` and ``vocab_size`` and defines these methods. ``can_draw`` and the methods
    named ``position_…`` are only called on a law without leading axes, with input that has been checked.

    ================================  ========  =======================================================
    method                            required  default
    ================================  ========  =======================================================
    ``position_sample``               yes
    ``position_tuple_prob``           yes
    ``position_structure``            no        a :class:`~otmd.laws.Table`, which is enumerated
    ``position_support``              no        every token
    ``position_next_draft_probs``     no        sum over :meth:`enumerate`
    ``position_containment``          no        sum over :meth:`enumerate`
    ``position_inclusion_probs``      no        sum over :meth:`enumerate`
    ``position_hit_rate``             no        from ``position_inclusion_probs``
    ``count_sets``                    no        None: it is counted by enumeration
    ``can_draw``                      no        whether ``position_tuple_prob`` is positive
    ``hit_rates``                     no        ``position_hit_rate`` of ``with_num_drafts(n)`` for each n
    ``__getitem__``                   no        itself for ``()``; needed for leading axes
    ``with_num_drafts``               no        itself for its own n; needed for other n
    ================================  ========  =======================================================

    Enumeration goes through ``len(position_support()) ** n`` tuples, so it is for small vocabularies and for
    laws that draw only a few of the tokens. The optimum and verifiers go by :meth:`position_structure`: a law
    that declares its structure is served by every verifier for that structure.

    Examples
    --------
    >>> import numpy as np
    >>> import otmd
    >>> class LastToken(otmd.DraftLaw):
    ...     num_drafts, vocab_size = 1, 3
    ...     def position_sample(self, rng, count):
    ...         return np.full((count, 1), 2)
    ...     def position_tuple_prob(self, draft_tokens):
    ...         return np.where(draft_tokens[:, 0] == 2, 1.0, 0.0)
    >>> otmd.optimal_acceptance([0.2, 0.3, 0.5], LastToken()).rate
    0.5
    """

    num_drafts: int
    vocab_size: int
    batch_shape: tuple[int, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class that changes how drafts are drawn may not inherit what follows from how its base draws them.
        if vars(cls).keys() & {"position_sample", "position_tuple_prob"}:
            for name in _FOLLOWS - vars(cls).keys():
                setattr(cls, name, getattr(DraftLaw, name))

    def __copy__(self) -> Self:
        # Copies are made to be changed, so cached values are left out.
        copied = type(self).__new__(type(self))
        vars(copied).update(self.definition())
        return copied

    def definition(self) -> dict[str, Any]:
        """The attributes that define the law, by name: neither those that begin with _ nor cached values."""
        return {
            name: value
            for name, value in vars(self).items()
            if name[0] != "_" and not isinstance(getattr(type(self), name, None), cached_property)
        }

    @abstractmethod
    def position_sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw ``count`` tuples at a single position, shape (count, n)."""

    @abstractmethod
    def position_tuple_prob(self, draft_tokens: IntArray) -> FloatArray:
        """Q of tuples (T, n) at a single position, shape (T,)."""

    def position_structure(self) -> Structure:
        """The deterministic tokens, and how the other drafts are drawn, at a single position."""
        if self.num_drafts == 1:
            return all_random(Slots.single(self.position_inclusion_probs(), 1))
        return all_random(Table(self.enumerate))

    def shared_structure(self) -> Structure | None:
        """The structure of all positions in one, with leading axes; None where there is no such."""
        return None if self.batch_shape else self.position_structure()

    def position_support(self) -> IntArray:
        """The tokens to enumerate at a single position, ascending; no other token is ever drafted."""
        return np.arange(self.vocab_size)

    def count_sets(self, merge: bool) -> tuple[int, int] | None:
        """The number of sets of drafts with positive probability at a position, and the sum of their sizes.

        With ``merge``, tuples of the same tokens are one set; without it, each tuple counts. The result is
        None where there is no closed form.
        """
        return None

    def position_next_draft_probs(self, prefix: IntArray) -> FloatArray:
        """Distribution of draft k + 1 given the first k drafts (k,), k < n, at a single position, shape (V,).

        Zero everywhere if no draws begin with these drafts.
        """
        tokens, probs = self.enumerate()
        begins = (tokens[:, : prefix.size] == prefix).all(axis=-1)
        masses = np.bincount(tokens[begins, prefix.size], probs[begins], minlength=self.vocab_size)
        return masses / (masses.sum() or 1.0)

    def position_containment(self, subset: BoolArray) -> float:
        """g(H) of one subset (V,) at a single position."""
        tokens, probs = self.enumerate()
        return min(float(probs[subset[tokens].all(axis=-1)].sum()), 1.0)

    def position_inclusion_probs(self) -> FloatArray:
        """P(token is among the drafts) at a single position, shape (V,)."""
        tokens, probs = self.enumerate()
        ordered = np.sort(tokens, axis=-1)
        weights = np.repeat(probs, self.num_drafts).reshape(ordered.shape)
        # A token that is drafted twice counts once.
        weights[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = 0.0
        drafted = np.bincount(ordered.ravel(), weights.ravel(), minlength=self.vocab_size)
        return np.minimum(drafted, 1.0)

    def position_hit_rate(self, target: FloatArray) -> float:
        """P(a token drawn from the target is among the drafts) at a single position."""
        return float(target @ self.position_inclusion_probs())

    def hit_rates(self, target: FloatArray, counts: Sequence[int]) -> list[float]:
        """The :meth:`position_hit_rate` for each of these numbers of drafts, which ascend."""
        return [self.with_num_drafts(n).position_hit_rate(target) for n in counts]

    def can_draw(self, draft_tokens: IntArray) -> bool:
        """Whether drafts (n,) can be drawn at a single position. It may be True where Q underflows to 0."""
        return bool(self.position_tuple_prob(draft_tokens[None])[0] > 0)

    def with_ties_as(self, draft_tokens: IntArray) -> Self:
        """The law with ties of q broken as in drafts (n,) at a single position; itself where none matter."""
        return self

    def __getitem__(self, index: tuple[int, ...]) -> Self:
        """Return the law of the position(s) at ``index`` of the leading axes."""
        if index != () or self.batch_shape:
            raise IndexError(
                f"{type(self).__name__}: got index {index!r}, expected (): it has no leading axes, or no "
                "__getitem__ that serves them"
            )
        return self

    def with_num_drafts(self, num_drafts: int) -> Self:
        """Return the law of the same family that draws ``num_drafts`` tokens; ValueError if there is none."""
        if validate_count("num_drafts", num_drafts) != self.num_drafts:
            kind = type(self).__name__
            expected = f"{self.num_drafts}: {kind} is not defined for another number of drafts"
            raise wrong("num_drafts", num_drafts, expected)
        return self

    def sample(self, size: int | tuple[int, ...] | None = None, *, rng: RngLike) -> IntArray:
        """Draw the draft tokens, shape (*size, *batch_shape, n).

        Parameters
        ----------
        size : int or tuple of int, optional
            How many independent draws, at least 0, else ValueError. The default is one draw without an axis.
        rng : int, sequence of int, numpy.random.Generator or None
            A seed or a generator, see :func:`numpy.random.default_rng`. Equal seeds give equal drafts.

        Returns
        -------
        ndarray of int64, shape (*size, *batch_shape, n)
            The tokens, in the order in which they are drawn.

        Examples
        --------
        >>> import otmd
        >>> otmd.WithoutReplacement([0.5, 0.3, 0.2], num_drafts=2).sample(3, rng=0)
        array([[0, 2],
               [2, 1],
               [0, 1]])
        """
        generator = validate_rng(rng)
        sizes = np.asarray(() if size is None else size).reshape(-1).tolist()
        axes = tuple(validate_count("size", n, minimum=0) for n in sizes)
        count = math.prod(axes)
        tokens = np.empty((count, *self.batch_shape, self.num_drafts), np.int64)
        with input_size(self.vocab_size):
            for index in np.ndindex(self.batch_shape):
                tokens[(slice(None), *index)] = self[index].position_sample(generator, count)
        return tokens.reshape(*axes, *self.batch_shape, self.num_drafts)

    def tuple_prob(self, draft_tokens: ArrayLike) -> FloatArray:
        """Probability Q of drawing exactly these tokens in this order, shape (…).

        Parameters
        ----------
        draft_tokens : array_like of int, shape (…, n)
            Integers (TypeError) in [0, V), else ValueError. Leading axes are broadcast against the law's.

        Returns
        -------
        ndarray of float64, shape (…)
            Q of each tuple.

        Examples
        --------
        >>> import otmd
        >>> otmd.WithReplacement([0.5, 0.3, 0.2], num_drafts=2).tuple_prob([[0, 1], [2, 2]])
        array([0.15, 0.04])
        """
        checked = self.validate_tokens(draft_tokens)
        shape = np.broadcast_shapes(checked.shape[:-1], self.batch_shape)
        if not self.batch_shape:
            flat = checked.reshape(-1, self.num_drafts)
            return self.position_tuple_prob(flat).reshape(shape)
        checked, probs = np.broadcast_to(checked, (*shape, self.num_drafts)), np.empty(shape)
        for index in np.ndindex(shape):
            position = self[broadcast_index(index, self.batch_shape)]
            probs[index] = position.position_tuple_prob(checked[index][None])[0]
        return probs

    def next_draft_probs(self, prefix: Sequence[int]) -> FloatArray:
        """Distribution of the next draft given the drafts before it, at a single position, shape (V,).

        For every tuple the product of these probabilities over its drafts is :meth:`tuple_prob`. A rule that
        verifies one draft after another needs them; they are the draft model's q for some laws only.

        Parameters
        ----------
        prefix : sequence of int
            The first k drafts, in the order in which they are drawn; ``()`` for the first draft.

        Returns
        -------
        ndarray of float64, shape (V,)
            Its probabilities.

        Raises
        ------
        ValueError
            For a law with leading axes, n drafts or more, tokens outside [0, V), or drafts with which no draw
            begins.
        """
        if self.batch_shape:
            raise wrong("next_draft_probs", f"leading axes {self.batch_shape}", "one position")
        last = self.vocab_size - 1
        tokens = [validate_count("prefix", token, minimum=0, maximum=last) for token in prefix]
        if len(tokens) >= self.num_drafts:
            raise wrong("prefix", f"{len(tokens)} drafts", f"fewer than {self.num_drafts}")
        probs = self.position_next_draft_probs(np.array(tokens, np.int64))
        if not probs.any():
            raise ValueError(f"prefix: got {tokens}, with which no draw of {self!r} begins")
        return probs

    def containment(self, subset: ArrayLike) -> FloatArray | float:
        """Probability g(H) that every draft lies in H, shape (…) (Hu et al. 2025, eq. 8).

        Parameters
        ----------
        subset : array_like of bool, shape (…, V)
            H, boolean, else TypeError. Leading axes are broadcast against the law's.

        Returns
        -------
        float or ndarray of float64, shape (…)
            g(H) of each subset.
        """
        mask = np.asarray(subset)
        expected = f"bool of shape (…, {self.vocab_size})"
        if mask.dtype != np.bool_:
            raise TypeError(f"subset: got dtype {mask.dtype}, expected {expected}")
        if mask.ndim == 0 or mask.shape[-1] != self.vocab_size:
            raise wrong("subset", f"shape {mask.shape}", expected)
        shape = np.broadcast_shapes(mask.shape[:-1], self.batch_shape)
        mask = np.broadcast_to(mask, (*shape, self.vocab_size))
        values = np.empty(shape)
        with input_size(self.vocab_size):
            for index in np.ndindex(shape):
                position = self[broadcast_index(index, self.batch_shape)]
                values[index] = position.position_containment(np.ascontiguousarray(mask[index]))
        return values if shape else float(values)

    def inclusion_probs(self) -> FloatArray:
        """Probability that each token is among the drafts, shape (*batch_shape, V)."""
        probs = np.empty((*self.batch_shape, self.vocab_size))
        with input_size(self.vocab_size):
            for index in np.ndindex(self.batch_shape):
                probs[index] = self[index].position_inclusion_probs()
        return probs

    def enumerate(self) -> tuple[IntArray, FloatArray]:
        """List every tuple with positive probability: the tokens (T, n), and the probabilities (T,).

        Raises ValueError for a law with leading axes or with more than five million tuples to go through.

        Returns
        -------
        tokens : ndarray of int64, shape (T, n)
            The tuples in lexicographic order.
        probs : ndarray of float64, shape (T,)
            Their probabilities.

        Examples
        --------
        >>> import otmd
        >>> tokens, probs = otmd.WithoutReplacement([0.5, 0.5], num_drafts=2).enumerate()
        >>> tokens.tolist(), probs.tolist()
        ([[0, 1], [1, 0]], [0.5, 0.5])
        """
        if self.batch_shape:
            raise wrong("enumerate", f"leading axes {self.batch_shape}", "one position")
        support = self.position_support()
        size = support.size**self.num_drafts
        if size > _MOST_TUPLES:
            raise wrong(
                "enumerate",
                f"{support.size}^{self.num_drafts} = {size} tuples",
                f"at most {_MOST_TUPLES}; a law with its own position_containment and "
                "position_inclusion_probs needs no enumeration",
            )
        # Tuples are in lexicographic order: the digits of a tuple's number are its tokens' places in support.
        digits = support.size ** np.arange(self.num_drafts - 1, -1, -1)
        tokens = support[np.arange(size)[:, None] // digits % support.size]
        probs = self.position_tuple_prob(tokens)
        return tokens[probs > 0], probs[probs > 0]

    def can_enumerate(self) -> bool:
        """Whether the law at a single position has few enough tuples for :meth:`enumerate`."""
        return self.position_support().size ** self.num_drafts <= _MOST_TUPLES

    def validate_drawable(self, draft_tokens: ArrayLike) -> IntArray:
        """Return drafts (n,) as int64, or raise ValueError for drafts that a single position never draws."""
        ids = self.validate_tokens(draft_tokens)
        if ids.ndim != 1:
            raise wrong("draft_tokens", f"shape {ids.shape}", f"({self.num_drafts},)")
        if not self.can_draw(ids):
            raise ValueError(f"draft_tokens: got {ids.tolist()}, which {self!r} never draws")
        return ids

    def validate_tokens(self, draft_tokens: ArrayLike, name: str = "draft_tokens") -> IntArray:
        """Return ``draft_tokens`` as int64 of shape (…, n); errors are under that name."""
        try:
            array = np.asarray(draft_tokens)
        except ValueError as reason:
            raise wrong(name, "rows of different lengths", "(…, n)") from reason
        expected = f"integers of shape (…, {self.num_drafts})"
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"{name}: got dtype {array.dtype}, expected {expected}")
        if array.ndim == 0 or array.shape[-1] != self.num_drafts:
            raise wrong(name, f"shape {array.shape}", expected)
        if array.size and (array.min() < 0 or array.max() >= self.vocab_size):
            allowed = f"ids in [0, {self.vocab_size})"
            raise wrong(name, f"ids from {array.min()} to {array.max()}", allowed)
        return array.astype(np.int64)


def at_positions(law: Any, index: tuple[int, ...], own_axes: int) -> Any:
    """The law at an index of the leading axes of ``draft_probs``, which has ``own_axes`` more axes."""
    if not law.batch_shape and index == ():
        return law
    leading = index if isinstance(index, tuple) else (index,)
    chosen = copy.copy(law)
    chosen.draft_probs = law.draft_probs[(*leading, *(slice(None),) * own_axes)]
    chosen.batch_shape = chosen.draft_probs.shape[:-own_axes]
    return chosen


def validate_rng(rng: RngLike) -> np.random.Generator:
    """Return the generator of a seed, or the generator itself (SPEC 7); TypeError for anything else."""
    try:
        return np.random.default_rng(rng)
    except TypeError as reason:
        raise wrong_type(
            "rng", rng, "a seed (int), a sequence of ints, None or a Generator"
        ) from reason
    except ValueError as reason:
        raise wrong("rng", f"{rng!r:.100}", "a seed ≥ 0") from reason


def draw_tokens(probs: FloatArray, rng: np.random.Generator, count: int) -> IntArray:
    """Draw ``count`` tokens from masses (V,), which need not sum to 1."""
    return invert(probs.cumsum(), rng.random(count))


def invert(cumulative: FloatArray, uniforms: FloatArray) -> IntArray:
    """Sample by inversion: the first index whose cumulative mass is above uniforms (S,) times the total."""
    total = cumulative[-1]
    index = np.searchsorted(cumulative, uniforms * total, side="right")
    # If uniform · total is rounded up to the total, the last index with mass is taken.
    return np.minimum(index, np.searchsorted(cumulative, total))


def validate_law(law: object, before: object = None) -> DraftLaw:
    """Return the law; TypeError for anything else, also if it was swapped with the argument ``before`` it."""
    if isinstance(before, DraftLaw):
        given = f"{type(law).__name__} after a {type(before).__name__} in place of an array"
        raise TypeError(f"law: got {given}: are the two swapped?")
    if not isinstance(law, DraftLaw):
        raise wrong_type("law", law, "a DraftLaw such as WithReplacement(draft_probs, 4)")
    return law


def validate_one_position(law: object, before: object = None) -> DraftLaw:
    """Return a law without leading axes, else ValueError; other errors are those of :func:`validate_law`."""
    checked = validate_law(law, before)
    if checked.batch_shape:
        raise wrong("law", f"leading axes {checked.batch_shape}", "one position")
    return checked


def validate_target(target_probs: ArrayLike, law: DraftLaw, copy: bool = False) -> FloatArray:
    """Return the target (…, V) in float64; ValueError unless it fits the vocabulary and axes of a law."""
    validate_law(law, target_probs)
    target = validate_probs("target_probs", target_probs, copy)
    validate_same_vocabulary(target, law.vocab_size, law.batch_shape)
    return target
