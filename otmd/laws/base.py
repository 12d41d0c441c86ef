"""The interface of draft laws: joint distributions of the draft tokens at one position."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from inspect import signature
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from otmd.kernel import input_size
from otmd.laws.drafts import MOST_TUPLES, Drafts
from otmd.laws.structure import Structure
from otmd.probabilities import (
    FloatArray,
    IntArray,
    broadcast_index,
    from_tensor,
    validate_count,
    validate_probs,
    validate_same_vocabulary,
    wrong,
    wrong_type,
)
from otmd.registry import LAWS, nearest

RngLike = np.random.Generator | int | Sequence[int] | None
"""Every ``rng``: a generator, a seed, or None for a seed from the system (SPEC 7)."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
MOST_DRAFTS = 10_000
"""The largest number of drafts at one position."""


class DraftLaw(ABC):
    """The joint distribution Q of the n draft tokens proposed at one position.

    A law is a function from the draft model's distribution q to the :class:`~otmd.laws.Structure` of the
    drafts: a subclass defines :meth:`structure`, and is served by everything that serves this structure. It
    may hold many positions, along leading axes: ``law[index]`` is the law of one of them.

    Parameters
    ----------
    draft_probs : array_like, shape (…, V)
        The draft model's next-token distribution.
    num_drafts : int
        How many tokens are drafted.

    Attributes
    ----------
    num_drafts : int
        n, how many tokens are drafted.
    vocab_size : int
        V.
    batch_shape : tuple of int
        The leading axes; ``()`` for a single position.

    Raises
    ------
    ValueError
        For an invalid distribution or ``num_drafts`` < 1; if ``distinct`` is True, also for more drafts than
        tokens with mass.

    Examples
    --------
    The first draft is the most likely token, the others are drawn at random from all other tokens:

    >>> import numpy as np
    >>> import otmd
    >>> class TopThenAny(otmd.DraftLaw):
    ...     def structure(self, q):
    ...         top, random = q.argmax(), None
    ...         if self.num_drafts > 1:
    ...             others = np.where(np.arange(q.size) == top, 0.0, 1.0 / (q.size - 1))
    ...             random = otmd.laws.Slots.single(others, self.num_drafts - 1)
    ...         return otmd.laws.Structure(np.array([top]), random, q.size)
    >>> law = TopThenAny([0.2, 0.3, 0.5], num_drafts=2)
    >>> otmd.optimal_acceptance([0.2, 0.3, 0.5], law).rate
    1.0
    """

    draft_probs: FloatArray
    num_drafts: int
    vocab_size: int
    batch_shape: tuple[int, ...] = ()
    distinct: ClassVar[bool] = False
    """Whether no token is drafted twice at a position."""
    batched: ClassVar[bool] = False
    """Whether :meth:`structure` takes q with leading axes, for all positions at once."""
    _own_axes = 1

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a constructor that is called with wrong arguments name the class, and those it takes."""
        super().__init_subclass__(**options)
        init = cls.__init__

        @wraps(init)
        def constructor(self: Self, *values: Any, **named: Any) -> None:
            try:
                init(self, *values, **named)
            except TypeError:
                if misfit := _misfit(init, self, *values, **named):
                    call = f"{cls.__name__}({', '.join([*signature(init).parameters][1:])})"
                    raise TypeError(f"{call}: {misfit}") from None
                raise

        cls.__init__ = constructor

    def __init__(self, draft_probs: ArrayLike, num_drafts: int) -> None:
        self.draft_probs = validate_probs("draft_probs", draft_probs)
        self.vocab_size = self.draft_probs.shape[-1]
        self.batch_shape = self.draft_probs.shape[: -self._own_axes]
        self._set_num_drafts(num_drafts)
        self._validate_support()

    def __repr__(self) -> str:
        shape = (*self.batch_shape, self.vocab_size)
        return f"{type(self).__name__}(draft_probs{shape}, num_drafts={self.num_drafts})"

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
    def structure(self, q: FloatArray) -> Structure | Drafts:
        """The structure of the drafts at a position whose draft distribution is q (V,)."""

    @cached_property
    def position_structure(self) -> Structure:
        """The structure of a law without leading axes."""
        structure = Structure.of(self.structure(self.draft_probs))
        given = structure.num_drafts, structure.vocab_size
        if given != (self.num_drafts, self.vocab_size):
            expected = f"{self.num_drafts} of {self.vocab_size}"
            raise wrong("structure", f"{given[0]} drafts of {given[1]} tokens", expected)
        return structure

    def shared_structure(self) -> Structure | None:
        """One structure of all positions, with leading axes; None unless the class is ``batched``."""
        return self.position_structure if self.batched or not self.batch_shape else None

    def _structures(self, shape: tuple[int, ...]) -> Iterator[tuple[tuple[Any, ...], Structure]]:
        """The structure of each position, and the index of its entries in arrays of a broadcast shape (…)."""
        for index in np.ndindex(shape[len(shape) - len(self.batch_shape) :]):
            yield (..., *index), self[broadcast_index(index, self.batch_shape)].position_structure

    def __getitem__(self, index: tuple[int, ...]) -> Self:
        """Return the law of the position(s) at ``index`` of the leading axes."""
        if not self.batch_shape and index == ():
            return self
        leading = index if isinstance(index, tuple) else (index,)
        chosen = copy.copy(self)
        chosen.draft_probs = self.draft_probs[(*leading, *(slice(None),) * self._own_axes)]
        chosen.batch_shape = chosen.draft_probs.shape[: -self._own_axes]
        return chosen

    def with_num_drafts(self, num_drafts: int) -> Self:
        """Return the law of the same family that draws ``num_drafts`` tokens; ValueError if there is none."""
        law = self if num_drafts == self.num_drafts else copy.copy(self)
        law._set_num_drafts(num_drafts)
        # The support was large enough for the drafts so far, so it is for fewer.
        if law.num_drafts > self.num_drafts:
            law._validate_support()
        return law

    def _set_num_drafts(self, num_drafts: int) -> None:
        """Set n, or raise ValueError for a number that the law is not defined for."""
        self.num_drafts = validate_count("num_drafts", num_drafts, maximum=MOST_DRAFTS)

    def _validate_support(self) -> None:
        """Raise ValueError if too few tokens have mass for the number of drafts."""
        if self.distinct:
            validate_distinct_support(self.draft_probs, self.num_drafts)

    def sample(self, size: int | tuple[int, ...] | None = None, *, rng: RngLike = None) -> IntArray:
        """Draw the draft tokens, shape (*size, *batch_shape, n).

        Parameters
        ----------
        size : int or tuple of int, optional
            How many independent draws, at least 0, else ValueError. The default is one draw without an axis.
        rng : int, sequence of int, numpy.random.Generator or None
            A seed or a generator, see :func:`numpy.random.default_rng`. Equal seeds give equal drafts; None,
            the default, draws others at every call.

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
            for index, structure in self._structures(self.batch_shape):
                tokens[(*index, slice(None))] = structure.sample(generator, count)
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
        checked = np.broadcast_to(checked, (*shape, self.num_drafts))
        probs = np.empty(shape)
        for index, structure in self._structures(shape):
            tuples = checked[(*index, slice(None))]
            flat = tuples.reshape(-1, self.num_drafts)
            probs[index] = structure.tuple_prob(flat).reshape(tuples.shape[:-1])
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
        probs = self.position_structure.next_draft_probs(np.array(tokens, np.int64))
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
        mask = np.asarray(from_tensor(subset))
        expected = f"bool of shape (…, {self.vocab_size})"
        if mask.dtype != np.bool_:
            raise TypeError(f"subset: got dtype {mask.dtype}, expected {expected}")
        if mask.ndim == 0 or mask.shape[-1] != self.vocab_size:
            raise wrong("subset", f"shape {mask.shape}", expected)
        shape = np.broadcast_shapes(mask.shape[:-1], self.batch_shape)
        mask = np.broadcast_to(mask, (*shape, self.vocab_size))
        values = np.empty(shape)
        with input_size(self.vocab_size):
            for index, structure in self._structures(shape):
                subsets = np.ascontiguousarray(mask[(*index, slice(None))])
                rows = subsets.reshape(-1, self.vocab_size)
                contained = np.array([structure.containment(row) for row in rows])
                values[index] = contained.reshape(subsets.shape[:-1])
        return values if shape else float(values)

    def inclusion_probs(self) -> FloatArray:
        """Probability that each token is among the drafts, shape (*batch_shape, V)."""
        probs = np.empty((*self.batch_shape, self.vocab_size))
        with input_size(self.vocab_size):
            for index, structure in self._structures(self.batch_shape):
                probs[(*index, slice(None))] = structure.inclusion_probs()
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
        return self.position_structure.enumerate()

    def can_enumerate(self) -> bool:
        """Whether the law at a single position has few enough tuples for :meth:`enumerate`."""
        return self.position_structure.num_tuples <= MOST_TUPLES

    def validate_drawable(self, draft_tokens: ArrayLike) -> IntArray:
        """Return drafts (n,) as int64, or raise ValueError for drafts that a single position never draws."""
        ids = self.validate_tokens(draft_tokens)
        if ids.ndim != 1:
            raise wrong("draft_tokens", f"shape {ids.shape}", f"({self.num_drafts},)")
        if not self.position_structure.can_draw(ids):
            raise ValueError(f"draft_tokens: got {ids.tolist()}, which {self!r} never draws")
        return ids

    def validate_tokens(self, draft_tokens: ArrayLike, name: str = "draft_tokens") -> IntArray:
        """Return ``draft_tokens`` as int64 of shape (…, n); errors are under that name."""
        try:
            array = np.asarray(from_tensor(draft_tokens))
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


def validate_rng(rng: RngLike) -> np.random.Generator:
    """Return the generator of a seed, or the generator itself (SPEC 7); TypeError for anything else."""
    try:
        return np.random.default_rng(rng)
    except TypeError as reason:
        raise wrong_type("rng", rng, "a seed (int), a sequence of ints, None or a Generator") from reason
    except ValueError as reason:
        raise wrong("rng", f"{rng!r:.100}", "a seed ≥ 0") from reason


def validate_distinct_support(draft_probs: FloatArray, num_drafts: int) -> None:
    """Raise ValueError unless every position has ``num_drafts`` tokens with mass."""
    # NumPy counts booleans several times faster than numbers, and fastest without an axis.
    support = np.count_nonzero(draft_probs > 0.0, axis=-1 if draft_probs.ndim > 1 else None)
    if np.min(support, initial=num_drafts) < num_drafts:
        raise ValueError(
            f"num_drafts: got {num_drafts} distinct drafts, expected at most {np.min(support)}, the "
            "number of tokens with mass in draft_probs"
        )


def validate_law(law: object, before: object = None) -> DraftLaw:
    """Return the law; TypeError for anything else, also if it was swapped with the argument ``before`` it."""
    if isinstance(before, DraftLaw):
        given = f"{type(law).__name__} after a {type(before).__name__} in place of an array"
        raise TypeError(f"law: got {given}: are the two swapped?")
    if isinstance(law, DraftLaw):
        return law
    if isinstance(law, type) and issubclass(law, DraftLaw):
        raise wrong_type("law", law, f"an object: {law.__name__}(q, 2)")
    if isinstance(law, str):
        name = nearest(law, LAWS)
        made = LAWS[name].class_name if name else "WithReplacement"
        raise TypeError(f"law: got the name {law!r}, expected an object: otmd.{made}(q, 2)")
    if isinstance(law, Sequence) or hasattr(law, "__array__"):
        raise TypeError("law: got an array, expected a DraftLaw; wrap it: otmd.WithReplacement(q, 2)")
    raise wrong_type("law", law, "a DraftLaw such as otmd.WithReplacement(q, 2)")


def takes_law(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a call with q and n in place of the law, such as ``function(p, q, 2)``, point to the law."""

    @wraps(function)
    def call(*values: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*values, **named)
        except TypeError:
            if _misfit(function, *values, **named):
                given = dict(zip(signature(function).parameters, values, strict=False)) | named
                validate_law(given.get("law"))
            raise

    return call


def _misfit(function: Callable[..., object], *values: Any, **named: Any) -> str:
    """Why a call does not fit the function's signature; empty if it does."""
    try:
        signature(function).bind(*values, **named)
    except TypeError as reason:
        return str(reason)
    return ""


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
