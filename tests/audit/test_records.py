"""Rows of a run: files are refused before they fill the memory, lists of some tokens are no distributions."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from recorded_engine import Engine

import otmd
from otmd.audit import recorded_run, source
from otmd.audit.base import acceptance_ceiling
from otmd.audit.declared import declared_law
from otmd.audit.statistics import mass_before, masses_before, ratio_order, ratios
from otmd.probabilities import Processing
from otmd.testing import hostile_pairs

ROW = {"target_probs": [0.5, 0.5], "output_token": 0}
P, Q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.15, 0.35, 0.3, 0.2])


def write(path: Path, listed: list[dict]) -> Path:
    lines = [json.dumps({k: np.array(v).tolist() for k, v in row.items()}) for row in listed]
    text = ("\n".join(lines) + "\n\n  \n").encode()
    path.write_bytes(gzip.compress(text) if path.name.lower().endswith(".gz") else text)
    return path


@pytest.mark.parametrize("name", ["run.jsonl", "run.JSONL", "run.jsonl.gz"])
def test_files_hold_rows_and_are_refused_where_cut_short(name, tmp_path):
    listed = Engine(num_drafts=2, depth=2).run(40, 3)
    path = write(tmp_path / name, listed)
    assert str(recorded_run(str(path))) == str(recorded_run(listed))
    content = path.read_bytes()
    for share in (0.0, 0.3, 0.98):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match=name) as caught:
            recorded_run(path)
        assert "\n" not in str(caught.value)


def test_a_null_of_logits_is_a_token_that_cannot_come_out(tmp_path):
    listed = [{"target_logits": [1.0, None, 0.0], "output_token": token} for token in (0, 1)]
    report = recorded_run(write(tmp_path / "run.jsonl", listed))
    assert [(x.kind, x.first_rows) for x in report.events] == [("output_impossible", (2,))]
    assert report.gaps == (np.inf,)


def most_likely(count: int, **more) -> list[dict]:
    """Log-probabilities of the most likely of 60 tokens, as engines' interfaces return them."""
    rng, listed = np.random.default_rng(0), []
    for _ in range(50):
        log_probs = np.log(Processing()(rng.normal(0, 1.5, 60)))
        ids = np.argsort(-log_probs)[:count]
        row = {"target_ids": ids, "target_logits": log_probs[ids], "output_token": int(ids[0])}
        listed.append(row | more)
    return listed


LISTS = {
    "log-probabilities": most_likely(20),
    "without ids": [row | {"target_ids": None, "output_token": 0} for row in most_likely(20)],
    "probabilities": [
        row | {"target_logits": None, "target_probs": np.exp(row["target_logits"])} for row in most_likely(20)
    ],
    "top-p": most_likely(20, target_temperature=0.5, target_top_p=0.9),
    "top-k last": most_likely(
        20, target_top_k=5, target_top_p=0.9, target_order="temperature,top_p,top_k,min_p"
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_the_most_likely_tokens_are_no_distributions(name):
    message = r"records: the target: got \(log-\)probabilities of some tokens .* logits of all V"
    with pytest.raises(ValueError, match=message):
        recorded_run(LISTS[name])


def test_other_lists_are_distributions():
    """All tokens with mass, a cut that needs no others, or logits that are no log-probabilities."""
    assert recorded_run(most_likely(60))
    assert recorded_run(most_likely(20, target_top_k=20, target_temperature=0.5, target_top_p=0.9))
    assert recorded_run(most_likely(20, target_temperature=0))
    raw = most_likely(20)
    raw[30]["target_logits"] = raw[30]["target_logits"] + 100
    assert recorded_run(raw)


@pytest.mark.parametrize("side", ["target", "draft"])
def test_probabilities_are_no_logits(side):
    logits = {"target_logits": [1.0, -1.0], "draft_logits": [1.0, -1.0], "draft_tokens": [0]}
    wrong = logits | {f"{side}_logits": [0.4, 0.6], "output_token": 0}
    with pytest.raises(ValueError, match=f"records: {side}_logits: got probabilities in every row"):
        recorded_run([wrong] * 5)
    # One row is no proof, and two tokens may well have logits 0 and 1.
    assert recorded_run([wrong, *[logits | {"output_token": 0}] * 4])
    assert recorded_run([logits | {f"{side}_logits": [0.0, 1.0]}] * 5)


def test_too_many_rows(monkeypatch):
    monkeypatch.setattr(otmd.audit.table, "MOST_ROWS", 3)
    with pytest.raises(ValueError, match="more than 3 positions: audit them in parts"):
        recorded_run([ROW] * 4)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_line_without_an_end_is_refused_before_it_is_read(name, tmp_path):
    path = tmp_path / name
    if name.endswith(".gz"):
        with gzip.open(path, "wb", compresslevel=1) as stream:
            for _ in range(3):
                stream.write(bytes(source.LONGEST_LINE // 2))
    else:
        with path.open("wb") as stream:
            stream.truncate(1 << 33)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="row 1: got a line of more than"):
            recorded_run(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * source.LONGEST_LINE
    finally:
        tracemalloc.stop()


def test_the_mass_before_a_token_needs_no_sort():
    for pair in [*hostile_pairs(), (np.full(5, 0.2), np.full(5, 0.2))]:
        p, q = (otmd.validate_probs("pair", own) for own in pair)
        ratio = ratios(p, q)
        by_mass = masses_before(p, np.argsort(-p, kind="stable"))
        distinct = np.unique(ratio[p > 0]).size == np.count_nonzero(p)
        for token in np.flatnonzero(p):
            assert mass_before(p, -p, token) == pytest.approx(by_mass[token], abs=1e-12)
            if distinct:
                wanted = masses_before(p, ratio_order(p, q))[token]
                assert mass_before(p, ratio, token) == pytest.approx(wanted, abs=1e-12)
    assert ratio_order(P, Q).tolist() == [1, 0, 2, 3]


def test_the_ceiling_of_fixed_drafts_is_their_mass():
    law = otmd.Joint(np.array([[1, 3]]), np.array([1.0]), 4)
    row = {"target_probs": P, "draft_tokens": [1, 3, 3], "output_token": 1}
    best = otmd.optimal_acceptance(P, law).rate
    assert recorded_run([row], "fixed").acceptance.most == pytest.approx(best, abs=2e-9)


def test_ties_are_broken_as_the_engine_did():
    target, q = np.array([0.1, 0.8, 0.05, 0.05]), np.array([0.4, 0.4, 0.2, 0.0])
    for drafts, best in (([0, 1], 0.1 + 2 / 3 + 0.05), ([1, 0], 0.8 + 0.1 + 0.05)):
        found = declared_law(otmd.Greedy, q, np.array(drafts))
        assert found
        assert acceptance_ceiling(target, found[0]) == pytest.approx(best)


LAWS = {
    "with-replacement": otmd.WithReplacement,
    "without-replacement": otmd.WithoutReplacement,
    "greedy": otmd.Greedy,
    "stratified": otmd.Stratified,
    "conditional-poisson": otmd.ConditionalPoisson,
    "top-k": lambda q, n: otmd.TopThen(q, n, n),
    "top-then": lambda q, n: otmd.TopThen(q, n, 1, rest=otmd.ConditionalPoisson),
}


@pytest.mark.parametrize("law", [*LAWS, "fixed"])
def test_hostile_distributions_pass(law):
    """Drafts and output by the book at each of them; a warning would be an error."""
    rng = np.random.default_rng(6)
    listed = []
    for p, q in hostile_pairs():
        count = min(2, np.count_nonzero(q))
        drafts = LAWS.get(law, otmd.WithReplacement)(q, count).sample(rng=rng)
        output = int(rng.choice(p.size, p=np.asarray(p, np.float64) / np.sum(p, dtype=np.float64)))
        own = {"target_probs": p, "draft_probs": q, "draft_tokens": drafts}
        listed.append(own | {"output_token": output})
    report = recorded_run(listed, LAWS.get(law, law), rng=rng)
    assert not report.events
    assert report.num_rows == len(hostile_pairs())


def test_classes_are_partitions_and_their_table_counts():
    p, q = [0.1, 0.2, 0.1, 0.2, 0.2, 0.2, 0.0], [0.4, 0.3, 0.1, 0.1, 0.0, 0.05, 0.05]
    row = {"target_probs": p, "draft_probs": q, "draft_tokens": [0]}
    by_ratio, by_mass = (otmd.audit.claims.CLASSES[order] for order in ("p/q", "p"))
    bands = recorded_run([row | {"output_token": token} for token in (0, 1, 2, 3, 5, 4)]).bands
    found = [band for band in bands if band.name in by_ratio]
    assert [(band.name, band.observed) for band in found] == [(name, 1) for name in by_ratio[:-1]]
    assert [band.expected / 6 for band in found] == pytest.approx(p[:4] + p[5:3:-1])
    row = {"target_probs": np.array([0.5, 0.3, 0.15, 0.0495, 0.0005])}
    bands = recorded_run([row | {"output_token": token} for token in (0, 0, 4)]).bands
    found = [band for band in bands if band.name in by_mass]
    assert [(band.name, band.observed) for band in found] == list(
        zip(np.delete(by_mass, [0, 1, 3]), (1, 0, 0, 2), strict=True)
    )
    assert [band.expected for band in found] == pytest.approx([0.0015, 0.1485, 1.35, 1.5])
