"""The page with six tokens: its numbers in a real browser are those of otmd."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import otmd

SCRIPT = Path(__file__).parents[1] / "docs" / "_static" / "explore.js"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LAWS = (
    otmd.TopK,
    otmd.WithReplacement,
    otmd.WithoutReplacement,
    otmd.Greedy,
    otmd.Stratified,
)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")


def rendered(folder: Path, body: str, address: str = "") -> str:
    """Return the page's HTML after its scripts ran."""
    page = folder / "page.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><body><script src='{SCRIPT.as_uri()}'></script>{body}"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    command = [BROWSER, *options, "--dump-dom", page.as_uri() + address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def cases() -> list[tuple[list[float], list[float], int]]:
    rng = np.random.default_rng(0)
    drawn = [
        (*rng.dirichlet(np.full(6, spread), size=2).tolist(), n)
        for spread in (0.5, 2.0)
        for n in (1, 2, 3, 4)
    ]
    equal = [1 / 6] * 6
    tied = [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    missing = [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    return [*drawn, (equal, equal, 3), (missing, tied, 2), (tied, tied, 4), (missing, tied[::-1], 3)]


def test_rates_in_the_browser_are_those_of_otmd(tmp_path):
    """Optima of five laws, their subsets, recursive rejection, K-SEQ and strata agree to 1e-9."""
    calls = f"JSON.stringify({json.dumps(cases())}.map(([p, q, n]) => explore(p, q, n)))"
    page = rendered(
        tmp_path, f"<pre></pre><script>document.querySelector('pre').textContent = {calls}</script>"
    )
    answers = json.loads(re.search(r"<pre>(.*?)</pre>", page, re.S)[1])
    for (p, q, n), answer in zip(cases(), answers, strict=True):
        assert answer["group"] == otmd.Stratified(q, n).strata.tolist()
        for kind, of_law in zip(LAWS, answer["laws"], strict=True):
            law = kind(q, n)
            best = otmd.optimal_acceptance(p, law)
            assert of_law["rate"] == pytest.approx(float(best.rate), abs=1e-9)
            subset = np.isin(np.arange(6), of_law["subset"])
            bound = np.array(p)[subset].sum() + 1 - law.containment(subset)
            assert bound == pytest.approx(float(best.rate), abs=1e-9)
            for name, rule in (("recursive rejection", "RecursiveRejection"), ("K-SEQ", "KSequential")):
                if name in of_law["rules"]:
                    rate = otmd.acceptance_rate(getattr(otmd, rule)(), p, law)
                    assert of_law["rules"][name] == pytest.approx(float(rate), abs=1e-9)


def test_the_address_holds_what_is_shown(tmp_path):
    """The table shows the rates of the weights that stand in the page's address."""
    page = rendered(
        tmp_path,
        "<div id=explore></div><script>draw(document.getElementById('explore'))</script>",
        "#p=2,1,1,0,0,0&q=1,1,2,1,1,2&n=3",
    )
    rates = [float(rate) for rate in re.findall(r'data-rate="([^"]*)"', page)]
    law = otmd.WithReplacement(np.array([1, 1, 2, 1, 1, 2]) / 8, 3)
    assert otmd.optimal_acceptance([0.5, 0.25, 0.25, 0, 0, 0], law).rate == pytest.approx(rates[3])
