"""Distributions checked and scaled, against fractions; logits turned into them, by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from conformance import VARIANTS

import otmd
import otmd.kernel
from otmd import trees
from otmd.verifiers import verifiers_serving

P = np.array([0.5, 0.3, 0.2])


def rows(dtype: type) -> np.ndarray:
    values = np.full((3, 2048), 1 / 2048, dtype)
    values[:, ::2] *= dtype(1.5)
    values[:, 1::2] *= dtype(0.5)
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("token", [1023, 1024])
@pytest.mark.parametrize("change", [0.0, 1e-5, -1e-5, 0.5, -0.001, np.nan, np.inf, -np.inf, 1e-16], ids=str)
def test_what_is_accepted_scaled_and_refused(dtype: type, token: int, change: float) -> None:
    values = rows(dtype)
    values[2, token] += dtype(change)
    tolerance = float(np.sqrt(np.finfo(dtype).eps))
    valid = all(np.isfinite(row).all() and row.min() >= 0 for row in values)
    totals = [float(sum(map(Fraction, row))) for row in values.tolist()] if valid else []
    if not valid or max(abs(total - 1) for total in totals) > tolerance:
        with pytest.raises(ValueError, match=r"^p: got"):
            otmd.validate_probs("p", values)
        return
    scaled = otmd.validate_probs("p", values)
    for probs, total, expected in zip(scaled, totals, values.astype(np.float64), strict=True):
        scale = 1.0 if abs(total - 1) < 1.4e-14 else total
        np.testing.assert_allclose(probs, expected / scale, rtol=1e-14)


def test_layouts_and_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).dirichlet(np.ones(5000), 70).astype(np.float32)
    expected = otmd.validate_probs("p", values)
    spread = np.zeros((70, 10_000), np.float32)
    spread[:, ::2] = values
    read_only = values.copy()
    read_only.flags.writeable = False
    for count in (1, 2):
        monkeypatch.setattr(otmd.kernel, "num_threads", lambda count=count: count)
        for same in (np.asfortranarray(values), spread[:, ::2], read_only, values):
            np.testing.assert_array_equal(otmd.validate_probs("p", same), expected)
    assert otmd.validate_probs("p", np.empty((0, 3))).shape == (0, 3)
    assert otmd.validate_probs("p", [1, 0]).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda torch: np.array([0.5, 0.5], object), "^p: got dtype object, expected real numbers"),
        (lambda torch: np.ma.masked_less([0.5, 0.5], 0.1), r"^p: got MaskedArray, expected .*\.filled"),
        (lambda torch: [Fraction(1)], "^p: got list, expected .*otmd.exact takes fractions$"),
        (lambda torch: torch.tensor([1.0]).to_sparse(), "^p: got Tensor, expected .* dense array"),
        (lambda torch: torch.ones(1, device="meta"), "^p: got Tensor, expected .* dense array"),
    ],
)
def test_arrays_of_another_kind_are_refused_by_name(make, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        otmd.validate_probs("p", make(pytest.importorskip("torch")))


def test_memory_is_shared_only_where_the_input_may_be_read() -> None:
    given = otmd.validate_probs("p", P)
    assert np.shares_memory(given, otmd.validate_probs("p", given, copy=False))
    assert not np.shares_memory(given, otmd.validate_probs("p", given))
    for other in (given * (1 + 1e-9), given.astype(np.float32), given[::-1]):
        before = other.copy()
        copied = otmd.validate_probs("p", other, copy=False)
        assert not np.shares_memory(copied, other)
        assert copied.sum() == pytest.approx(1, abs=1e-15)
        np.testing.assert_array_equal(other, before)
    given.flags.writeable = False
    assert not np.shares_memory(otmd.validate_probs("p", given, copy=False), given)


def test_a_tensor_in_bfloat16_may_be_off_by_its_own_rounding() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    peaked = torch.softmax(6 * torch.randn((20, 32_000), generator=generator), -1).bfloat16()
    assert (peaked.double().sum(-1) - 1).abs().max() > 3.5e-4
    probs = otmd.validate_probs("p", peaked)
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-13)
    with pytest.raises(ValueError, match=r"sums to 1\.1.* within 8\.8e-02.* dtype torch\.bfloat16"):
        otmd.validate_probs("p", torch.tensor([0.5, 0.6], dtype=torch.bfloat16))


LITTLE_ABOVE = [1 + 2.3e-16, 0.0]


def test_no_probability_is_above_one_by_rounding() -> None:
    given = np.array([LITTLE_ABOVE, [0.5, 0.5]])
    before = given.copy()
    for copy in (True, False):
        assert otmd.validate_probs("p", given, copy).max() == 1.0
    np.testing.assert_array_equal(given, before)
    law = otmd.Independent(given)
    assert law.inclusion_probs().tolist() == [1.0, 0.5]
    assert otmd.acceptance_rate(otmd.TargetOnly(), [0.5, 0.5], law) == 0.75
    draft = trees.TableModel([LITTLE_ABOVE])
    target = trees.TableModel([[0.5, 0.5]])
    tree = trees.AdaptiveTree(draft, (1, 1))
    assert trees.tokens_per_step(trees.LayerVerification(), target, tree).value == 1.75


@pytest.mark.parametrize("name", VARIANTS)
def test_laws_and_verifiers_of_rows_that_are_off_by_rounding(name: str) -> None:
    inside = np.arange(3) < 3
    for row in (
        [1 + 4e-16, 0.0, 0.0],
        [1.0, 1e-17, 1e-17],
        np.array([0.6, 0.3, 0.1]) * (1 + 7e-15),
    ):
        for n in (1, 2, 3):
            try:
                law = VARIANTS[name](row, n)
            except ValueError:
                continue
            tokens = law.sample(8, rng=0)
            found = [law.inclusion_probs(), law.containment(inside), law.tuple_prob(tokens)]
            found.append(law.next_draft_probs(()))
            for verifier in verifiers_serving(law):
                found += verifier.acceptance_bounds(row, law)
                prepared = verifier.prepare(row, law)
                found += [prepared.conditional_law(x) for x in tokens]
            for probs in found:
                assert np.min(probs) >= 0.0
                assert np.max(probs) <= 1.0


def test_logits_by_hand() -> None:
    """With NumPy alone; test_transformers_warpers.py tries every order of the steps."""
    logits = np.log([4.0, 3.0, 2.0, 1.0])
    for options, weights in (
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [16, 9, 4, 1]),
        ({"top_k": 2}, [4, 3, 0, 0]),
        ({"top_p": 0.6}, [4, 3, 0, 0]),
        ({"top_p": 0.8}, [4, 3, 2, 0]),
        ({"min_p": 0.6}, [4, 3, 0, 0]),
        # top-k first changes what top-p sees: only one of 4/7 and 3/7 is needed for 0.5.
        ({"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0]),
    ):
        probs = otmd.probs_from_logits(logits, **options)
        np.testing.assert_allclose(probs, np.array(weights) / sum(weights), rtol=1e-12)
    # Ties at the threshold of top-k all stay.
    assert (otmd.probs_from_logits([1.0, 0.0, 0.0], top_k=2) > 0).all()


NO = np.zeros(3)
REFUSALS = [
    ({"temperature": -1.0}, ValueError),
    ({"temperature": np.nan}, ValueError),
    ({"top_k": 0}, ValueError),
    ({"top_k": 1.5}, TypeError),
    ({"top_p": 10**400}, ValueError),
    ({"min_p": "0.5"}, TypeError),
    ({"logits": [0.0, np.nan]}, ValueError),
    ({"logits": [-np.inf, -np.inf]}, ValueError),
    ({"logits": []}, ValueError),
]


@pytest.mark.parametrize(("options", "error"), REFUSALS, ids=lambda value: str(value)[:20])
def test_refusals(options: dict, error: type) -> None:
    (named,) = options
    with pytest.raises(error, match=f"^{named}: got"):
        otmd.probs_from_logits(**{"logits": NO, **options})
