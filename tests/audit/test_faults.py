"""The faults themselves: faulty as described, and sound but for the line that was changed."""

from __future__ import annotations

import naive
import numpy as np
import pytest

import otmd
from otmd import audit
from otmd.audit import faults
from otmd.audit.faults import (
    BreaksAtFirstRejection,
    broken_block_verification,
    negative_controls,
    pair,
    renormalised_rounded_drafts,
)
from otmd.sequences import BlockVerification, IIDPaths, TableModel, output_law

P, Q = pair(5, seed=3)


@pytest.mark.parametrize("control", negative_controls(), ids=lambda own: own.name)
def test_every_control_is_faulty(control):
    found = audit.enumerated(control.verifier, control.target_probs, control.law)
    assert found.faulty
    assert found.total_variation > 1e-4


def test_names_are_told_apart():
    names = [own.name for own in negative_controls()]
    assert len(names) == len(set(names)) == 11


def test_the_sound_version_of_the_sequence_fault_is_sound():
    own = broken_block_verification(BlockVerification())
    assert not audit.enumerated(own.verifier, own.target_probs, own.law).faulty


def test_the_sequence_fault_is_the_rule_of_its_output_law():
    """Its law of pairs by enumeration of whole steps, drafts and all."""
    own = broken_block_verification()
    rng = np.random.default_rng(1)
    target, draft = TableModel.random(3, 1, rng), TableModel.random(3, 1, rng)
    law = output_law(BreaksAtFirstRejection(), target, IIDPaths(draft, num_paths=1, depth=2))
    found = audit.enumerated(own.verifier, own.target_probs, own.law)
    np.testing.assert_allclose(found.output_law, law.sum(axis=-1).ravel(), atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_k_seq_at_a_scale_is_the_twins(scale):
    drafts = otmd.WithReplacement(Q, 3)
    twin = naive.k_seq(P.tolist(), Q.tolist(), 3, rho=scale)
    for tokens in drafts.enumerate()[0]:
        wanted = naive.conditional(twin(tuple(tokens.tolist())), 5)
        np.testing.assert_allclose(faults.KSequentialAt(P, Q, scale)(tokens), wanted, atol=1e-12)


def test_k_seq_is_lossless_from_its_smallest_scale_on():
    drafts = otmd.WithReplacement(Q, 3)
    smallest = naive.k_seq_rho(P.tolist(), Q.tolist(), 3)
    for part, faulty in [(0.9, True), (1.0, False), (1.3, False)]:
        rule = faults.KSequentialAt(P, Q, part * smallest)
        assert audit.enumerated(rule, P, drafts, tol=1e-9).faulty == faulty


def test_a_coarse_coin_is_what_the_coins_say():
    rule = faults.CoarseCoin(P, Q)
    coins = np.arange(2048) / 2048
    for wanted, drawn in [(0.0, 0.5), (0.25, 0.5), (0.1, 0.3), (0.6, 0.3), (1 / 2048, 1.0)]:
        assert rule.chance_to_accept(wanted, drawn) == np.mean(coins <= wanted / drawn)


def test_duplicates_are_looked_at_once():
    rule = faults.SkippedDuplicates(P, Q)
    assert rule.looked_at(np.array([3, 1, 3, 0, 1])).tolist() == [3, 1, 0]


def test_bfloat16_is_torchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.random(10_000),
            10.0 ** rng.uniform(-40, 0, 10_000),
            [0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8],
        ]
    )
    wanted = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).to(torch.float64)
    np.testing.assert_array_equal(faults.bfloat16(values), wanted.numpy())


def test_a_running_sum_gives_what_is_lacking_to_the_last():
    np.testing.assert_allclose(faults.drawn_by_running_sum([0.5, 0.25, 0.125]), [0.5, 0.25, 0.25])
    np.testing.assert_allclose(faults.drawn_by_running_sum([0.5, 0.75, 0.125]), [0.5, 0.5, 0.0])


def test_temperatures_and_cuts():
    np.testing.assert_allclose(faults.tempered(Q, 0.5), Q**2 / (Q**2).sum())
    assert faults.tempered(np.array([0.5, 0.5, 0.0]), 2.0).tolist() == [0.5, 0.5, 0.0]
    np.testing.assert_allclose(
        faults.top_k(np.array([0.2, 0.5, 0.3]), 2), [0, 0.625, 0.375], atol=1e-15
    )


def test_rounding_alone_is_beyond_what_an_audit_can_find():
    own = renormalised_rounded_drafts()
    found = audit.enumerated(own.verifier, own.target_probs, own.law)
    assert found.faulty
    assert found.total_variation < 1 / 256
    assert audit.samples_to_detect(own.target_probs, own.law, found.output_law) > 10_000_000
