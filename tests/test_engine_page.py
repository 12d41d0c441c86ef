"""The torch code of the page for engine authors, against ``otmd`` on random distributions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sweep_twin import swept_masses
from test_project import ROOT, code_blocks

import otmd
from otmd.audit import losslessness

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("otmd.tensors")
PAGE = Path(ROOT, "docs", "for_engine_authors.md")


SOURCE = "\n".join(code for lang, _, code in code_blocks(PAGE.read_text()) if lang == "python")


@pytest.fixture(scope="module")
def engine() -> SimpleNamespace:
    return functions(SOURCE)


def functions(source: str) -> SimpleNamespace:
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


def of_the_page(p: np.ndarray, slots: otmd.laws.Slots) -> np.ndarray:
    """First the liked tokens, then the others, both from the tail."""
    return np.lexsort((-slots.number, p < slots.token_probs))


@pytest.mark.parametrize(("n", "k"), [(2, 7), (3, 7), (2, 4)])
def test_outputs_follow_the_target_at_the_rate(engine, n: int, k: int) -> None:
    torch.manual_seed(0)
    rng, count = np.random.default_rng(n), 100_000
    for _ in range(2):
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
        order = of_the_page(p, law.position_structure.random)
        pairs = [(int(law.strata[y]), int(y)) for y in order]
        rate = sum(swept_masses(p, law, pairs).values())
        taken = which >= 0
        assert abs(taken.double().mean().item() - float(rate)) < 6 * np.sqrt(0.25 / count)
        rows = torch.arange(count)[taken]
        assert (drafts[rows, which[taken]] == token[taken]).all()
        assert not (drafts[~taken] == token[~taken, None]).any()


# ---------------------------------------------------------------- by the audit

ALARM, SAMPLES = 1e-4, 40_000
RANDOM = np.random.default_rng(5).dirichlet(np.full(200, 0.3), size=2)
PAIRS = {
    "one-hot draft": ([0.5, 0.3, 0.2, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    "one-hot both": ([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    "two tokens": ([0.1, 0.3, 0.2, 0.4, 0.0, 0.0], [0.0, 0.7, 0.0, 0.3, 0.0, 0.0]),
    "as many tokens as drafts": ([0.1, 0.3, 0.2, 0.4, 0.0, 0.0], [0.1, 0.2, 0.0, 0.3, 0.4, 0.0]),
    "disjoint": ([0.6, 0.4, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 0.3, 0.2, 0.0]),
    "ties": (np.full(12, 1 / 12), np.full(12, 1 / 12)),
    "ties in each": (np.repeat([3.0, 1.0], 4) / 16, np.tile([1.0, 3.0], 4) / 16),
    "200 tokens": tuple(RANDOM),
}


def audited(engine: SimpleNamespace, pair: str, dtype: torch.dtype, n: int = 4) -> bool:
    """Whether the audit finds the outputs faulty; a sound rule with probability ALARM over the seed."""
    torch.manual_seed(1)
    target, drafted = (torch.tensor(np.array(x)).to(dtype) for x in PAIRS[pair])
    p, q = (x.double().numpy() / x.double().sum().item() for x in (target, drafted))
    support = np.count_nonzero(q)

    def run(drafts: np.ndarray) -> np.ndarray:
        # Drafted here: where probabilities tie, the strata of the page may not be those of the law.
        rows = drafted.expand(len(drafts), -1)
        tokens, number, chance = engine.make_strata(rows, n, min(q.size, 150))
        index = engine.draft(number, chance, n)
        assert ((index >= 0).sum(-1) == min(n, support)).all()
        ids = tokens.gather(-1, index.clamp(min=0))
        assert (drafted[ids[index >= 0]] > 0).all()
        output, which = engine.verify(target.expand(len(drafts), -1), tokens, number, chance, index)
        rows = torch.arange(len(drafts))[which >= 0]
        assert (index[rows, which[rows]] >= 0).all()
        assert (ids[rows, which[rows]] == output[rows]).all()
        # With fewer tokens than drafts every one of them is drafted, and is a draft where it comes out.
        if support <= n:
            assert ((which >= 0) == (drafted[output] > 0)).all()
        # Where a target has no mass, nothing comes out.
        assert (target[output] > 0).all()
        return output.numpy()

    law, rng = otmd.Stratified(q, min(n, support)), np.random.default_rng(2)
    return losslessness(run, p, law, SAMPLES, ALARM, batched=True, rng=rng).faulty


@pytest.mark.parametrize(
    ("pair", "dtype"),
    [
        *((pair, torch.bfloat16) for pair in PAIRS),
        *(
            pytest.param("200 tokens", dtype, marks=pytest.mark.slow)
            for dtype in (torch.float16, torch.float32, torch.float64)
        ),
    ],
)
def test_the_audit_finds_no_fault(engine, pair: str, dtype: torch.dtype) -> None:
    assert not audited(engine, pair, dtype)


@pytest.mark.slow
def test_the_audit_finds_half_precision() -> None:
    """A control: the page's code, with the residual summed up in the dtype of the target."""
    source = SOURCE
    for exact, rounded in ((".float()\n", "\n"), ("accepted.float()", "accepted.bfloat16()")):
        assert source.count(exact) == 1
        source = source.replace(exact, rounded)
    assert audited(functions(source), "200 tokens", torch.bfloat16)


# ---------------------------------------------------------------- whole trees


def trees_of_the_page(engine, dtype: torch.dtype, count: int = 30):
    """Levels of 3 drafts after the root, then of 2 after two of its drafts or none, and the target's rows."""
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    q = torch.tensor(rng.dirichlet(np.full(50, 0.4), size=(count, 3))).to(dtype)
    nodes = torch.tensor([[0, 2], [1, -1], [-1, -1]]).repeat(count // 3, 1)
    levels = [
        engine.draft_level(q[:, :1], torch.zeros((count, 1), dtype=torch.int64), 3, 40),
        engine.draft_level(q[:, 1:], nodes, 2, 40),
    ]
    return torch.tensor(rng.dirichlet(np.full(50, 0.4), size=(count, 8))).to(dtype), levels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_page_scores_trees_as_the_package_does(engine, dtype: torch.dtype) -> None:
    target, levels = trees_of_the_page(engine, dtype)
    scores, ends, _ = engine.score_tree(target, levels)
    same = []
    for nodes, tokens, number, inclusion, drafts in levels:
        # In the package a node that does not exist drafts nothing.
        none, count = nodes[..., None] < 0, drafts.shape[-1]
        pairs = ((count, number), (0.0, inclusion), (-1, drafts))
        given = (torch.where(none, absent, value) for absent, value in pairs)
        same.append(tensors.TensorLevel(nodes, tokens, *given))
    rule = tensors.TensorLayerVerification(target, same)
    assert (scores - rule.scores).abs().max() < 1e-12
    assert (ends - rule.end_probs).abs().max() < 1e-12
    assert (scores[:, 4:].sum(dim=-1) > 0).sum() > 10


def test_paths_of_the_page_end_as_they_should(engine) -> None:
    """The frequencies of 20,000 ends of one tree; six standard errors."""
    target, levels = trees_of_the_page(engine, torch.float64)
    count = 20_000
    one_tree = [tuple(x[:1].expand(count, *x.shape[1:]) for x in level) for level in levels]
    rows = target[:1].expand(count, -1, -1)
    _, ends, _ = engine.score_tree(target[:1], [tuple(x[:1] for x in level) for level in levels])
    path, length, token = engine.verify_tree(rows, one_tree)
    last = path.gather(1, (length - 1).clamp(min=0)[:, None])[:, 0]
    node = torch.where(length > 0, last, 0)
    seen = torch.bincount(node, minlength=8) / count
    assert ((seen - ends[0]).abs() < 6 * (ends[0] / count).sqrt() + 1e-9).all()
    assert ((path >= 0).sum(dim=-1) == length).all()
    # The second level is after the drafts 0 and 2 of the root, in rows 1 and 3.
    parents = torch.tensor([1, 1, 3, 3])
    deep = path[length == 2]
    assert (parents[deep[:, 1] - 4] == deep[:, 0]).all()
    assert (rows[0, 0, token] > 0).all()
