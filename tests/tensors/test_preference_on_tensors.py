"""Stratified drafts and the preference rule on tensors: parity with the NumPy side, and losslessness."""

from __future__ import annotations

import numpy as np
import pytest
import token_order
import torch
from tensor_pairs import batches, edge_cases, model_like, on_each_device

import otmd
from otmd.audit import losslessness
from otmd.tensors import TensorPreference, stratify

SAME = 1e-9


def prepared(
    p: np.ndarray, q: np.ndarray, n: int, strata: bool, device: str = "cpu"
) -> TensorPreference:
    target, draft = (torch.tensor(x, device=device) for x in (p, q))
    if strata:
        return TensorPreference.for_strata(target, stratify(draft, n))
    return TensorPreference.with_replacement(target, draft, n)


def compare(p: np.ndarray, q: np.ndarray, n: int, device: str) -> None:
    laws = [(False, otmd.WithReplacement(q, n))]
    if (np.count_nonzero(q, axis=-1) >= n).all():
        law = otmd.Stratified(q, n)
        strata = stratify(torch.tensor(q, device=device), n)
        np.testing.assert_array_equal(strata.number.cpu(), law.strata)
        np.testing.assert_allclose(strata.inclusion.cpu(), law.inclusion_probs(), atol=1e-12)
        laws.append((True, law))
    for is_strata, law in laws:
        rule = prepared(p, q, n, is_strata, device)
        rate = token_order.rates(p, law)
        np.testing.assert_allclose(rule.rate.cpu(), rate, atol=SAME, err_msg=repr(law))
        np.testing.assert_allclose(rule.accepted.sum(dim=-1).cpu(), rate, atol=SAME)
        # Sums within rounding of 1 are divided out.
        assert (rule.accepted.cpu().numpy() <= p * (1.0 + SAME)).all()


@on_each_device
@pytest.mark.parametrize("n", [1, 2, 4])
def test_random_and_hostile_instances(n: int, device: str) -> None:
    for p, q in batches(80, seed=23):
        enough = np.count_nonzero(q, axis=-1) >= n
        for some in (enough, ~enough):
            if some.any():
                compare(p[some], q[some], n, device)


@on_each_device
@pytest.mark.parametrize("case", edge_cases())
def test_edges(case: str, device: str) -> None:
    p, q = edge_cases()[case]
    for n in (1, 2, 4):
        compare(p, q, n, device)


@pytest.mark.slow
@on_each_device
def test_a_large_vocabulary_and_leading_axes(device: str) -> None:
    p, q = model_like(4, 20_000, seed=3)
    compare(p, q, 4, device)
    compare(p[:, None], q[None, :2], 4, device)


# ---------------------------------------------------------------- losslessness

ALARM, SAMPLES = 1e-4, 40_000
P = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05, 0.0])
Q = np.array([0.1, 0.3, 0.05, 0.25, 0.15, 0.05, 0.1])


@pytest.mark.parametrize("strata", [True, False])
@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "control"])
def test_batched_output_follows_the_target(strata: bool, broken: bool) -> None:
    """A sound rule fails with probability 1e-4 over the seed. The control never thins, and must fail."""
    law = otmd.Stratified(Q, 3) if strata else otmd.WithReplacement(Q, 3)
    generator = torch.Generator().manual_seed(11)

    def verify(drafts: np.ndarray) -> np.ndarray:
        rows = (len(drafts), Q.size)
        rule = prepared(np.broadcast_to(P, rows).copy(), np.broadcast_to(Q, rows).copy(), 3, strata)
        if broken:
            rule._accept_prob = torch.ones_like(rule._accept_prob)
        return rule.verify(torch.tensor(drafts), generator).token.numpy()

    rng = np.random.default_rng(12)
    found = losslessness(verify, P, law, SAMPLES, ALARM, batched=True, rng=rng)
    assert found.faulty == broken


def test_sampled_drafts_follow_the_law() -> None:
    """One a stratum; each stratum's counts within five standard deviations of what is expected."""
    strata = stratify(torch.tensor(Q).expand(50_000, -1), 3)
    drafts = strata.sample(torch.Generator().manual_seed(5))
    for j in range(3):
        assert (strata.number[0][drafts[:, j]] == j).all()
        wanted = (strata.inclusion[0] * (strata.number[0] == j)).numpy()
        counts = np.bincount(drafts[:, j].numpy(), minlength=Q.size) / 50_000
        assert (np.abs(counts - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / 50_000)).all()


# ---------------------------------------------------------------- bad input


def test_positions_that_are_no_distribution_are_nan_or_refused() -> None:
    p, q = torch.tensor(np.stack([P, P, P])), torch.tensor(np.stack([Q, Q, Q]))
    q[1], p[2, 0] = 0.5, -1.0
    with pytest.raises(ValueError, match="draft_probs"):
        stratify(q, 3)
    strata = stratify(q, 3, validate=False)
    drafts = torch.tensor([[1, 4, 0]] * 3)
    for rule in (
        TensorPreference.for_strata(p, strata, validate=False),
        TensorPreference.with_replacement(p, q, 3, validate=False),
    ):
        assert rule.rate.isnan().tolist() == [False, True, True]
        assert (rule.verify(drafts).token == -1).tolist() == [False, True, True]
    with pytest.raises(ValueError, match="target_probs"):
        TensorPreference.for_strata(p, stratify(torch.tensor(Q), 3))
    with pytest.raises(ValueError, match="draft_tokens"):
        TensorPreference.for_strata(p[:1], stratify(torch.tensor(Q), 3)).verify(drafts)


def test_too_few_tokens_with_mass() -> None:
    q = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    with pytest.raises(ValueError, match="num_drafts: got 3 distinct drafts, expected at most 2"):
        stratify(q, 3)
    assert stratify(q, 3, validate=False).inclusion.isnan().all(dim=-1).tolist() == [True, False]
    with pytest.raises(ValueError, match="sharpness"):
        stratify(q, 2, sharpness=0.0)
    with pytest.raises(ValueError, match="shares"):
        stratify(q, 2, shares=[1.0])


IMPOSSIBLE = {
    "another stratum": ([1, 0, 4], "draft j from stratum j"),
    "a token without mass": ([1, 4, 7], "a token with mass"),
    "no token": ([1, 4, 8], "a token with mass"),
    "a negative id": ([1, 4, -1], "a token with mass"),
}


@pytest.mark.parametrize("strata", [True, False])
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_drafts_are_refused_or_not_decided(case: str, strata: bool) -> None:
    p, q = (torch.tensor(np.append(x, 0.0)).expand(2, -1) for x in (P, Q))
    tokens, told = IMPOSSIBLE[case]
    drafts = torch.tensor([[1, 4, 0], tokens])

    def rule(validate: bool) -> TensorPreference:
        if strata:
            return TensorPreference.for_strata(p, stratify(q, 3), validate)
        return TensorPreference.with_replacement(p, q, 3, validate)

    if case == "another stratum" and not strata:
        assert (rule(True).verify(drafts).token >= 0).all()
        return
    with pytest.raises(
        ValueError, match=rf"^draft_tokens: got \[.*\] at index \(1,\), .*{told}"
    ) as error:
        rule(True).verify(drafts)
    assert ("stratum" in str(error.value)) == strata
    assert (rule(False).verify(drafts).token < 0).tolist() == [False, True]


@pytest.mark.parametrize("validate", [True, False])
def test_drafts_of_a_wrong_form_are_named(validate: bool) -> None:
    p, q = torch.tensor(P), torch.tensor(Q)
    rules = (
        TensorPreference.for_strata(p, stratify(q, 3), validate),
        TensorPreference.with_replacement(p, q, 3, validate),
    )
    for rule in rules:
        for wrong in ([1, 4], [1, 4, 0, 2], [[1, 4, 0]], [1.0, 4.0, 0.0], 1):
            with pytest.raises(
                ValueError, match=r"^draft_tokens: got .*expected torch.int64 of shape \(3,\)"
            ):
                rule.verify(torch.tensor(wrong))
        with pytest.raises(ValueError, match=r"^draft_tokens: got device meta, expected cpu"):
            rule.verify(torch.tensor([1, 4, 0], device="meta"))


def test_many_runs_are_cut_short_and_stay_lossless(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last run tokens get a smaller c: a ≤ p, Σ a is the rate, and no more than without the cut."""
    monkeypatch.setattr("otmd.tensors.preference._MOST_RUNS", 2)
    p, q = model_like(8, 2000, seed=9)
    exact = token_order.rates(p, otmd.WithReplacement(q, 4))
    rule = prepared(p, q, 4, strata=False)
    rate = rule.rate.numpy()
    assert (rule.accepted.numpy() <= p * (1.0 + SAME)).all()
    np.testing.assert_allclose(rule.accepted.sum(dim=-1), rate, atol=SAME)
    assert (rate < exact + SAME).all()
    assert (rate < exact - 1e-6).any()
    rows = (20_000, 7)
    target, draft = (np.array(x) for x in ([0.25, 0.2, 0.2, 0.15, 0.1, 0.1, 0.0], Q))
    law, generator = otmd.WithReplacement(draft, 3), torch.Generator().manual_seed(2)

    def verify(drafts: np.ndarray) -> np.ndarray:
        rule = prepared(
            *(np.broadcast_to(x, (len(drafts), 7)).copy() for x in (target, draft)), 3, False
        )
        return rule.verify(torch.tensor(drafts), generator).token.numpy()

    found = losslessness(
        verify, target, law, rows[0], ALARM, batched=True, rng=np.random.default_rng(3)
    )
    assert not found.faulty


@pytest.mark.parametrize("sharpness", [50.0, 1000.0])
def test_weights_that_would_underflow(sharpness: float) -> None:
    rng = np.random.default_rng(1)
    q = rng.dirichlet(np.full(60, 0.1), size=20)
    law, strata = otmd.Stratified(q, 8, sharpness), stratify(torch.tensor(q), 8, sharpness)
    np.testing.assert_array_equal(strata.number, law.strata)
    np.testing.assert_allclose(strata.inclusion, law.inclusion_probs(), atol=1e-12)
