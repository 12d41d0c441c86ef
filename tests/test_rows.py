"""Batches: the errors, the bits and the broadcasting of what is checked once and then computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strategies import Array

import otmd
import otmd.kernel
from otmd.probabilities import Rows

# More than a block holds, and enough for several threads.
B, V = 70, 5000
Ask = tuple[Callable[[Array], otmd.DraftLaw], Callable[[Any, Any], Any]]


def every_n(rule: otmd.Verifier, family: Any = otmd.WithReplacement) -> Ask:
    """A law of three drafts, and a verifier's rates for one, two and three of them."""
    return lambda q: family(q, 3), lambda p, law: rule.acceptance_bounds(p, law, every_n=True)[0]


ASK: dict[str, Ask] = {
    "optimum": (
        lambda q: otmd.WithReplacement(q, 3),
        lambda p, law: otmd.optimal_acceptance(p, law, every_n=True).rate,
    ),
    "recursive rejection": every_n(otmd.RecursiveRejection()),
    "k-sequential": every_n(otmd.KSequential()),
    "target only": every_n(otmd.TargetOnly()),
    "greedy": every_n(otmd.Preference(), otmd.Greedy),
    "hub": (otmd.Hub, lambda p, law: otmd.SpecHub().acceptance_rate(p, law)),
    "maximal coupling": (
        lambda q: otmd.WithReplacement(q, 1),
        lambda p, law: otmd.Preference().acceptance_rate(p, law),
    ),
    "maximal coupling, without": (
        lambda q: otmd.WithoutReplacement(q, 1),
        lambda p, law: otmd.Preference().acceptance_rate(p, law),
    ),
}
asked = pytest.mark.parametrize("name", ASK)


def batch(shape: tuple[int, ...], vocab_size: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return otmd.probs_from_logits(2.0 * rng.standard_normal((*shape, vocab_size)))


P, Q = batch((B,), V, 1), batch((B,), V, 2)
LAWS = {name: law(Q) for name, (law, _) in ASK.items()}
WRONG = {"nan": np.nan, "inf": np.inf, "negative": -0.25, "large": 0.5}


@asked
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("row", [0, B // 2, B - 1])
def test_a_bad_row_is_told_as_by_a_check_of_all(name: str, dtype: type, row: int) -> None:
    for value in WRONG.values():
        p = P.astype(dtype)
        p[row, V // 3] = value
        with pytest.raises(ValueError, match="target_probs: got") as beforehand:
            otmd.validate_probs("target_probs", p)
        with pytest.raises(ValueError, match="target_probs: got") as where_read:
            ASK[name][1](p, LAWS[name])
        assert str(where_read.value) == str(beforehand.value)


def test_of_several_bad_rows_one_is_told_whichever_is_read_first() -> None:
    p = P.copy()
    p[[5, 60], 0] = [7.0, np.nan]
    for _ in range(20):
        with pytest.raises(ValueError, match=r"target_probs: got nan at index \(60, 0\)"):
            otmd.optimal_acceptance(p, LAWS["optimum"])


def one_by_one(name: str, p: Array, q: Array) -> Array:
    law, ask = ASK[name]
    shape = np.broadcast_shapes(p.shape, q.shape)
    pairs = [np.broadcast_to(x, shape).reshape(-1, shape[-1]).copy() for x in (p, q)]
    rates = [ask(target, law(draft)) for target, draft in zip(*pairs, strict=True)]
    return np.array(rates).reshape(*shape[:-1], *np.shape(rates[0]))


@asked
def test_a_batch_is_its_positions_to_the_last_bit(name: str) -> None:
    found = ASK[name][1](P, LAWS[name])
    np.testing.assert_array_equal(found, one_by_one(name, P, Q))


SHAPES = [((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((1,), (3,)), ((3,), (1,)), ((1, 3), (3,))]


@asked
@pytest.mark.parametrize("vocab_size", [40, 3000])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_rows_that_serve_several_positions(name: str, vocab_size: int, shapes: tuple) -> None:
    p, q = batch(shapes[0], vocab_size, 3), batch(shapes[1], vocab_size, 4)
    found = ASK[name][1](p, ASK[name][0](q))
    np.testing.assert_array_equal(found, one_by_one(name, p, q))


@asked
@pytest.mark.parametrize("shapes", [((0,), (0,)), ((0,), ()), ((), (0,)), ((2, 0), (1, 1))])
def test_no_positions(name: str, shapes: tuple) -> None:
    p, q = np.full((*shapes[0], 4), 0.25), np.full((*shapes[1], 4), 0.25)
    assert np.shape(ASK[name][1](p, ASK[name][0](q)))[: len(shapes[0]) or 1].count(0) == 1


def test_a_target_that_no_position_reads_is_checked() -> None:
    with pytest.raises(ValueError, match="target_probs: got nan"):
        otmd.optimal_acceptance([np.nan, 1.0], otmd.WithReplacement(np.empty((0, 2)), 2))


@pytest.mark.parametrize("name", [name for name in ASK if name not in ("greedy", "hub")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_vocabulary_of_one_token(name: str, dtype: type) -> None:
    p = np.ones((3, 1), dtype)
    p[1] *= dtype(1 - np.finfo(dtype).eps)
    rates = ASK[name][1](p, ASK[name][0](np.ones((3, 1))))
    np.testing.assert_allclose(rates, np.ones(np.shape(rates)), rtol=0, atol=1e-15)


@asked
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
def test_other_dtypes_are_their_float64_conversion_to_the_last_bit(name: str, dtype: type) -> None:
    p = P.astype(dtype)
    converted = otmd.validate_probs("target_probs", p)
    ask = ASK[name][1]
    np.testing.assert_array_equal(ask(p, LAWS[name]), ask(converted, LAWS[name]))


@asked
def test_arrays_of_other_orders_and_strides(name: str) -> None:
    wanted = ASK[name][1](P, LAWS[name])
    spread = np.zeros((B, 2 * V))
    spread[:, ::2] = P
    read_only = P.copy()
    read_only.flags.writeable = False
    for p in (np.asfortranarray(P), spread[:, ::2], read_only, P.tolist()):
        np.testing.assert_array_equal(ASK[name][1](p, LAWS[name]), wanted)


@asked
def test_one_thread_and_two(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for count in (1, 2):
        monkeypatch.setattr(otmd.kernel, "num_threads", lambda count=count: count)
        results.append(ASK[name][1](P, LAWS[name]))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("own", [(), (1,), (4,), (3, 1), (1, 4), (3, 4)], ids=str)
def test_rows_are_those_of_a_broadcast(own: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random((*own, 5))
    wide = np.broadcast_to(values, (3, 4, 5)).reshape(12, 5)
    rows = Rows.of(values, (3, 4))
    assert np.shares_memory(rows.values, values)
    np.testing.assert_array_equal(rows.values[rows.row], wide)
    part = rows[2:7]
    np.testing.assert_array_equal(part.values[part.row], wide[2:7])
