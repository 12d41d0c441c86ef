"""Drafts that propose only some of the target's tokens: which ones; texts still follow the target."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import otmd
from models.conftest import WORDS, make_llama, make_tokenizer
from models.test_decoding import PROMPT, SPECULATIONS, p_value
from otmd.cli import main
from otmd.models import (
    LanguageModel,
    NGram,
    NGramDraft,
    RestrictedDraft,
    Speculation,
    TranslatedDraft,
    collect,
    decode,
    load_draft,
)
from otmd.models.continuations import Recomputed, continuations
from otmd.models.draft_vocabularies import most_frequent, shared_tokens
from otmd.models.variants import skip_layers
from otmd.trees import TokenTree

LETTERS = "abcdefgh"
TEXT = "abcabdeafgh"


def wrapped(inner: Tokenizer, *special: str, eos: str) -> PreTrainedTokenizerFast:
    inner.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos)


def byte_level(tokens: list[str], merges: list[tuple[str, str]], eos: str = "<|end|>"):
    """Byte-level BPE, as GPT-2's."""
    vocab = {token: i for i, token in enumerate(tokens)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return wrapped(inner, eos, "<|user|>", eos=eos)


def sentencepiece(tokens: list[str], eos: str = "</s>"):
    """BPE with ▁ for spaces and tokens for bytes, as Llama 2's."""
    vocab = {token: i for i, token in enumerate(tokens)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence(steps)
    return wrapped(inner, eos, "<unk>", "<|user|>", eos=eos)


def letters(pairs: list[str], order: str = LETTERS):
    """Letters, and merges of two of them."""
    return byte_level([*order, *pairs], [(pair[0], pair[1]) for pair in pairs])


@pytest.fixture
def pair() -> tuple[LanguageModel, LanguageModel]:
    """Target and draft over letters: "cd" is the draft's alone, "ab" is both's, "fg" the target's alone."""
    ours, theirs = letters(["ab", "fg"]), letters(["cd", "ab"], order=LETTERS[::-1])
    target, draft = (
        LanguageModel(make_llama(len(tokenizer), seed=seed), tokenizer, name, "random")
        for seed, name, tokenizer in ((0, "target", ours), (1, "draft", theirs))
    )
    return target, draft


def test_tokens_are_matched_by_their_bytes():
    ours = byte_level(["a", "Ġ", "Ġa", "Ċ", "Ã", "©", "Ã©", "é"], [("Ġ", "a"), ("Ã", "©")])
    theirs = sentencepiece(["<unk>", "<0x0A>", "<0xC3>", "<0xE9>", "<0x61>", "▁a", "é", "a", "▁"])
    names = {i: token for token, i in theirs.get_vocab().items()}
    mine = {i: token for token, i in ours.get_vocab().items()}
    shared = {mine[i]: names[j] for i, j in shared_tokens(ours, theirs).items()}
    assert shared == {
        "a": "a",  # and not <0x61>
        "Ġ": "▁",
        "Ġa": "▁a",
        "Ċ": "<0x0A>",
        "Ã": "<0xC3>",
        "Ã©": "é",
        "é": "<0xE9>",  # the character that stands for the byte E9
        "<|end|>": "</s>",  # <|user|> is in both, and special
    }


def test_the_draft_reads_the_same_text_and_keeps_its_odds(pair):
    target, draft = pair
    translated = TranslatedDraft(draft, target.tokenizer)
    assert translated.tokens.size == 8 + 2  # letters, "ab", the end
    ids = target.tokenizer("abcfgd").input_ids
    assert target.tokenizer.convert_ids_to_tokens(ids) == ["ab", "c", "fg", "d"]
    logits = translated.logits(ids)
    for row, text in zip(logits, ["ab", "abc", "abcfg", "abcfgd"], strict=True):
        expected = draft.logits(draft.tokenizer(text).input_ids)[-1]
        for token, i in target.tokenizer.get_vocab().items():
            j = draft.tokenizer.get_vocab().get(token)
            kept = token not in ("<|user|>", "fg")
            assert row[i] == pytest.approx(expected[j] if kept else -np.inf, abs=1e-4)
    np.testing.assert_allclose(translated.logits(ids, rows=[2]), logits[2:3], atol=1e-5)


def test_special_tokens_that_the_draft_lacks_are_not_read(pair):
    target, _ = pair
    plain = byte_level([*LETTERS], [], eos="<stop>")
    plain.add_special_tokens({"bos_token": "<begin>"})
    draft = TranslatedDraft(LanguageModel(make_llama(11), plain, "d", "random"), target.tokenizer)
    ids = target.tokenizer("<|user|>ab<|end|>c").input_ids
    assert draft.read(ids) == plain("<|user|>abc").input_ids
    with pytest.raises(ValueError, match="a text of 0 tokens of the draft, expected 1 to 128"):
        draft.read(target.tokenizer("<|end|>").input_ids)
    with pytest.raises(ValueError, match="a text of 129 tokens"):
        draft.read([0] * 129)


@pytest.mark.parametrize("kind", ["translated", "reduced", "both", "counted"])
def test_a_tree_in_one_call_is_its_paths_one_by_one(kind, pair):
    """Also where a token changes those before it: "c" and then "d", or a text of a single letter."""
    target, inner = pair
    draft = TranslatedDraft(inner, target.tokenizer)
    if kind == "both":
        draft = RestrictedDraft(draft, [0, 1, 2, 3, 9])
    elif kind == "reduced":
        draft = RestrictedDraft(skip_layers(target, [2]), [5, 2, 0])
    elif kind == "counted":
        counts = NGram.fit([target.tokenizer(TEXT * 3).input_ids], target.token_count)
        draft = RestrictedDraft(NGramDraft(counts, target.tokenizer, 4), [5, 2, 0])
    id_of = target.tokenizer.get_vocab()
    text = [id_of["a"]]
    cached = continuations(draft, text)
    assert cached.logits([]) == []
    for emitted in ("b", "cd", "c", "d", "ab", "gc", "fg"):
        after = [(), (id_of["b"],), (id_of["d"],), (id_of["c"],), (id_of["c"], id_of["d"])]
        # N-gram counts are of the text without the prefix.
        asked = [after] if kind != "counted" else [[()]]
        asked += [] if kind == "counted" else [[()], after[2:]]
        for prefixes in asked:
            afresh = Recomputed(draft, text).logits(prefixes)
            np.testing.assert_allclose(cached.logits(prefixes), afresh, atol=1e-4)
        tokens = [id_of[token] for token in ([emitted] if emitted in id_of else emitted)]
        cached.extend(tokens)
        text += tokens
    if kind == "reduced":
        assert sorted(np.flatnonzero(np.isfinite(cached.logits([()])[0]))) == [0, 2, 5]


@pytest.mark.parametrize("name", ["block", "SpecTr", "tree", "traversal", "likeliest"])
def test_greedy_texts_are_the_targets_own(name, pair):
    target, inner = pair
    law, rule = SPECULATIONS[name]
    greedy = target.generate([PROMPT], 30, 0.0, rngs=[np.random.default_rng(0)])[0]
    for draft in (
        TranslatedDraft(inner, target.tokenizer),
        RestrictedDraft(skip_layers(target, [2]), [*range(7)]),
    ):
        drafting = otmd.Processing()
        speculation = Speculation(draft, law, rule, drafting)
        decoded = decode(target, PROMPT, 30, speculation, otmd.Processing(0.0), rng=0)
        assert decoded.tokens == greedy


@pytest.mark.parametrize("kind", ["translated", pytest.param("reduced", marks=pytest.mark.slow)])
def test_texts_follow_the_target(kind, tiny):
    """The test has a false-alarm rate of 1 in 1,000; the seed is fixed."""
    swapped = make_tokenizer([*WORDS[30:], *WORDS[:20]])
    other = LanguageModel(make_llama(52, seed=3), swapped, "other", "random")
    draft = TranslatedDraft(other, tiny.tokenizer)
    if kind == "reduced":
        draft = RestrictedDraft(skip_layers(tiny, [2]), range(0, 62, 2))
    law, rule = SPECULATIONS["tree"]
    assert p_value(tiny, Speculation(draft, law, rule), 200) > 1e-3


def test_drafts_that_are_not_renormalised_are_noticed(tiny):
    """Drawn from a reduced vocabulary, verified as if from the full one."""
    draft = skip_layers(tiny, [2])
    reduced = np.zeros(62)
    reduced[::2] = 1.0

    class Unrestricted(TokenTree):
        def node_law(self, draft_probs, state):
            law = super().node_law(draft_probs, state)
            drawn = super().node_law(draft_probs * reduced / (draft_probs @ reduced), state)
            if law is not None and drawn is not None:
                law.sample = drawn.sample
            return law

    rule = SPECULATIONS["tree"][1]
    speculation = Speculation(draft, lambda q: Unrestricted(q, (3, 2)), rule)
    assert p_value(tiny, speculation, 300) < 1e-6


def test_logits_of_minus_infinity_from_collect_to_measure(tiny, prompts, tmp_path):
    corpus = [tiny.tokenizer(" ".join(WORDS[:20])).input_ids]
    draft = load_draft("skip:1,3+vocab:12", tiny, corpus)
    assert draft.name == "skip:1,3+vocab:12"
    options = {"positions_per_prompt": 4, "max_new_tokens": 4, "progress": False}
    extra = {"paths": 3, "path_length": 2, "trees": [(2, 1)], "trees_every": 2}
    prompts = prompts[:4]
    dataset = collect(tiny, draft, prompts, tmp_path / "data", dtype="float16", **options, **extra)
    logits = dataset.arrays([0, 1])[1]
    assert np.isneginf(logits).sum(axis=-1).tolist() == [50, 50]
    assert dataset.metadata["draft"]["proposed_tokens"]["count"] == 12
    laws = [otmd.WithReplacement, otmd.Stratified]
    table = otmd.measure(dataset, laws, num_drafts=(1, 3), workers=1)
    assert set(table["status"]) == {"ok"}
    for index in range(len(dataset)):
        target, proposed = (otmd.Processing()(rows[0]) for rows in dataset.arrays([index]))
        covered = float(target[proposed > 0].sum())
        rates = table.filter(index=index)
        assert (rates["optimal"] <= covered + 1e-9).all()
    assert main(["plan", str(tmp_path / "data"), "--depth", "3", "--json"]) == 0


@pytest.mark.parametrize("num_drafts", [1, 2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_the_loss_is_at_most_the_mass_that_is_left_out(seed, num_drafts):
    """With replacement, for every number of drafts."""
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.full(12, 0.4), size=2)
    kept = rng.random(12) < 0.6
    kept[0] = True
    left_out = float(target[~kept].sum())
    reduced = np.where(kept, draft, 0.0)
    law, short = (otmd.WithReplacement(q, num_drafts) for q in (draft, reduced / reduced.sum()))
    full, after = (otmd.optimal_acceptance(target, law).rate for law in (law, short))
    assert full - left_out - 1e-12 <= after <= 1 - left_out + 1e-12


def test_most_frequent_tokens():
    assert most_frequent([[4, 2, 4], [0, 2, 4]], 5, 6).tolist() == [4, 2, 0, 1, 3]
    for count in (0, 7):
        with pytest.raises(ValueError, match=f"vocab: got {count}, expected"):
            most_frequent([[4]], count, 6)


def test_drafts_that_cannot_be(tiny, tmp_path):
    with pytest.raises(ValueError, match="corpus: got none, expected text"):
        load_draft("skip:1+vocab:5", tiny)
    with pytest.raises(ValueError, match="vocab: got 63, expected 1 to 62 tokens"):
        load_draft("skip:1+vocab:63", tiny, [[3, 4]])
    with pytest.raises(ValueError, match="draft: got 'skip:1\\+vocab:x'"):
        load_draft("skip:1+vocab:x", tiny, [[3, 4]])
    for tokens in ([], [3, 3], [62], [-1]):
        with pytest.raises(ValueError, match=r"tokens: got .* expected different ones in"):
            RestrictedDraft(tiny, tokens)
    strange = LanguageModel(make_llama(5), make_tokenizer(["x", "y", "z"]), "strange", "random")
    with pytest.raises(ValueError, match="no token of the target's in strange"):
        TranslatedDraft(strange, tiny.tokenizer)


def test_a_second_model_with_another_tokenizer(tiny, tmp_path):
    other = LanguageModel(make_llama(42), make_tokenizer(WORDS[20:]), "other", "random")
    other.model.save_pretrained(tmp_path)
    other.tokenizer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="proposes the 41 tokens of the target's 62 that both"):
        draft = load_draft(str(tmp_path), tiny)
    assert isinstance(draft, TranslatedDraft)
