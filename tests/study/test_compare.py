import numpy as np
import pytest

import otmd
from otmd.study.compare import compare
from otmd.verifiers import PreparedVerifier

P, Q = np.array([1 / 3, 0, 2 / 3]), np.full(3, 1 / 3)


def test_one_position_is_the_ground_truth() -> None:
    table = compare(P, Q, num_drafts=2)
    rates = {(row.law, row.verifier): row for row in table}
    assert rates["WithReplacement", "RecursiveRejection"].rate == pytest.approx(7 / 9)
    assert rates["WithReplacement", "Optimal"].rate == pytest.approx(8 / 9, abs=1e-6)
    assert rates["Hub", "SpecHub"].rate == pytest.approx(5 / 6)
    assert rates["WithoutReplacement", "RecursiveRejection"].gap == pytest.approx(1 / 6)
    assert rates["ConditionalPoisson", "TargetOnly"].optimal == pytest.approx(1)
    assert (np.diff([row.rate for row in table]) <= 1e-12).all()
    assert table.rows[0].error is None


def test_many_positions_are_averaged_and_leading_axes_broadcast() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), (3, 2)), rng.dirichlet(np.ones(6), 2)
    table = compare(p, q, range(1, 4))
    row = next(r for r in table if r[:3] == ("WithReplacement", "KSequential", 3))
    each = otmd.acceptance_rate(otmd.KSequential(), p, otmd.WithReplacement(q, 3))
    assert row.rate == pytest.approx(np.mean(each), abs=1e-12)
    assert row.error == pytest.approx(np.std(each, ddof=1) / np.sqrt(6), abs=1e-12)
    assert row.positions == 6
    assert {row.num_drafts for row in table} == {1, 2, 3}


def test_prints_as_a_table_and_converts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    table = compare(P, Q, [2])
    lines = repr(table).splitlines()
    assert lines[0].split()[:3] == ["law", "verifier", "n"]
    assert len(lines) == len(table) + 1
    assert table.to_dicts()[0]["law"] == table.rows[0].law
    assert table.to_polars().columns == list(table.rows[0]._fields)


def test_what_cannot_be_rated_is_named_and_loses_nothing_else() -> None:
    table = compare(P, np.array([1.0, 0, 0]), [2])
    assert {row.law for row in table} == {"WithReplacement"}
    assert any(
        said.startswith("Greedy × GreedyCoupling, n = 2: undefined") for said in table.skipped
    )
    assert "left out: Hub × SpecHub" in repr(table)


class _FromTarget(PreparedVerifier):
    def accept_probs(self, draft_tokens):
        return np.zeros(draft_tokens.size)

    def residual(self, draft_tokens):
        return self.target


class ForTwo(otmd.Verifier):
    """Lossless for two drafts; for others it emits the uniform distribution."""

    def serves(self, structure):
        return True

    def prepare_position(self, target, law):
        uniform = np.full(target.size, 1 / target.size)
        return _FromTarget(target if law.num_drafts == 2 else uniform, law)


# Enumerated, at n + 1 tokens or fewer; the last is sampled.
@pytest.mark.parametrize(
    ("law", "num_drafts", "vocab_size"),
    [
        ("with-replacement", 1, 4),
        ("without-replacement", 3, 4),
        ("with-replacement", 7, 3),
        ("with-replacement", 12, 2),
        ("without-replacement", 6, 68),
    ],
)
def test_a_rule_of_ones_own_that_is_not_lossless_is_not_ranked(
    law: str, num_drafts: int, vocab_size: int
) -> None:
    name = rf"^verifiers: ForTwo for .*, {num_drafts} drafts of {vocab_size} tokens"
    with pytest.raises(ValueError, match=f"{name}: not lossless: "):
        compare(P, Q, [2, num_drafts], laws=law, verifiers=["preference", ForTwo])
    assert compare(P, Q, 2, laws=law, verifiers=ForTwo).best.verifier == "ForTwo"
