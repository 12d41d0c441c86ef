"""Plans: from a dump of texts to a ranking, advice and a page; and what is said of bad input."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import reference as naive
from collected import write_folder

from otmd.cli import main
from otmd.models import open_dataset
from otmd.probabilities import Processing
from otmd.study.planning import (
    CANDIDATES,
    Latency,
    Settings,
    difference,
    make_plan,
    probs_table,
    prompts_needed,
    read_texts,
)
from otmd.study.planning.plan import advice
from otmd.study.planning.token_table import TOL

VOCAB, LENGTH, PROMPTS = 12, 14, 8
WIDTH, LEVELS = 4, 3
NODES = WIDTH + (LEVELS - 1) * WIDTH**2
# The optimal verifier takes long; test_texts.py compares it with enumeration.
RANKED = [name for name in CANDIDATES if "optimal" not in name]


def write_texts(path, prompts=PROMPTS, **changes):
    """Texts that a random first-order target samples, and a draft close to it."""
    rng = np.random.default_rng(0)
    target = rng.normal(0, 2, (VOCAB, VOCAB))
    draft = target + rng.normal(0, 1, (VOCAB, VOCAB))
    probs = Processing()(target)
    tokens = np.zeros((prompts, LENGTH + 1), int)
    for i in range(prompts):
        for t in range(LENGTH):
            tokens[i, t + 1] = rng.choice(VOCAB, p=probs[tokens[i, t]])
    rows = tokens[:, :-1].ravel()
    arrays = {
        "target_logits": target[rows],
        "draft_logits": draft[rows],
        "draft_paths": likeliest_paths(Processing()(draft))[rows],
        "prompt_id": np.repeat([f"p{i}" for i in range(prompts)], LENGTH),
        "domain": np.repeat(["code", "chat"], prompts * LENGTH // 2),
        "position": np.tile(np.arange(LENGTH), prompts),
        "token": tokens[:, 1:].ravel(),
        "metadata": {"target": {"name": "large"}, "draft": {"name": "small"}},
    }
    return write_folder(path, **(arrays | changes))


def likeliest_paths(draft):
    """The draft's likeliest paths after each token, (V, M, 2)."""
    found = []
    for last in range(VOCAB):
        after = lambda path, last=last: draft[(last, *path)[-1]].tolist()  # noqa: E731
        found.append(naive.as_rows(naive.likeliest_paths(after, WIDTH, LEVELS), NODES))
    return np.array(found)


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("plan") / "texts")


@pytest.fixture(scope="module")
def plan(dump, tmp_path_factory):
    return make_plan(
        open_dataset(dump), tmp_path_factory.mktemp("plan") / "out", depth=3, workers=1,
        rules=RANKED, num_drafts=(1, 2), budgets=(2, 7),
    )  # fmt: skip


def test_every_rule_is_ranked(plan):
    # The dump has no drawn trees.
    drawn = {name for name, candidate in CANDIDATES.items() if candidate.drawn}
    assert {row.rule for row in plan.rows} == set(RANKED) - drawn
    assert "otmd collect --trees" in plan.said[-1]
    values = [round(row.value, 12) for row in plan.rows]
    assert values == sorted(values, reverse=True)
    gain, low, high = difference(plan.rows[0], plan.rows[-1])
    assert low <= gain <= high
    for row in plan.rows:
        assert row.low <= row.value <= row.high
        assert row.choice.drafts <= row.budget
        assert 1.0 <= row.tokens_per_step <= 1.0 + len(row.choice.shape)
        kept = np.array(row.acceptance)
        assert (np.diff(kept) <= 1e-12).all()
        assert row.tokens_per_step <= 1.0 + kept.sum() + 1e-9
        assert set(row.by_domain) == {"code", "chat"}
        if row.rule in ("most-likely", "static-tree"):
            assert row.choice.drafts <= NODES
            assert np.isnan([row.rate, row.ceiling]).all()
            continue
        assert row.rate <= row.optimal + TOL / 2
        assert 0 < row.ceiling <= 1
        if row.rule in ("rejection", "block"):
            # With one draft, all of these are Σ min(p, q).
            assert row.rate == pytest.approx(row.optimal) == pytest.approx(row.proportional)
        if CANDIDATES[row.rule].chain:
            assert max(row.choice.shape) == 1
    # Bounds are of the same tokens, whatever the rule.
    known = [row for row in plan.rows if row.by_entropy]
    assert len({(row.choice.shape[0], row.proportional, row.ceiling) for row in known}) == 2
    by_rule = {row.rule: row for row in plan.rows if row.budget == 7}
    # A chain of argmax drafts is one of the static trees.
    fitted = {rule: row.fitted for rule, row in by_rule.items()}
    assert fitted["static-tree"] >= fitted["one-hot"]
    assert by_rule["most-likely"].choice.tree == "7 nodes, 3 deep"
    assert by_rule["rejection"].value >= by_rule["match-sampled"].value
    assert by_rule["block"].value >= by_rule["rejection"].value


def row_of(plan, rule, value=2.0, fitted=0.0, **changes):
    changes = {"without": np.full(4, value), "low": value, "high": value} | changes
    row = next(row for row in plan.rows if row.rule == rule)
    return row._replace(value=value, fitted=fitted, **changes)


def test_advice_begins_with_the_decision(plan):
    block = row_of(plan, "block", without=np.array([1.9, 2.0, 2.0, 2.1]))
    better = row_of(plan, "stratified", 3.0, fitted=99.0)
    # Sequoia's rule is read in the paper's repository: it is no baseline, and no engine's best row.
    sequoia = row_of(plan, "sequoia", 9.0, fitted=98.0)
    tree = row_of(plan, "most-likely", 1.5)
    said = advice([better, sequoia, block, tree], 8, None)
    assert re.match(
        "Take stratified with .*; compared with the best that engines run, block", said[0]
    )
    assert "+50.0% [+" in said[0]
    assert "on the held-out half sequoia with" in said[1]
    assert "significant, but it was picked there" in said[1]
    assert said[2] == (
        "Only 4 of 8 prompts measure: intervals over so few are wide, and may miss the truth."
    )
    assert any(re.match(r"The best of vLLM alone: block with .*, 2\.00 \[", x) for x in said)
    assert any(re.match("The best of SGLang alone: most-likely with .*, 1.50", x) for x in said)
    noisy = better._replace(value=2.1, without=np.array([2.0, 2.0, 2.2, 2.2]))
    decision = advice([noisy, block], 8, None)[0]
    assert decision.startswith("Undecided. Chosen on the fitting half: stratified with ")
    needed = prompts_needed(noisy, block, 4)
    assert prompts_needed(noisy._replace(value=2.05), block, 4) > needed
    assert prompts_needed(block, block, 4) is None
    assert f"about {needed} prompts would show it (now 8, of which 4 measure)." in decision
    behind = advice([noisy._replace(value=1.9), block], 8, None)
    assert "not ahead on the held-out half." in behind[0]
    assert "held-out half" not in "".join(advice([block], 8, None))


@pytest.mark.parametrize(
    ("value", "low", "first", "speed"),
    [
        (34.0, 32.0, "Do not draft: rejection with a chain of", "0.68× [0.64, 0.72] the 50.00"),
        (52.0, 49.0, "Undecided whether to draft:", "1.04× [0.98, 1.10] the 50.00"),
        (60.0, 55.0, "Take rejection with a chain of", "1.20× [1.10, 1.30] the 50.00"),
    ],
)
def test_whether_to_draft_is_said_first(plan, value, low, first, speed):
    latency = Latency([(1, 0.02)], [(1, 0.01)], 0.0, 1)
    row = row_of(plan, "rejection", value, low=low, high=2 * value - low)
    said = advice([row], 8, latency)
    assert said[0].startswith(first)
    assert speed in "".join(said)
    assert any(sentence.startswith("Take") for sentence in said) != first.startswith("Do not")


def test_when_more_drafts_stop_paying(plan):
    """A larger tree that was tried and not chosen has no row of its own."""
    tree = row_of(plan, "stratified", fitted=1.0, most_tried=7)
    size = tree.choice.drafts
    single = tree.choice._replace(shape=(1,), budget=0, nodes=())
    for row, other, said in (
        (
            tree._replace(most_tried=size + 5),
            None,
            f"Up to {size + 5} drafts were tried; on the fit",
        ),
        (tree._replace(most_tried=size), None, f"More than {size} drafts were not tried."),
        (tree, 1.0, f"More drafts pay up to {size}, the most that"),
        (tree, 2.0, "No significant gain beyond 1 draft:"),
    ):
        smaller = tree._replace(choice=single, fitted=0.0, value=other, without=np.full(4, other))
        listed = advice([row, smaller] if other else [row], 8, None)
        assert any(sentence.startswith(said) for sentence in listed), listed


def test_all_draft_temperatures_that_tie_are_shown(dump, tmp_path):
    """The most likely tokens are the same at every temperature."""
    found = make_plan(
        open_dataset(dump), tmp_path, depth=2, workers=1, num_drafts=(1,), budgets=(2,),
        rules=["one-hot", "static-tree", "rejection", "most-likely"], draft_temperatures=(1.0, 0.5),
    )  # fmt: skip
    tried = {row.rule: row.draft_temperatures for row in found.rows}
    assert tried["one-hot"] == tried["static-tree"] == [0.5, 1.0]
    assert len(tried["rejection"]) == 1
    # Engines grow most likely paths at temperature 1.
    assert tried["most-likely"] == [1.0]
    shown = {row[0]: row[-1] for row in found.tables()[0].rows}
    assert shown["one-hot"] == "0.5 or 1"


def test_each_budget_ranks_every_rule(plan):
    """A rule that a larger budget does not change keeps its row there."""
    kept = [row for row in plan.rows if (row.rule, row.budget) != ("block", 7)]
    plan = plan._replace(rankings=[plan.rankings[0]._replace(rows=kept)])
    small = {row.rule: row for row in plan.rows if row.budget == 2}
    large = small | {row.rule: row for row in plan.rows if row.budget == 7}
    assert large["block"].budget == 2
    tables = plan.by_budget()
    assert [*tables] == [7, 2]
    for budget, expected in ((2, small), (7, large)):
        shown = {row[0]: (row[1], row[6]) for row in tables[budget].rows}
        assert shown == {name: (row.value, row.choice.drafts) for name, row in expected.items()}
        assert max(drafts for _, drafts in shown.values()) <= budget
        assert len(tables[budget].rows) == len(shown)
    rules = plan.tables()[1]
    assert [row[0] for row in rules.rows] == [row[0] for row in tables[7].rows]
    assert all(row[1] == CANDIDATES[row[0]].title for row in rules.rows)


def test_an_interrupted_plan_goes_on(dump, tmp_path, monkeypatch):
    from otmd.study.planning import token_table

    dataset, whole = open_dataset(dump), token_table.text_table
    texts = read_texts(dataset)
    settings = Settings(("rejection", "sequoia"), (1, 2), Processing(), (Processing(),), 0)
    wanted = probs_table(dataset, texts, settings, tmp_path / "a", workers=1)
    seen = []

    def stop_at_third(settings, job):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(job.number)
        return whole(settings, job)

    monkeypatch.setattr(token_table, "text_table", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        probs_table(dataset, texts, settings, tmp_path / "b", workers=1)
    monkeypatch.setattr(
        token_table, "text_table", lambda s, job: seen.append(job.number) or whole(s, job)
    )
    found = probs_table(dataset, texts, settings, tmp_path / "b", workers=1)
    assert seen == list(range(len(texts)))
    assert found.equals(wanted)
    with pytest.raises(ValueError, match="other settings"):
        probs_table(dataset, texts, settings._replace(seed=1), tmp_path / "b", workers=1)


def test_command_writes_every_form(dump, tmp_path, capsys):
    files = {name: tmp_path / f"plan.{name}" for name in ("html", "markdown", "csv")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    command = ["plan", str(dump), "--depth", "3", "--tree-budget", "4", "--workers", "1", "--quiet"]
    command += ["--output", str(tmp_path / "out")]
    command += ["--rules", "one-hot,static-tree,most-likely,stratified,sequoia"]
    assert main([*command, *options]) == 0
    assert "tokens/step" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranking"][0]["value"] >= found["ranking"][-1]["value"]
    by_rule = {row["rule"]: row["choice"] for row in found["ranking"]}
    assert by_rule["most-likely"]["budget"] == by_rule["static-tree"]["drafts"] == 4
    assert [0] in by_rule["static-tree"]["nodes"]
    with files["csv"].open() as stream:
        rows = list(csv.DictReader(stream))
    assert float(rows[0]["tokens/step"]) == found["ranking"][0]["value"]
    assert "| rule |" in files["markdown"].read_text()
    page = files["html"].read_text()
    assert found["advice"][0].split(":")[0] in page.replace("&#x27;", "'")
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", page)


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, ["--rules", "magic"], "expected some of one-hot"),
        ({"prompts": 2}, [], "got 2 prompts, expected at least 4"),
        ({}, ["--depth", "40"], "expected more than the depth 40"),
        ({}, ["--top-k", "1"], "expected those that the text was sampled with"),
        ({"metadata": {"temperature": 1.0}}, ["--temperature", "0.6"], "--draft-temperature is free"),
        ({"position": np.arange(PROMPTS * LENGTH) * 2}, [], "expected consecutive ones"),
        ({"target_logits": np.full((PROMPTS * LENGTH, VOCAB), np.nan)}, [], "target_logits: got nan"),
        ({"draft_paths": None}, ["--rules", "most-likely"], "the dataset has none (otmd collect --paths 10"),
        ({}, ["--rules", "stratified-layer", "--draft-top-k", "3"], "without --draft-top-k"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(tmp_path, capsys, changes, options, said):
    path = write_texts(tmp_path / "texts", **changes)
    assert main(["plan", str(path), "--workers", "1", "--quiet", *options]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_cuts_of_the_texts_may_be_in_the_metadata(tmp_path, dump):
    recorded = {"temperature": 0.7, "top_k": VOCAB, "min_p": 0.0, "order": "llama.cpp"}
    path = write_texts(tmp_path / "texts", metadata=recorded)
    options = {
        "workers": 1,
        "rules": ["rejection"],
        "num_drafts": (1,),
        "budgets": (2,),
        "depth": 2,
    }
    plan = make_plan(open_dataset(path), tmp_path / "out", **options)
    assert plan.about["texts sampled with"] == str(Processing(**recorded))
    with pytest.raises(ValueError, match=r"the texts were sampled with .*llama.cpp"):
        make_plan(open_dataset(path), tmp_path / "other", target=Processing(0.7), **options)
