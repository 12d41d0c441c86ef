"""The patterns of docs/howto/audit_an_engine.md: an engine with the fault of each line shows what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from recorded_engine import FAULTS

from otmd.audit import RecordedRunAudit, recorded_run

PAGE = Path(__file__).parents[2] / "docs/howto/audit_an_engine.md"
BONUS, EVERY_8TH = "bonus tokens (no drafts)", "every 8th row from row"
MUCH_TOO_OFTEN = "drafted much too often (p/q < 1/2)"
MUCH_TOO_RARELY = "drafted much too rarely (p/q ≥ 4)"
TOO_OFTEN = {"outputs: p/q", f"+ {MUCH_TOO_OFTEN}", "acceptance too high"}
IMPROBABLE = "+ p from 1e-6 to 0.001"
DRAFTED = ("depth 0", BONUS)


class Pattern(NamedTuple):
    """Engines with the numbers of their rows, and the signs that their reports show and do not show."""

    engines: dict[str, int]
    seen: set[str]
    unseen: frozenset[str] | set[str] = frozenset()


# By the usual fault, as on the page.
PATTERNS = {
    "temperature not applied": Pattern(
        {"temperature not applied": 400},
        {"outputs: p", "outputs: p/q", *DRAFTED, IMPROBABLE, "- the most likely token"},
        {"output_impossible", "output_improbable"},
    ),
    "a buffer that was never written": Pattern(
        {"temperature never written": 400}, {"outputs: p", *DRAFTED, "output_improbable"}
    ),
    "batch slots mixed up": Pattern(
        {"batch slots mixed up": 400}, {"request 0", "request 3", *DRAFTED, IMPROBABLE}
    ),
    "its settings": Pattern(
        {"one request at another temperature": 1000}, {"request 1"}, {"request 0", "request 2"}
    ),
    "workers or buffers that take turns": Pattern(
        {"every other row at half the temperature": 1000},
        {f"{EVERY_8TH} {k}" for k in (1, 3, 5, 7)},
        {f"{EVERY_8TH} {k}" for k in (2, 4, 6, 8)},
    ),
    "top-k or top-p not applied": Pattern(
        {"top-k not applied": 400, "top-p not applied": 400},
        {"output_impossible", "impossible_accepted"},
        {*DRAFTED},
    ),
    "another order of temperature and cuts": Pattern(
        {"cuts before the temperature": 400}, {"output_impossible", "impossible_accepted"}
    ),
    "a uniform random number of few bits, or compared with ≤ in place of <": Pattern(
        {"a coarse coin": 400}, {"impossible_accepted"}, {"output_impossible"}
    ),
    "a penalty ignored": Pattern(
        {"penalty ignored": 600},
        {"outputs: earlier occurrences", "+ came out earlier in the request"},
        {"outputs: p", "outputs: q", "outputs: p/q"},
    ),
    "the bonus token from the wrong row, or from q": Pattern(
        {"bonus token from q": 400, "bonus token from the row before": 400},
        {BONUS, "outputs: p", "outputs: q"},
        {"depth 0"},
    ),
    "a row of the target one depth off": Pattern(
        {"target one depth too far": 600}, {"depth 1", IMPROBABLE}, {"depth 0"}
    ),
    "one random number for a draft and its test": Pattern(
        {"random numbers used twice": 1200},
        {"outputs: token id"},
        {"outputs: p", "outputs: q", "outputs: p/q", "outputs: a hash"},
    ),
    "q of another row, or drafts accepted with q/p or untested": Pattern(
        {
            "q of the row before": 400,
            "q buffer uniform": 1000,
            "accepted with q/p": 400,
            "accepted always": 400,
            "accepted a little too often": 1200,
        },
        TOO_OFTEN,
        {BONUS},
    ),
    "rejections applied one position late": Pattern(
        {"rejections one position late": 600},
        {*TOO_OFTEN, "depth 0", "conditional acceptance at depth 0 of 1"},
        {"conditional acceptance at depth 1 of 1"},
    ),
    "drafts accepted with probability p in place of p/q": Pattern(
        {"accepted with p": 400}, {"outputs: p/q", f"+ {MUCH_TOO_RARELY}", "acceptance low"}, {BONUS}
    ),
    "the residual is p or q, is not carried to the next draft, or skips drafts": Pattern(
        {
            "residual not subtracted": 800,
            "residual from q": 600,
            "residual not carried": 800,
            "duplicates skipped": 2000,
            "best of the accepted drafts": 600,
        },
        {"outputs: p/q", f"- {MUCH_TOO_RARELY}"},
        {BONUS, IMPROBABLE, "acceptance low"},
    ),
    "a softmax of the residual, or one not renormalised, one token off, or a buffer of zeros": Pattern(
        {
            "softmaxed residual": 400,
            "residual one token off": 400,
            "residual not renormalised": 800,
            "residual buffer of zeros": 400,
        },
        {"outputs: p", "depth 0", IMPROBABLE},
        {BONUS},
    ),
    "the argmax recorded as sampled": Pattern(
        {"argmax recorded as sampled": 400},
        {"drafts: q", "drafts: token id", "+ drafts, quarter 1 in order of q"},
    ),
    "q recorded before a cut": Pattern(
        {"q recorded before a cut": 600},
        {"drafts: q", "- drafts, quarter 4 in order of q"},
        {"drafts: token id"},
    ),
    "drafts drawn before a cut": Pattern(
        {"drafts drawn before a cut": 300}, {"draft_impossible", "+ never drafted (q = 0)"}
    ),
    "one draw repeated": Pattern(
        {"one draft repeated": 300}, {"no link between the drafts of a position"}, {"drafts: q"}
    ),
    "a seed used twice": Pattern(
        {"a seed for two steps": 500}, {"no link to the drafts of the position before"}, {"drafts: q"}
    ),
}  # fmt: skip


def audited(rows: list[dict]) -> RecordedRunAudit:
    # A rate of 0.01 takes a tenth of the draws for exact p-values.
    return recorded_run(rows, false_alarm=0.01, rng=1)


def signs(report: RecordedRunAudit) -> set[str]:
    refuted = [claim for claim in report.claims if claim.refuted]
    found = {f"{x.side}: {x.order}" if x.order else x.name for x in refuted}
    found |= {group.name for claim in refuted for group in claim.refuted_groups}
    found |= {event.kind for event in report.events}
    found |= {f"{'-+'[x.deviations > 0]} {x.name}" for x in report.bands if abs(x.deviations) > 4}
    found |= {f"{name} of 1" for name, value in report.metrics.items() if value == 1}
    assert report.acceptance is not None
    found |= {"acceptance too high"} if report.acceptance.too_high else set()
    return found | ({"acceptance low"} if report.acceptance.rate < 0.8 * report.acceptance.most else set())


# The first engine of each line, and in make test-slow the others.
@pytest.mark.parametrize(
    ("fault", "name"),
    [
        pytest.param(fault, name, marks=pytest.mark.slow if index else ())
        for fault, pattern in PATTERNS.items()
        for index, name in enumerate(pattern.engines)
    ],
)
def test_a_fault_shows_the_pattern_of_its_line(fault, name):
    pattern = PATTERNS[fault]
    report = audited(FAULTS[name].run(pattern.engines[name], 1))
    assert report.outcome == "FAULTY"
    assert pattern.seen <= signs(report)
    assert not pattern.unseen & signs(report)
    sentence = "the drafts were not drawn from the recorded draft distribution"
    assert (sentence in report.verdict) == bool(signs(report) & {"drafts: q", "drafts: token id"})
    causes = [f"Usual cause of such rows: {event.usually}" for event in report.events]
    assert not causes or any(cause in str(report) for cause in causes)
    if report.acceptance.too_high:
        assert any("a lossless verifier accepts at most" in reason for reason in report.reasons)


def test_the_page_has_these_lines_and_no_others():
    assert {name for pattern in PATTERNS.values() for name in pattern.engines} == set(FAULTS)
    table = PAGE.read_text().split("## What deviates")[1].split("\n## ")[0]
    assert re.findall(r"^\| .+ \| (.+) \|$", table, re.M)[1:] == [*PATTERNS]


def test_batch_slots_are_not_mixed_up_in_a_batch_of_one():
    assert not audited(replace(FAULTS["batch slots mixed up"], slots=1).run(400, 1)).faulty


def test_another_order_of_cuts_is_sound_once_declared():
    rows = FAULTS["cuts before the temperature"].run(400, 1)
    assert not audited([row | {"target_order": "llama.cpp"} for row in rows]).faulty
