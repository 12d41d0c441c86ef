"""Target: each draft law's constructor and methods, with arguments of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

import otmd
from fuzz.choices import Choices
from otmd.laws import DraftLaw

METHODS = (
    "sample", "tuple_prob", "containment", "inclusion_probs", "enumerate", "with_num_drafts", "index",
    "prefix_containment",
)  # fmt: skip


def one_input(choices: Choices) -> None:
    with refusals():
        drafts = any_law(choices)
        repr(drafts)
        for _ in range(1 + choices.below(3)):
            _call(choices.pick(METHODS), drafts, choices)


@contextmanager
def refusals() -> Iterator[None]:
    """Let pass what a caller is told of bad arguments."""
    try:
        yield
    except ValueError:
        return
    except TypeError as error:
        if ": got " not in str(error):
            raise


def any_law(choices: Choices) -> otmd.DraftLaw:
    """A law of drafts, or ValueError where the choices make none."""
    vocab_size = 1 + choices.below(6)
    axes = tuple(choices.below(3) for _ in range(choices.below(3) if choices.below(3) == 0 else 0))
    count = 1 + choices.below(4) if choices.often() else choices.value()
    kind = choices.below(9)
    if kind == 6:
        rows = 1 + choices.below(4)
        table = choices.masses(vocab_size, (*axes, rows))
        return otmd.Independent(_or_any(table, choices), None if choices.often() else count)
    if kind == 7:
        rows = 1 + choices.below(4)
        drawn = [[choices.below(vocab_size) for _ in range(2)] for _ in range(rows)]
        size = vocab_size if choices.often() else choices.value()
        return otmd.Joint(_or_any(drawn, choices), _or_any(choices.masses(rows), choices), size)
    masses = _or_any(choices.masses(vocab_size, axes), choices)
    if kind == 5:
        top = choices.below(4) if choices.often() else choices.value()
        laws = (otmd.WithReplacement, otmd.WithoutReplacement, otmd.ConditionalPoisson, otmd.Hub)
        return otmd.TopThen(masses, count, top, choices.pick((*laws, "none")))
    if kind == 8:
        sharpness = 1.5 if choices.often() else choices.value()
        known = type(count) is int and 0 < count < 5 and choices.often()
        shares = choices.masses(count) if known else None
        return otmd.Stratified(masses, count, sharpness, _or_any(shares, choices))
    laws = otmd.WithReplacement, otmd.WithoutReplacement, otmd.ConditionalPoisson
    return (*laws, otmd.Greedy, otmd.Hub)[kind](masses, 2 if kind == 4 and choices.often() else count)


def _or_any(value: object, choices: Choices) -> object:
    return value if choices.often() else choices.array()


def _call(method: str, drafts: otmd.DraftLaw, choices: Choices) -> None:
    if method == "sample":
        rng = np.random.default_rng(0) if choices.often() else choices.value()
        size = choices.pick((None, 1, (2, 0), 3)) if choices.often() else _small(choices.value())
        tokens = drafts.sample(rng=rng, size=size)
        assert (drafts.tuple_prob(tokens) >= 0).all()
    elif method == "index":
        with suppress(IndexError):
            drafts[tuple(choices.below(3) for _ in range(choices.below(3)))]
    elif method == "prefix_containment":
        if isinstance(drafts, DraftLaw) and not drafts.batch_shape:
            structure = drafts.position_structure
            if structure.random_probs() is None:
                return
            first = structure.deterministic
            others = np.setdiff1d(np.arange(drafts.vocab_size), first)
            contained = structure.prefix_containment(np.append(first, others))
            assert ((contained >= 0) & (contained <= 1)).all()
    elif method in ("tuple_prob", "containment"):
        subset, tokens = np.zeros(drafts.vocab_size, bool), np.zeros((2, drafts.num_drafts), int)
        value = _or_any(subset if method == "containment" else tokens, choices)
        probs = np.asarray(getattr(drafts, method)(value))
        assert ((probs >= 0) & (probs <= 1 + 1e-12)).all()
    elif method == "with_num_drafts":
        drafts.with_num_drafts(choices.value())
    else:
        getattr(drafts, method)()


def _small(size: object) -> object:
    """A size that a machine can draw: what a caller asks for in good faith may be too much."""
    flat = np.ravel(np.array(size, dtype=object))
    return 2 if any(isinstance(n, int) and n > 1000 for n in flat) else size
