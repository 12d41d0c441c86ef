"""Steps along texts are what decoders do: against enumeration, and against a decoder that drafts."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest
from collected import write_folder

import otmd
from otmd.models import open_dataset
from otmd.probabilities import Processing
from otmd.study.planning import CANDIDATES, Evidence, Settings
from otmd.study.planning.texts import (
    Text,
    longest_text,
    reached_by_block,
    reached_by_probs,
    read_texts,
    steps_along,
)
from otmd.study.planning.token_table import Job, text_table
from otmd.study.planning.tree_choices import Choice
from otmd.trees import (
    BlockVerification,
    IIDPaths,
    TableModel,
    TokenLevel,
    TokenTree,
    block_efficiency,
    inclusion_bound,
)

DEPTH = 3
# Two-sided, of a normal distribution: false alarms once in 160,000.
SIGMAS = 4.5


RULES = {
    "RRS": (otmd.RecursiveRejection(), otmd.WithReplacement),
    "strata": (otmd.Preference(), otmd.Stratified),
}


def emission_probs(verifier, p, law, token, **options):
    return verifier.prepare(p, law).emission_probs(token, **options)


def drafted_prob_of(verifier, law):
    """P(a token was drafted | it is emitted) of p, q, a number of drafts and the token, computed once."""
    known = {}

    def drafted_prob(p, q, count, token):
        key = (p.tobytes(), count, token)
        if key not in known:
            known[key] = emission_probs(verifier, p, law(q, count), token).sum()
        return known[key]

    return drafted_prob


def texts(target: TableModel, draft: TableModel, length: int = DEPTH):
    """Every text, its probability, and the distributions along it."""
    for tokens in product(range(target.vocab_size), repeat=length):
        p, q = (np.array([model(tokens[:i]) for i in range(length)]) for model in (target, draft))
        yield float(np.prod(p[np.arange(length), tokens])), tokens, p, q


# Every rule against enumeration: a candidate with the law of the same drafts, given q and their number.
SETTINGS = Settings((), (1, 2, 3), Processing(), (Processing(),), 0)
SHAPE, NODES, NESTED = (
    (2, 2, 1),
    ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)),
    ((((),), ()), ((),)),
)
PATHS = Choice("", 1.0, (2, 2, 2), 6, ((0,),))
EXACT = [
    *("one-hot", "match-sampled", "rejection", "block", "top-k-tree", "sequoia", "greedy"),
    *("rrs", "rrs-paths", "k-seq", "k-seq-paths", "preference", "preference-paths"),
    *("stratified", "optimal", pytest.param("stratified-optimal", marks=pytest.mark.slow)),
]


def small_pair(seed: int = 3, sparse: bool = False) -> tuple[TableModel, TableModel]:
    """A target and a draft; a sparse one has no mass on its least likely tokens."""
    rng = np.random.default_rng(seed)
    target, draft = TableModel.random(3, 2, rng=rng), TableModel.random(3, 2, rng=rng)
    if sparse:
        tables = [np.where(t > t.min(axis=-1, keepdims=True), t, 0.0) for t in draft.tables]
        draft = TableModel([table / table.sum(axis=-1, keepdims=True) for table in tables])
    return target, draft


@pytest.mark.parametrize("rule", EXACT)
def test_first_steps_are_block_efficiency_and_bounds_are_inclusion_bounds(rule):
    """Averaged over all texts, exactly what enumeration of drafts and decisions says."""
    candidate = CANDIDATES[rule]
    target, draft = small_pair(sparse=candidate.repeats)
    settings = SETTINGS._replace(rules=(rule,))
    weights, tables, names = [], [], []
    for number, (prob, tokens, p, q) in enumerate(texts(target, draft)):
        weights.append(prob)
        tables.append(text_table(settings, Job(number, [*tokens], p, q, "probs")))
        names.append(Text(str(number), "toy", [], [*tokens]))
    table = pl.concat(tables)
    bounds = table.select("text", "index", "draft_temperature", "num_drafts").unique()
    bounds = bounds.with_columns(proportional=1.0, fitted=1.0)
    evidence = Evidence(table, bounds, names, DEPTH, DEPTH)
    variant, make = next(iter(candidate.variants.items()))
    key = rule, variant, 1.0
    shape = (1,) * DEPTH if candidate.chain else SHAPE
    checks = []
    if candidate.paths:
        checks.append((evidence.trees[key], PATHS, IIDPaths(draft, 2, DEPTH)))
    elif not candidate.repeats:
        choice = Choice(variant, 1.0, shape)
        checks.append((evidence.levels[key], choice, TokenTree(draft, shape, make)))
    if candidate.static:
        # A static tree goes on below the first of equal drafts: levels are then no tree of their own.
        choice = Choice(variant, 1.0, (2, 3, 1), 6, NODES)
        checks.append((evidence.trees[key], choice, TokenTree(draft, NESTED, make)))
    assert checks
    for trees, choice, law in checks:
        mean = [
            sum(w * reach(i, choice)[0].sum() for i, w in enumerate(weights))
            for reach in (trees.reached, trees.bound)
        ]
        assert mean[1] == pytest.approx(inclusion_bound(target, law).value, abs=1e-12)
        step = BlockVerification() if rule == "block" else TokenLevel(candidate.verifier)
        # Sequoia's probabilities are unbiased estimates.
        if rule != "sequoia":
            assert mean[0] == pytest.approx(block_efficiency(step, target, law).value, abs=1e-8)


LENGTH, STOP = 6, 2


def decoder(rule, target, draft, make_law, rng):
    """The tokens and steps that count in one text, written by a decoder that drafts and stops."""
    text = ()
    tokens = steps = 0
    while len(text) <= LENGTH - DEPTH and STOP not in text:
        after = lambda model, before=text: lambda more: model(before + more)  # noqa: E731
        emitted = rule.step(after(target), make_law(after(draft)), rng=rng)
        if STOP in emitted:
            emitted = emitted[: emitted.index(STOP) + 1]
        text += emitted
        tokens += len(emitted)
        steps += 1
    return tokens, steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RRS", "strata", "block"])
def test_decoders_of_whole_texts(name):
    """Texts that end by themselves and texts that are cut, against 1,500 decoded texts."""
    target, draft = small_pair(5)
    counts = (2, 2, 1)
    if name == "block":
        rule = BlockVerification()
        make_law = lambda model: IIDPaths(model, 1, DEPTH)  # noqa: E731
    else:
        verifier, law = RULES[name]
        rule = TokenLevel(verifier)
        drafted_prob = drafted_prob_of(verifier, law)
        make_law = lambda model: TokenTree(model, counts, law)  # noqa: E731
    exact = np.zeros(2)
    for prob, tokens, p, q in texts(target, draft, LENGTH):
        length = tokens.index(STOP) + 1 if STOP in tokens else LENGTH
        if any(token != 0 for token in tokens[length:]):
            continue
        if STOP in tokens:
            prob = float(np.prod(p[np.arange(length), tokens[:length]]))
        if name == "block":
            ratios = q[np.arange(length), tokens[:length]] / p[np.arange(length), tokens[:length]]
            reached = reached_by_block(ratios, DEPTH)
        else:
            probs = [
                [drafted_prob(p[t], q[t], n, tokens[t]) for n in counts] for t in range(length)
            ]
            reached = reached_by_probs(np.array(probs))
        # A text that ends with its last token must not be taken for one that is cut there.
        ended = LENGTH + 1 if STOP in tokens and length == LENGTH else LENGTH
        steps = steps_along(reached, ended, DEPTH + ended - LENGTH)
        exact += prob * np.array([steps.tokens, steps.steps])
    rng = np.random.default_rng(0)
    seen = np.array([decoder(rule, target, draft, make_law, rng) for _ in range(1500)])
    errors = seen.std(axis=0) / len(seen) ** 0.5
    assert (np.abs(seen.mean(axis=0) - exact) <= SIGMAS * errors + 1e-12).all()


def dump(path, **changes):
    rows = np.random.default_rng(0).normal(size=(6, 5))
    arrays = {
        "target_logits": rows,
        "draft_logits": rows,
        "prompt_id": np.array(["a", "a", "a", "b", "b", "b"]),
        "position": np.array([4, 5, 6, 2, 1, 3]),
        "token": np.array([0, 1, 2, 3, 4, 0]),
    }
    return open_dataset(write_folder(path, **(arrays | changes)))


def test_texts_are_read_in_order(tmp_path):
    found = read_texts(dump(tmp_path / "dump"))
    assert [(text.prompt_id, text.rows, text.tokens) for text in found] == [
        ("a", [0, 1, 2], [0, 1, 2]),
        ("b", [4, 3, 5], [4, 3, 0]),
    ]
    assert longest_text({}, found) == 3
    assert longest_text({"max_new_tokens": 8}, found) == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"position": np.array([4, 5, 7, 1, 2, 3])}, "position 7 after 5, expected consecutive"),
        ({"token": None}, "lacks tokens"),
        ({"token": np.array([0, 1, 2, 3, 4, 5])}, "lacks tokens in"),
        ({"prompt_id": np.arange(6).astype(str)}, "has one position, expected a run"),
        ({"metadata": {"mode": "text"}}, "texts were given"),
    ],
)
def test_bad_texts_are_named(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        read_texts(dump(tmp_path / "dump", **changes))
