import json
import re

import pytest
from models.conftest import make_ngram, make_tiny

from otmd.cli import main
from otmd.cli.decode import TreeOptions, ways_of_decoding
from otmd.models import LanguageModel, decode_in_turn
from otmd.probabilities import Processing
from otmd.registry import LAWS, TREE_VERIFIERS


@pytest.fixture
def tiny(monkeypatch) -> LanguageModel:
    model = make_tiny()
    monkeypatch.setattr("otmd.models.load_target", lambda *_, **__: model)
    monkeypatch.setattr("otmd.models.load_draft", lambda *_: make_ngram(model, 4))
    monkeypatch.setattr("otmd.models.collection.held_out_corpus", lambda *_: None)
    return model


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["--draft-top-k", "5", "--branching", "2,2", "--law", "stratified", "--rule", "token"],
        ["--paths", "2", "--depth", "2", "--rule", "subtree"],
        ["--quota", "3", "--depth", "2"],
    ],
)
def test_three_ways_and_the_same_greedy_text(options, tiny, capsys):
    arguments = ["decode", "--prompt", "w1 w2 w3", "--max-new-tokens", "8", "--temperature", "0"]
    assert main([*arguments, *options, "--json", "--show"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ways"][0]["name"] == "target alone"
    last = answer["ways"][-1]
    looks_at_trees = TREE_VERIFIERS[last["name"].split("; ")[1]].node_verifier is None
    assert len(answer["ways"]) == 3 + looks_at_trees
    assert (last["tokens_ratio"] is not None) == looks_at_trees
    assert len({*answer["texts"][0]["texts"].values()}) == 1
    assert answer["ways"][0]["tokens_per_step"] == 1.0


def test_a_table_and_a_figure(tiny, capsys, tmp_path):
    arguments = ["decode", "--prompt", "w1 w2", "--max-new-tokens", "4", "--quiet"]
    assert main([*arguments, "--figure", str(tmp_path / "a.png")]) == 0
    out = capsys.readouterr().out
    for words in ("2 paths of 8, stratified", "preference", "layer", "compared position by position"):
        assert words in out
    assert re.search("95% interval.*1 prompts, repeats: 3", out, re.S)
    assert (tmp_path / "a.png").stat().st_size > 0
    # A figure that cannot be written costs no number.
    assert main([*arguments, "--figure", str(tmp_path / "a.png" / "a.png")]) == 1
    out, err = capsys.readouterr()
    assert "target alone" in out
    assert err.count("\n") == 1


def test_sampled_drafts_come_from_the_most_likely_tokens_alone(tiny):
    raw = Processing()
    options = TreeOptions()
    tree, rules = options.tree(), options.rules(options.tree())
    for top_k, draft_top_k, expected in ((None, 5, 5), (3, 5, 3), (None, 0, None)):
        processing = Processing(0.7, top_k)
        ways = ways_of_decoding(tiny, tree, rules, processing, draft_top_k)
        assert [way and way.processing.top_k for way in ways.values()] == [None, *[expected] * 3]
    options = TreeOptions(most_likely=6)
    likely = options.tree()
    ways = ways_of_decoding(tiny, likely, options.rules(likely), Processing(0.7), 5)
    assert [*ways.values()][-1].processing == raw


@pytest.mark.parametrize("finished", [0, 1])
def test_an_interruption_says_what_was_finished(finished, tiny, capsys, monkeypatch):
    def interrupted(target, prompts, ways, *rest):
        yield from list(decode_in_turn(target, prompts, ways, *rest))[:finished]
        raise KeyboardInterrupt

    monkeypatch.setattr("otmd.models.decode_in_turn", interrupted)
    assert main(["decode", "--prompt", "w1 w2", "--max-new-tokens", "4", "--quiet"]) == 130
    out, err = capsys.readouterr()
    assert f"interrupted. {finished} of 3 texts in each way were finished" in err
    assert ("target alone" in out) == bool(finished)
    assert ("; what is printed is of whole repeats." in err) == bool(finished)


def test_repeats_have_seeds_of_their_own_and_one_says_that_noise_is_unknown(tiny, capsys):
    arguments = ["decode", "--prompt", "w1 w2", "--max-new-tokens", "3", "--quiet", "--seed", "5"]
    assert main([*arguments, "--repeats", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["repeats"] == 2
    assert answer["ways"][0]["speed_up"] == [1.0, 1.0, 1.0]
    mean, low, high = answer["ways"][1]["speed_up"]
    assert low <= mean <= high
    assert answer["ways"][1]["difference"] in ("faster", "slower", "noise")
    assert main([*arguments, "--repeats", "1"]) == 0
    assert "a difference in speed may be noise" in capsys.readouterr().out


def test_every_kind_of_tree_has_rules_that_serve_it():
    """A rule for whole trees is compared with the one that decides position by position."""

    def rules(**options):
        chosen = TreeOptions(**options)
        return [*chosen.rules(chosen.tree())]

    assert rules() == rules(quota=3) == ["preference", "layer"]
    assert rules(rule="token") == ["preference"]
    assert rules(rule="subtree") == ["preference", "subtree"]
    assert rules(rule="layer", paths=3) == ["k-sequential", "layer"]
    assert rules(most_likely=4) == rules(branching="2,2", law="top-k") == ["target-only"]
    for law in LAWS:
        assert rules(branching="2,2", law=law)[-1] in TREE_VERIFIERS

    depths = {"paths": 4, "most_likely": 4, "quota": 8}
    assert {name: TreeOptions(**{name: 3}).tree().depth for name in depths} == depths
    assert TreeOptions().tree().label == "2 paths of 8, stratified"
    assert TreeOptions().tree(sampled=False).label == "most likely 12, depth 4"
