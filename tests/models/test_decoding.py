import inspect
from unittest.mock import create_autospec

import numpy as np
import pytest

import otmd
from models.conftest import make_ngram, make_sliding, make_tiny
from otmd.models import LanguageModel, NGramDraft, Speculation, decode
from otmd.models.continuations import CachedContinuations, Recomputed, branches, continuations
from otmd.models.drafts import skip_layers
from otmd.trees import (
    AdaptiveTree,
    BlockVerification,
    IIDPaths,
    LayerVerification,
    MostLikelyTree,
    TokenLevel,
    TokenTree,
    Traversal,
)

PROMPT = [3, 4, 5, 6]
SPECULATIONS = {
    "single": (lambda q: IIDPaths(q, 1, 3), TokenLevel(otmd.Preference())),
    "block": (lambda q: IIDPaths(q, 1, 3), BlockVerification()),
    "SpecTr": (lambda q: IIDPaths(q, 4, 3), TokenLevel(otmd.KSequential())),
    "tree": (lambda q: TokenTree(q, (3, 2)), TokenLevel(otmd.RecursiveRejection())),
    "SpecHub": (lambda q: TokenTree(q, (2, 2), otmd.Hub), TokenLevel(otmd.SpecHub())),
    "traversal": (lambda q: TokenTree(q, (3, 2, 1)), Traversal()),
    "likeliest": (lambda q: MostLikelyTree(q, 8, 3), TokenLevel(otmd.TargetOnly())),
    "adaptive": (lambda q: AdaptiveTree(q, (3, 3, 2)), LayerVerification()),
}


@pytest.fixture
def tiny() -> LanguageModel:
    return make_tiny(layers=2)


@pytest.fixture
def draft(tiny: LanguageModel) -> LanguageModel:
    return skip_layers(tiny, [1])


@pytest.fixture
def ngram(tiny: LanguageModel) -> NGramDraft:
    return make_ngram(tiny)


# The longest path of the test has 17 tokens, and the cache holds more, those of a tree.
@pytest.mark.parametrize("model", [make_tiny(layers=2), make_sliding(17)], ids=lambda model: model.name)
def test_a_tree_in_one_call_is_its_paths_one_by_one(model: LanguageModel) -> None:
    """For whole trees, for prefixes one after another, and after a path was accepted."""
    cached = continuations(model, PROMPT)
    tree = [(), (7,), (8,), (7, 9), (7, 10), (8, 9), (7, 9, 11)]
    texts = [(7, 9, 11, 2), (8, 5), (9,), (7, 9, 3), (20, 21, 22)]
    for number, emitted in enumerate(texts):
        asked = [[prefix] for prefix in tree] if number == 1 else [tree]
        found = [row for some in asked for row in cached.logits(some)]
        afresh = Recomputed(model, cached.text).logits(tree)
        for one, other in zip(found, afresh, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        cached.extend(emitted)
    assert cached.text == [*PROMPT, *(token for emitted in texts for token in emitted)]


def test_texts_that_are_read_together_do_not_see_each_other(tiny: LanguageModel) -> None:
    texts = [PROMPT, [*PROMPT[:2], 9], [20, 21]]
    read = branches(tiny, texts)
    for branch, tokens in zip(read, [7, 8, 9], strict=True):
        branch.read([(), (tokens, 5)])
    # The second time, prefixes whose ancestors were read and not asked for.
    for emitted in ((), (7, 5), (2,)):
        for branch in read:
            branch.extend(emitted)
        for asked in ([(), (4,)], [(7,), (8,), (7, 5, 3)]):
            for branch in read:
                afresh = Recomputed(tiny, branch.text).logits(asked)
                np.testing.assert_allclose(branch.logits(asked), afresh, atol=1e-4)


def test_of_branches_that_have_grown_only_the_texts_are_kept(tiny: LanguageModel) -> None:
    read = branches(tiny, [PROMPT, PROMPT, [9]])
    shared = read[0]._together
    for _ in range(4):
        for branch in read:
            branch.read([(), *((token,) for token in range(10, 30))])
        read[0].logits([()])
        assert len(shared._logits) == 3 * 21 - 21 * (read[0].text == read[1].text)
        assert shared._cache.get_seq_length() == shared._size
        # What was accepted, and a token that was not read.
        for branch, token in zip(read, (10, 11, 12), strict=True):
            branch.extend((token, 5))
    texts = {text[:end] for text in shared.texts for end in range(1, len(text) + 1)}
    assert shared._size < len(texts) + 3 * 20


def test_what_was_accepted_is_not_computed_again(tiny: LanguageModel, monkeypatch) -> None:
    computed = []
    forward = tiny.model.forward
    takes = inspect.signature(forward)

    def counted(*args, **inputs):
        computed.append(inputs["input_ids"].shape[1])
        return forward(*args, **inputs)

    monkeypatch.setattr(tiny.model, "forward", counted)
    monkeypatch.setattr("otmd.models.language_models.inspect.signature", lambda _: takes)
    cached = continuations(tiny, PROMPT)
    cached.logits([(7, 9), (8,)])
    cached.extend((7, 9, 4))
    cached.logits([()])
    cached.logits([(), (5,)])
    assert computed == [len(PROMPT) + 3, 1, 1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # Two drafts without mass on two tokens do not exist, so SpecHub is left out.
        *((name, "n-gram") for name in SPECULATIONS if name != "SpecHub"),
        ("tree", "layers skipped"),
    ],
)
def test_greedy_texts_are_the_targets_own(
    name: str, kind: str, tiny: LanguageModel, draft: LanguageModel, ngram: NGramDraft
) -> None:
    law, rule = SPECULATIONS[name]
    wanted = tiny.generate([PROMPT], 30, 0.0, rngs=[np.random.default_rng(0)])[0]
    own = Speculation(draft if kind == "layers skipped" else ngram, law, rule)
    found = decode(tiny, PROMPT, 30, own, otmd.Processing(0.0), rng=np.random.default_rng(0))
    assert found.tokens == wanted
    assert len(found.steps) <= len(wanted)
    assert sum(count for count, _ in found.steps) == len(wanted)


def verdict(tiny: LanguageModel, speculation: Speculation) -> str:
    """The audit's verdict on texts of a speculation. A sound one fails it with probability 1e-3."""
    rng = np.random.default_rng(5)
    texts = (decode(tiny, PROMPT, 12, speculation, otmd.Processing(0.6), rng=rng) for _ in range(60))
    rows = [{"prompt_tokens": PROMPT, "output_tokens": text.tokens} for text in texts]
    return otmd.audit.texts(rows, tiny.logits_after, temperature=0.6, bias=0.15).outcome


@pytest.mark.slow
def test_texts_follow_the_target(tiny: LanguageModel, ngram: NGramDraft) -> None:
    assert verdict(tiny, Speculation(ngram, *SPECULATIONS["SpecHub"])) == "PASS"


@pytest.mark.slow
def test_a_draft_that_is_not_what_was_drawn_from_is_noticed(tiny: LanguageModel, ngram: NGramDraft) -> None:
    class Sharpened(TokenTree):
        """Says that it drew from a draft model twice as sure of itself."""

        def node_law(self, draft_probs, state):
            sharper = draft_probs**2
            own = super().node_law(draft_probs, state)
            said = super().node_law(sharper / sharper.sum(), state)
            if own is not None:
                said.sample = own.sample
            return said

    law, rule = lambda q: Sharpened(q, (3, 2)), TokenLevel(otmd.RecursiveRejection())
    assert verdict(tiny, Speculation(ngram, law, rule)) == "FAULTY"


def test_what_a_text_took(tiny: LanguageModel, draft: LanguageModel) -> None:
    law, rule = SPECULATIONS["tree"]
    found = decode(tiny, PROMPT, 25, Speculation(draft, law, rule), rng=np.random.default_rng(1))
    again = decode(tiny, PROMPT, 25, Speculation(draft, law, rule), rng=np.random.default_rng(1))
    assert found.tokens == again.tokens
    assert len(found.tokens) <= 25
    assert found.tokens_per_step == len(found.tokens) / len(found.steps)
    assert {drafted for _, drafted in found.steps} == {9}
    assert found.reached[1] == len(found.steps)
    assert found.kept[1] == found.reached[2]
    assert all(found.seconds[stage] > 0 for stage in ("draft", "target", "verification"))
    alone = decode(tiny, PROMPT, 25, rng=np.random.default_rng(1))
    assert alone.tokens_per_step == 1.0
    assert alone.seconds["draft"] == 0.0


@pytest.mark.parametrize(("name", "calls"), [("tree", 2), ("adaptive", 3)])
def test_the_draft_reads_a_level_in_one_call(
    name: str, calls: int, tiny: LanguageModel, draft: LanguageModel, monkeypatch
) -> None:
    compute = CachedContinuations._compute
    spy = create_autospec(compute, side_effect=compute)
    monkeypatch.setattr(CachedContinuations, "_compute", spy)
    law, rule = SPECULATIONS[name]
    text = decode(tiny, PROMPT, 1, Speculation(draft, law, rule), rng=np.random.default_rng(0))
    models = [call.args[0].model for call in spy.call_args_list]
    # The root's distributions are part of reading the prompt.
    assert models == [m.model for m in (tiny, draft, *[draft] * (calls - 1), tiny)]
    assert text.steps == [(1, {"tree": 9, "adaptive": 8}[name])]


def test_a_text_ends_with_the_token_that_ends_it(tiny: LanguageModel, draft: LanguageModel) -> None:
    law, rule = SPECULATIONS["traversal"]
    ended = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        tokens = decode(tiny, PROMPT, 60, Speculation(draft, law, rule), rng=rng).tokens
        inside = [token in tiny.stop_tokens for token in tokens]
        assert not any(inside[:-1])
        ended += inside[-1]
    assert ended > 0
