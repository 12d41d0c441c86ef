"""The distribution of each draft given those before it, against sums over every tuple."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from test_defaults import Least

import otmd

Q = np.array([0.4, 0.3, 0.2, 0.1])
TIED = np.array([0.0, 0.35, 0.35, 0.3])
TINY = np.array([1.0, 1e-310, 5e-324, 0.0])
TABLE = [[0, 0, 1], [0, 0, 1], [0, 2, 1], [3, 1, 0], [3, 1, 2]]

KINDS = {
    "with replacement": otmd.WithReplacement,
    "without replacement": otmd.WithoutReplacement,
    "conditional poisson": otmd.ConditionalPoisson,
    "stratified": otmd.Stratified,
    "stratified, sharp": partial(otmd.Stratified, sharpness=2.0),
    "greedy": otmd.Greedy,
    "top": lambda q, n: otmd.TopThen(q, n, top=n),
    "no top": partial(otmd.TopThen, top=0),
    "top then with replacement": partial(otmd.TopThen, top=1, rest=otmd.WithReplacement),
    "top then conditional poisson": partial(otmd.TopThen, top=1, rest=otmd.ConditionalPoisson),
    "top then stratified": partial(otmd.TopThen, top=1, rest=otmd.Stratified),
}
LAWS = {
    **{
        f"{name}, {n} of {q.tolist()}": make(q, n)
        for name, make in KINDS.items()
        for n, q in ((1, Q), (2, Q), (3, Q), (2, TIED), (3, TIED), (2, TINY))
    },
    **{f"hub of {q.tolist()}": otmd.Hub(q) for q in (Q, TIED, TINY)},
    "independent": otmd.Independent([Q, TIED, TINY]),
    "joint": otmd.Joint(TABLE, [0.1, 0.2, 0.3, 0.4, 0.0], 4),
    "by the two required methods": Least(),
}


@pytest.mark.parametrize("name", LAWS)
def test_next_drafts_are_conditional_sums_over_the_tuples(name: str) -> None:
    law = LAWS[name]
    every = list(product(range(law.vocab_size), repeat=law.num_drafts))
    probs = law.tuple_prob(every)
    for k in range(law.num_drafts):
        for prefix in product(range(law.vocab_size), repeat=k):
            masses = np.zeros(law.vocab_size)
            for tokens, prob in zip(every, probs, strict=True):
                masses[tokens[k]] += prob * (tokens[:k] == prefix)
            if masses.sum() == 0.0:
                with pytest.raises(ValueError, match="with which no draw of"):
                    law.next_draft_probs(prefix)
            elif masses.sum() > 1e-300:
                found = law.next_draft_probs(prefix)
                np.testing.assert_allclose(found, masses / masses.sum(), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_is_a_copy(kind: str) -> None:
    law = KINDS[kind](Q, 2)
    first = law.next_draft_probs(())
    wanted = first.copy()
    first[:] = 0.0
    np.testing.assert_array_equal(law.next_draft_probs(()), wanted)


def test_next_drafts_at_a_large_vocabulary_need_no_enumeration() -> None:
    q = np.random.default_rng(0).dirichlet(np.full(20_000, 0.1))
    for make in KINDS.values():
        law = make(q, 4)
        tokens = law.sample(rng=np.random.default_rng(1)).tolist()
        for k in range(4):
            probs = law.next_draft_probs(tokens[:k])
            assert probs[tokens[k]] > 0.0
            assert probs.sum() == pytest.approx(1.0, abs=1e-9)


def test_wrong_prefixes_are_named() -> None:
    law = otmd.WithReplacement(Q, 2)
    for prefix, message in [
        ((4,), "prefix: got 4"),
        ((-1,), "prefix: got -1"),
        ((0.5,), "prefix: got 0.5"),
        ((0, 1), "prefix: got 2 drafts, expected fewer than 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            law.next_draft_probs(prefix)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got leading axes \(2,\)"):
        otmd.WithReplacement(np.stack([Q, TIED]), 2).next_draft_probs(())
