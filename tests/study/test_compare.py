from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import otmd
from otmd.study.compare import compare
from otmd.verifiers import PreparedVerifier

P, Q = np.array([1 / 3, 0, 2 / 3]), np.full(3, 1 / 3)


def test_many_positions_are_averaged_and_leading_axes_broadcast() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), (3, 2)), rng.dirichlet(np.ones(6), 2)
    table = compare(p, q, range(1, 3))
    row = next(r for r in table if r[:3] == ("WithReplacement", "KSequential", 2))
    each = otmd.acceptance_rate(otmd.KSequential(), p, otmd.WithReplacement(q, 2))
    assert row.rate == pytest.approx(np.mean(each), abs=1e-12)
    assert row.error == pytest.approx(np.std(each, ddof=1) / np.sqrt(6), abs=1e-12)
    assert row.positions == 6
    best = otmd.optimal_acceptance(p, otmd.WithReplacement(q, 2)).rate
    assert row.optimal == pytest.approx(np.mean(best), abs=1e-12)
    assert (np.diff([row.rate for row in table]) <= 1e-12).all()
    assert {row.num_drafts for row in table} == {1, 2}


def test_prints_as_a_table_and_converts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    table = compare(P, Q, [2])
    # Of one position, there is none.
    assert {row.error for row in table} == {None}
    lines = repr(table).splitlines()
    assert lines[0].split()[:3] == ["law", "verifier", "n"]
    assert len(lines) == len(table) + 1
    assert table.to_dicts()[0]["law"] == table.rows[0].law
    assert table.to_polars().columns == list(table.rows[0]._fields)


def test_what_cannot_be_rated_is_named_and_loses_nothing_else() -> None:
    table = compare(P, np.array([1.0, 0, 0]), [2])
    assert {row.law for row in table} == {"WithReplacement"}
    assert any(said.startswith("Greedy × GreedyCoupling, n = 2: undefined") for said in table.skipped)
    assert "left out: Hub × SpecHub" in repr(table)


class _FromTarget(PreparedVerifier):
    def accept_probs(self, draft_tokens):
        return np.zeros(draft_tokens.size)

    def residual(self, draft_tokens):
        return self.target


class Mine(otmd.Verifier):
    """Lossless but where ``is_wrong`` says so: there it emits the uniform distribution."""

    def __init__(self, is_wrong: Callable[..., bool] = lambda target, law: False) -> None:
        self.is_wrong = is_wrong

    def serves(self, structure):
        return True

    def prepare_position(self, target, law):
        uniform = np.full(target.size, 1 / target.size)
        return _FromTarget(uniform if self.is_wrong(target, law) else target, law)


def other_than_two(target: np.ndarray, law: otmd.DraftLaw) -> bool:
    return law.num_drafts != 2


# Enumerated, at n + 1 tokens or fewer; the case of 68 tokens is sampled.
@pytest.mark.parametrize(
    ("law", "num_drafts", "where", "is_wrong"),
    [
        ("with-replacement", 1, "V = 4, random p and q", other_than_two),
        ("without-replacement", 3, "V = 4, random p and q", other_than_two),
        ("with-replacement", 7, "V = 3, random p and q", other_than_two),
        ("with-replacement", 12, "V = 2, random p and q", other_than_two),
        ("without-replacement", 6, "V = 68, random p and q", other_than_two),
        ("with-replacement", 2, "V = 4, a zero in p", lambda p, law: p.min() == 0),
        ("with-replacement", 2, "V = 4, a zero in q", lambda p, law: law.draft_probs.min() == 0),
        ("with-replacement", 2, "V = 4, p = q", lambda p, law: (p == law.draft_probs).all()),
    ],
)
def test_a_rule_of_ones_own_that_is_not_lossless_is_not_ranked(
    law: str, num_drafts: int, where: str, is_wrong: Callable[..., bool]
) -> None:
    name = f"^verifiers: Mine for .*, n = {num_drafts}, {where}"
    with pytest.raises(ValueError, match=f"{name}.*: not lossless: "):
        compare(P, Q, sorted({2, num_drafts}), laws=law, verifiers=["preference", Mine(is_wrong)])
    assert compare(P, Q, 2, laws=law, verifiers=Mine()).best.verifier == "Mine"


class OnlyTwo(Mine):
    """It says so when it is asked, not in ``serves``."""

    def prepare_position(self, target, law):
        if law.num_drafts != 2:
            raise otmd.UnsupportedLaw(f"num_drafts: got {law.num_drafts}, expected 2")
        return super().prepare_position(target, law)


class Boasting(Mine):
    def position_bounds(self, target, law, tol):
        return 0.97, 0.98


def test_a_rule_that_refuses_a_law_when_it_is_asked_is_left_out() -> None:
    laws = {"laws": "with-replacement"}
    rows = compare(P, Q, [1, 2, 3], **laws, verifiers=OnlyTwo)
    assert [(row.verifier, row.num_drafts) for row in rows] == [("OnlyTwo", 2)]
    with pytest.raises(ValueError, match="OnlyTwo for WithReplacement with 3: num_drafts: got 3"):
        compare(P, Q, 3, **laws, verifiers=OnlyTwo)


def test_bounds_that_do_not_hold_the_rate_are_refused() -> None:
    message = r"Boasting for .*, random p and q: got the bounds 0.9700 and 0.9800 of the rate, expected"
    with pytest.raises(ValueError, match=message):
        compare(P, Q, 2, laws="with-replacement", verifiers=Boasting)


@pytest.mark.parametrize(
    ("law", "error", "message"),
    [
        (None, TypeError, "^laws: got NoneType, expected a function of draft_probs and num_drafts"),
        (otmd.Stratified(Q, 2), TypeError, "^laws: got Stratified, expected a function"),
        (otmd.Preference, TypeError, "^laws: got the class Preference, expected a function"),
        ([("zero", lambda q, n: 0)], TypeError, "^laws: got int, expected functions that return"),
        (
            [("one", lambda q, n: otmd.Stratified(q, 1))],
            ValueError,
            "=1.*, expected 2 drafts of 18",
        ),
        ([("alone",)], ValueError, r"^laws: got \('alone',\), expected a pair"),
    ],
)
def test_what_is_no_law_is_refused(law: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compare(P, Q, 2, laws=law, verifiers="target-only")
