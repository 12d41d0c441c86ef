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
    assert (
        totals.acceptance_by_position is totals.conditional_acceptance is totals.histogram is None
    )


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
    page = (ROOT / "docs" / "howto" / "read_counters.md").read_text()
    (block,) = [code for _, _, code in code_blocks(page) if "re.findall" in code]
    (sample,) = [part for part in block.split('"""') if "engine=" in part]
    text = sample + sample.replace('engine="0"', 'model_name="a",engine="1"')
    text += "".join(line.replace("_total", "_created") + "\n" for line in sample.splitlines())
    text += 'vllm:generation_tokens_total{engine="0"} 99.0\n'
    names: dict = {}
    exec(block.replace(sample, text.replace("vllm:", prefix)), names)
    assert names["counts"] == AcceptanceCounts(200, 240, 400, (140, 100))
