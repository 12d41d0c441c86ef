"""The torch code of the page for engine authors, against ``otmd`` on random distributions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_project import ROOT, code_blocks

import otmd

torch = pytest.importorskip("torch")
PAGE = Path(ROOT, "docs", "for_engine_authors.md")


@pytest.fixture(scope="module")
def engine() -> SimpleNamespace:
    [source] = [code for language, _, code in code_blocks(PAGE.read_text()) if language == "python"]
    names: dict[str, object] = {}
    exec(source, names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize(("size", "n"), [(2, 1), (3, 3), (6, 2), (40, 4), (300, 8)])
def test_strata_are_those_of_the_law(engine, size: int, n: int) -> None:
    rng = np.random.default_rng(size)
    q = rng.dirichlet(np.full(size, 0.5), size=20) + 1e-6
    law = otmd.Stratified(q / q.sum(axis=-1, keepdims=True), n)
    tokens, number, chance = engine.make_strata(torch.tensor(law.draft_probs), n, size)
    rows, order = np.arange(20)[:, None], tokens.numpy()
    assert (number.numpy() == law.strata[rows, order]).all()
    assert np.abs(chance.numpy() - law.inclusion_probs()[rows, order]).max() < 1e-12


def test_no_stratum_is_empty_where_rounding_could_make_it_so(engine) -> None:
    for n in (2, 3, 5, 8):
        for size in (n, n + 1, 3 * n, 1000):
            _, number, _ = engine.make_strata(torch.full((1, size), 1 / size), n, size)
            assert number.unique().tolist() == list(range(n))


def of_the_page(p: np.ndarray, slots: otmd.drafts.Slots) -> np.ndarray:
    """First the liked tokens, then the others, both from the tail."""
    return np.lexsort((-slots.number, p < slots.token_probs))


@pytest.mark.parametrize(("n", "k"), [(2, 7), (3, 7), (2, 4)])
def test_outputs_follow_the_target_at_the_rate(engine, n: int, k: int) -> None:
    torch.manual_seed(0)
    rng, count = np.random.default_rng(n), 200_000
    for _ in range(3):
        p, q = rng.dirichlet(np.ones(7), size=2)
        many = torch.tensor(q).repeat(count, 1)
        tokens, number, chance = engine.make_strata(many, n, k)
        places = engine.draft(number, chance, n)
        assert (number.gather(-1, places) == torch.arange(n)).all()
        target = torch.tensor(p).repeat(count, 1)
        token, which = engine.verify(target, tokens, number, chance, places)
        drafts = tokens.gather(-1, places)
        seen = np.bincount(token.numpy(), minlength=7) / count
        # Six standard errors.
        assert (np.abs(seen - p) < 6 * np.sqrt(p / count) + 1e-9).all()
        cut = np.where(q >= np.sort(q)[-k], q, 0.0)
        law = otmd.Stratified(cut / cut.sum(), n)
        rate = otmd.acceptance_rate(otmd.Preference(of_the_page), p, law)
        taken = which >= 0
        assert abs(taken.double().mean().item() - float(rate)) < 6 * np.sqrt(0.25 / count)
        rows = torch.arange(count)[taken]
        assert (drafts[rows, which[taken]] == token[taken]).all()
        assert not (drafts[~taken] == token[~taken, None]).any()
