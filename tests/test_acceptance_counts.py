"""Rates from counters, against a list of steps; counts that contradict each other are refused."""

from __future__ import annotations

import numpy as np
import pytest
from test_project import ROOT, code_blocks

from otmd import AcceptanceCounts

# Accepted drafts of ten steps with three drafts each.
STEPS = [0, 0, 1, 1, 1, 2, 3, 3, 0, 3]
AT_LEAST = [7, 4, 3]
COUNTS = AcceptanceCounts(10, 14, drafted=30, accepted_by_position=AT_LEAST)


def test_rates_are_those_of_the_steps() -> None:
    assert COUNTS.accepted_per_step == pytest.approx(np.mean(STEPS))
    assert COUNTS.tokens_per_step == pytest.approx(np.mean(STEPS) + 1)
    assert COUNTS.draft_acceptance_rate == pytest.approx(14 / 30)
    assert COUNTS.accepted_share == pytest.approx(14 / 24)
    np.testing.assert_allclose(COUNTS.acceptance_by_position, [0.7, 0.4, 0.3])
    np.testing.assert_allclose(COUNTS.conditional_acceptance, [0.7, 4 / 7, 0.75])
    np.testing.assert_allclose(COUNTS.histogram, np.bincount(STEPS) / 10)


def test_each_form_gives_the_same_counts() -> None:
    assert AcceptanceCounts.from_histogram(np.bincount(STEPS).tolist(), drafted=30) == COUNTS
    assert AcceptanceCounts.from_histogram(np.bincount(STEPS), drafted=30) == COUNTS
    # Prometheus writes whole numbers with a point.
    assert AcceptanceCounts(10.0, np.float32(14), 30.0, np.array(AT_LEAST, float)) == COUNTS
    totals = AcceptanceCounts(10, 14)
    assert totals.tokens_per_step == pytest.approx(2.4)
    assert totals.draft_acceptance_rate is None
    assert totals.acceptance_by_position is totals.conditional_acceptance is totals.histogram is None


def test_the_length_that_was_counted_is_exact_and_shorter_ones_are_estimates() -> None:
    """A chain of 8 whose drafts are accepted with .95 and .3, in runs of ten tokens."""
    accepted = np.where(np.arange(20) < 10, 0.95, 0.3)

    def at_least(length: int) -> np.ndarray:
        """P(a step accepts at least 0, 1, … drafts), by the stationary law of where steps begin."""
        to, by_start = np.zeros((20, 20)), np.zeros((20, length + 1))
        for start in range(20):
            probs = np.append(accepted[(start + np.arange(length)) % 20], 0.0)
            by_start[start] = np.cumprod([1.0, *probs[:-1]])
            for k in range(length + 1):
                to[start, (start + k + 1) % 20] += by_start[start, k] * (1.0 - probs[k])
        return np.linalg.matrix_power(to, 5000)[0] @ by_start

    steps, counted = 10**6, at_least(8)
    by_position = np.round(steps * counted[1:]).astype(int)
    counts = AcceptanceCounts(steps, by_position.sum(), accepted_by_position=by_position)
    rows = {row.num_drafts: row for row in counts.draft_lengths([1.0] * 9)}
    assert rows[8].tokens_per_step == pytest.approx(at_least(8).sum(), abs=1e-5)
    assert rows[2].tokens_per_step / at_least(2).sum() == pytest.approx(0.891, abs=1e-3)
    assert rows[0] == (0, 1.0, 1.0)
    times = [1.0, 1.1, 1.3, 2.0]
    ranked = counts.draft_lengths(times)
    rates = [row.tokens_per_second for row in ranked]
    assert rates == sorted(rates, reverse=True)
    for row in ranked:
        assert row.tokens_per_second * times[row.num_drafts] == pytest.approx(row.tokens_per_step)


def test_what_was_never_tried_has_no_rate() -> None:
    never = AcceptanceCounts.from_histogram([5, 0, 0], drafted=0)
    assert never.acceptance_by_position.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(never.conditional_acceptance, [0.0, np.nan])
    assert np.isnan(never.draft_acceptance_rate)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: AcceptanceCounts(0, 0), ValueError, "steps: got 0, expected a whole number ≥ 1"),
        (lambda: AcceptanceCounts(10, -5), ValueError, "accepted: got -5, .*counter reset"),
        (lambda: AcceptanceCounts(10, 1.5), ValueError, r"accepted: got 1\.5, expected a whole"),
        (lambda: AcceptanceCounts(float("nan"), 1), ValueError, "steps: got nan"),
        (lambda: AcceptanceCounts(10, 1, float("inf")), ValueError, "drafted: got inf"),
        (lambda: AcceptanceCounts(10, 14, 13), ValueError, r"accepted: got 14, expected at most 13"),
        (lambda: AcceptanceCounts(10, 13, 30, AT_LEAST), ValueError, "expected 14, the sum by pos"),
        (lambda: AcceptanceCounts(10, 14, 30, [11, 3]), ValueError, r"at most 10 \(steps\), desc"),
        (lambda: AcceptanceCounts(10, 9, 30, [3, 6]), ValueError, "accepted_by_position: got"),
        (lambda: AcceptanceCounts(10, 9, 30, [10, -1]), ValueError, r"by_position\[1\]: got -1"),
        (lambda: AcceptanceCounts(10, 1).draft_lengths([1]), ValueError, "by_position: got None"),
        (lambda: COUNTS.draft_lengths([1, 0]), ValueError, "times: got .*, of steps with 0 to at most 3"),
        (lambda: COUNTS.draft_lengths([1] * 5), ValueError, "times: got"),
        (lambda: COUNTS.draft_lengths(["a"]), TypeError, r"times\[0\]: got"),
        (lambda: AcceptanceCounts.from_histogram([]), ValueError, "histogram: .* at least one step"),
        (lambda: AcceptanceCounts.from_histogram([1, 0.5]), ValueError, r"histogram\[1\]: got 0.5"),
        (lambda: AcceptanceCounts("10", 1), TypeError, "steps: got str"),
        (lambda: AcceptanceCounts(10, True), TypeError, "accepted: got bool"),
        (lambda: AcceptanceCounts(10, 1, 9, 1), TypeError, "accepted_by_position: got int"),
        (lambda: AcceptanceCounts.from_histogram({0: 3, 2: 1}), TypeError, "histogram: got dict"),
    ],
)  # fmt: skip
def test_refusals(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_"])
def test_the_page_reads_metrics_of_all_prefixes_and_engines(prefix) -> None:
    """Beside what it prints: a second engine, times of creation, and metrics of other names."""
    page = (ROOT / "docs" / "howto" / "vllm.md").read_text()
    (block,) = [code for _, _, code in code_blocks(page) if "re.findall" in code]
    (sample,) = [part for part in block.split('"""') if "engine=" in part]
    text = sample + sample.replace('engine="0"', 'model_name="a",engine="1"')
    text += "".join(line.replace("_total", "_created") + "\n" for line in sample.splitlines())
    text += 'vllm:generation_tokens_total{engine="0"} 99.0\n'
    names: dict = {}
    exec(block.replace(sample, text.replace("vllm:", prefix)), names)
    assert names["counts"] == AcceptanceCounts(200, 240, 400, (140, 100))
