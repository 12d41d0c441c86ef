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
    Evidence,
    Settings,
    difference,
    make_plan,
    probs_table,
    prompts_needed,
    read_latency,
    read_texts,
)
from otmd.study.planning.latency import Latency, measure_latency
from otmd.study.planning.plan import advice
from otmd.study.planning.token_table import TOL
from otmd.study.planning.tree_choices import shapes

VOCAB, LENGTH, PROMPTS = 12, 14, 8
WIDTH, LEVELS = 4, 3
NODES = WIDTH + (LEVELS - 1) * WIDTH**2
TIMES = {
    "target": [{"tokens": n, "context": 100, "seconds": 0.02 + 0.001 * n} for n in (1, 8, 17)],
    "draft": [{"tokens": n, "context": 100, "seconds": 0.002} for n in (1, 16)],
    "verification": 0.0001,
}


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
        rules=list(CANDIDATES), num_drafts=(1, 2), budgets=(2, 7),
    )  # fmt: skip


def test_every_rule_is_ranked(plan):
    # The dump has no drawn trees.
    drawn = {name for name, candidate in CANDIDATES.items() if candidate.drawn}
    assert {row.rule for row in plan.rows} == CANDIDATES.keys() - drawn
    assert "otmd collect --trees" in plan.said[-1]
    values = [round(row.value, 12) for row in plan.rows]
    assert values == sorted(values, reverse=True)
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


def test_the_product_of_mean_rates_is_another_number(plan):
    """The mean rate of a level, taken to powers, against the estimate from the texts."""
    row = next(row for row in plan.rows if row.rule == "rejection" and len(row.choice.shape) == 3)
    naive = 1.0 + sum(row.rate**k for k in range(1, 4))
    assert abs(naive - row.tokens_per_step) > 0.02


def row_of(plan, rule, **changes):
    return next(row for row in plan.rows if row.rule == rule)._replace(**changes)


def test_advice_says_what_leads_on_the_held_out_half(plan):
    best = row_of(plan, "rejection", fitted=99.0)
    noise = np.random.default_rng(0).standard_normal(best.without.size)
    for shift, said in [(1.0, "significant, but it was picked there"), (noise, "not significant")]:
        leader = best._replace(value=best.value + 1.0, without=best.without + shift, fitted=0.0)
        _, second, *_ = advice([best, leader], 8, None)
        assert second.startswith("The choice is that of the fitting half; on the held-out half")
        assert second.endswith(f"{said}.")
    assert "held-out half" not in "".join(advice([best], 8, None))


def test_advice_compares_with_what_servers_run_and_not_with_repositories_of_papers(plan):
    """Sequoia's rule is read in the paper's repository: it is no baseline, and no engine's best row."""
    best = row_of(plan, "stratified", fitted=99.0, value=3.0, without=np.full(4, 3.0))
    sequoia = row_of(plan, "sequoia", fitted=98.0)
    block = row_of(plan, "block", fitted=97.0, value=2.0, without=np.full(4, 2.0))
    tree = row_of(plan, "most-likely", fitted=96.0, value=1.5, low=1.4, high=1.6)
    said = advice([best, sequoia, block, tree], 8, None)
    assert re.match(
        r"Take stratified with .*; compared with the best that engines run, block", said[0]
    )
    assert said[0].endswith("+50.0% [+50.0, +50.0].")
    (vllm,) = [
        sentence for sentence in said if sentence.startswith("The best of vLLM alone: block with")
    ]
    assert vllm.count(", 2.00 [") == 1
    assert any(
        re.match(
            r"The best of SGLang alone: most-likely with .*, 1\.50 \[1\.40, 1\.60\]\.$", sentence
        )
        for sentence in said
    )


def test_what_is_not_significant_is_undecided(plan):
    baseline = row_of(plan, "block", fitted=1.0, value=2.0, without=np.array([1.9, 2.0, 2.0, 2.1]))
    better = np.array([2.0, 2.0, 2.2, 2.2])
    best = row_of(plan, "stratified", fitted=2.0, value=2.1, without=better)
    (decision, few, *_) = advice([best, baseline], 8, None)
    assert decision.startswith("Undecided. Chosen on the fitting half: stratified with ")
    needed = prompts_needed(best, baseline, 4)
    assert f"about {needed} prompts would show it (now 8, of which 4 measure)." in decision
    assert "not significant" in decision
    assert (
        few
        == "Only 4 of 8 prompts measure: intervals over so few are wide, and may miss the truth."
    )
    behind = best._replace(value=1.9)
    assert "not ahead on the held-out half." in advice([behind, baseline], 8, None)[0]


@pytest.mark.parametrize(
    ("ends", "first", "speed"),
    [
        (
            (34.0, 32.0, 36.0),
            "Do not draft: rejection with a chain of",
            "0.68× [0.64, 0.72] the 50.00",
        ),
        ((52.0, 49.0, 55.0), "Undecided whether to draft:", "1.04× [0.98, 1.10] the 50.00"),
        ((60.0, 55.0, 65.0), "Take rejection with a chain of", "1.20× [1.10, 1.30] the 50.00"),
    ],
)
def test_whether_to_draft_is_said_first(plan, ends, first, speed):
    latency = Latency([(1, 0.02)], [(1, 0.01)], 0.0, 1)
    row = row_of(plan, "rejection", **dict(zip(("value", "low", "high"), ends, strict=True)))
    said = advice([row], 8, latency)
    assert said[0].startswith(first)
    assert speed in "".join(said)
    assert any("Only 4 of 8" in sentence for sentence in said)
    assert any(sentence.startswith("Take") for sentence in said) != first.startswith("Do not")


def test_when_more_drafts_stop_paying(plan):
    """A larger tree that was tried and not chosen has no row of its own."""
    alone = row_of(plan, "rejection")
    size = alone.choice.drafts
    said = advice([alone._replace(most_tried=size + 5)], 8, None)
    assert f"Up to {size + 5} drafts were tried; on the fitting half {size} was best." in said
    assert any(
        "were not tried" in sentence
        for sentence in advice([alone._replace(most_tried=size)], 8, None)
    )
    tree = row_of(plan, "stratified", most_tried=7)
    smaller = tree._replace(
        choice=tree.choice._replace(shape=(1,), budget=0, nodes=()), value=tree.value - 1,
        without=tree.without - 1, fitted=0.0,
    )  # fmt: skip
    said = advice([tree._replace(fitted=1.0), smaller], 8, None)
    assert any(
        f"More drafts pay up to {tree.choice.drafts}, the most that" in sentence
        for sentence in said
    )
    said = advice(
        [tree._replace(fitted=1.0), smaller._replace(value=tree.value, without=tree.without)],
        8,
        None,
    )
    assert any("No significant gain beyond 1 draft:" in sentence for sentence in said)


def test_the_most_that_was_tried(dump, tmp_path):
    slow = Latency([(1, 0.001), (99, 0.2)], [(1, 0.01), (99, 0.01)], 0.0, 1)
    found = make_plan(
        open_dataset(dump), tmp_path, depth=6, workers=1, rules=["rejection"], latency=slow
    )
    assert [(row.choice.shape, row.most_tried) for row in found.rows] == [((1,), 6)]
    assert found.said[0].startswith("Do not draft: rejection with a chain of 1 (draft T 1)")


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


def test_per_cent_and_tokens_are_in_tables_of_their_own(plan):
    tables = {table.title: table for table in plan.tables()}
    best = {row.rule: row for row in plan.rows if row.budget == 7}
    losses = {row[0]: row[2:7] for row in tables["Where drafts are lost, %"].rows}
    domains = {row[0]: row[2:] for row in tables["Tokens per step by domain"].rows}
    assert losses["stratified"][1] == 100 * best["stratified"].optimal
    for rule, (rate, optimal, gap, *bounds) in losses.items():
        assert 0 <= gap == pytest.approx(optimal - rate, abs=1e-9)
        assert all(0 < bound <= 100 for bound in bounds), rule
    for rule, row in best.items():
        assert domains[rule] == [*row.by_domain.values()]


def test_advice_names_the_decision(plan):
    assert re.match(r"(Take|Undecided\. Chosen on the fitting half:) ", plan.said[0])
    assert "α*" not in plan.said[0]
    assert re.search(r"no law of \d drafts? that was fitted here would exceed \d+", plan.said[-2])
    assert plan.about["target"] == "large"
    assert plan.about["texts"] == "8; values are of 4 of them"


def test_times_rank_by_tokens_per_second(dump, plan, tmp_path):
    (tmp_path / "times.json").write_text(json.dumps(TIMES))
    times = read_latency(tmp_path / "times.json")
    assert times.alone == pytest.approx(0.021)
    # Two calls of the draft, one of the target on three tokens.
    assert times.step((1, 1)) == pytest.approx(0.004 + 0.023 + 0.0002)
    found = make_plan(
        open_dataset(dump), tmp_path / "out", depth=3, workers=1, rules=["rejection"], latency=times
    )
    assert found.rows[0].value > 20
    assert "tokens per second" in found.said[0]
    slow = Latency([(1, 0.001), (99, 0.2)], [(1, 0.01), (99, 0.01)], 0.0, 1)
    found = make_plan(
        open_dataset(dump), tmp_path / "out", depth=3, workers=1, rules=["rejection"], latency=slow
    )
    assert found.rows[0].choice.shape == (1,)


def test_times_are_measured(monkeypatch, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from otmd import models

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 90}

    class Tokenizer:
        eos_token_id, chat_template = 1, None

        def get_vocab(self):
            return {str(i): i for i in range(90)}

    model = models.LanguageModel(
        LlamaForCausalLM(LlamaConfig(**shape, **heads)), Tokenizer(), "tiny", "sha256:made-here"
    )
    monkeypatch.setattr(models, "load_target", lambda *_: model)
    monkeypatch.setattr(models, "load_draft", lambda *_: model)
    names = {"target": {"name": "tiny"}, "draft": {"name": "tiny"}}
    (tmp_path / "times.json").write_text(json.dumps(measure_latency(names, [1, 4], 8)))
    times = read_latency(tmp_path / "times.json")
    times.check(3)
    assert times.step((2, 1)) > times.alone > 0
    with pytest.raises(ValueError, match="names no models"):
        measure_latency({}, [1], 8)


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


def test_shapes_are_within_budget():
    found = set(shapes((1, 2, 4), 7, 3))
    assert {(1,), (2, 2), (4,), (1, 1, 1), (2, 1, 1)} <= found
    assert all(np.cumprod(shape).sum() <= 7 for shape in found)
    assert all(list(shape) == sorted(shape, reverse=True) for shape in found)


def test_more_prompts_for_smaller_differences(plan):
    one, other = plan.rows[0], plan.rows[-1]
    gain, low, high = difference(one, other)
    assert low <= gain <= high
    closer = other._replace(value=one.value - gain / 50)
    assert prompts_needed(one, closer, 4) > prompts_needed(one, other, 4)
    assert prompts_needed(one, one, 4) is None


def test_command_writes_every_form(dump, tmp_path, capsys):
    files = {name: tmp_path / f"plan.{name}" for name in ("html", "markdown", "csv")}
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    command = ["plan", str(dump), "--depth", "3", "--tree-budget", "4", "--workers", "1", "--quiet"]
    command += ["--output", str(tmp_path / "out")]
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
        ({}, ["--depth", "40"], "expected more than the depth 40"),
        ({}, ["--top-k", "1"], "expected those that the text was sampled with"),
        ({"metadata": {"temperature": 1.0}}, ["--temperature", "0.6"], "--draft-temperature is free"),
        ({"position": np.arange(PROMPTS * LENGTH) * 2}, [], "expected consecutive ones"),
        ({"target_logits": np.full((PROMPTS * LENGTH, VOCAB), np.nan)}, [], "target_logits: got nan"),
        ({"draft_paths": None}, ["--rules", "most-likely"], "the dataset has none (otmd collect --paths 10"),
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


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({**TIMES, "target": TIMES["target"][:1]}, "target reaches 1 tokens, the budget needs 17"),
        ({"target": []}, "no latency table"),
        ({**TIMES, "verification": float("nan")}, "verification is nan"),
        ({**TIMES, "draft": [{"tokens": 2, "context": 1, "seconds": 1}]}, "a row of 1 token"),
    ],
)
def test_bad_times_are_one_line(dump, tmp_path, capsys, times, said):
    (tmp_path / "times.json").write_text(json.dumps(times))
    command = ["plan", str(dump), "--latency", str(tmp_path / "times.json"), "--depth", "3"]
    assert main([*command, "--output", str(tmp_path / "out"), "--workers", "1"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_few_prompts(tmp_path):
    dataset = open_dataset(write_texts(tmp_path / "texts", prompts=2))
    settings = Settings(("rejection",), (1,), Processing(), (Processing(),), 0)
    texts = read_texts(dataset)
    table = probs_table(dataset, texts, settings, tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match="got 2 prompts, expected at least 4"):
        Evidence(table, table, texts, LENGTH, 3)
