"""Drafts: layers skipped, n-gram models of a file, models with padding."""

import copy

import numpy as np
import pytest
import torch

from models.conftest import make_model, make_tokenizer
from otmd.models import LanguageModel, collect, load_draft
from otmd.models.drafts import common_vocabulary, skip_layers

IDS = [3, 14, 15, 9, 2, 6, 5]


class PassedOver(torch.nn.Module):
    def forward(self, hidden, **_):
        return hidden


def by_hand(model, skipped, ids):
    """The same model, with modules in the place of some layers that return their input."""
    other = copy.deepcopy(model)
    for index in skipped:
        other.model.layers[index] = PassedOver()
    with torch.inference_mode():
        return other(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("skipped", [[0], [4], [3, 1]])
def test_equals_the_forward_pass_by_hand(tiny, skipped):
    draft = skip_layers(tiny, skipped)
    np.testing.assert_allclose(draft.logits(IDS), by_hand(tiny.model, skipped, IDS), atol=2e-5)
    assert np.abs(draft.logits(IDS) - tiny.logits(IDS)).max() > 0.01


def test_the_target_is_not_changed_and_weights_are_shared(tiny):
    before = tiny.logits(IDS)
    draft = skip_layers(tiny, [1, 3])
    np.testing.assert_array_equal(tiny.logits(IDS), before)
    assert tiny.model.config.num_hidden_layers == 5
    assert draft.model.config.num_hidden_layers == 3
    ours = {p.data_ptr() for p in tiny.model.parameters()}
    assert {p.data_ptr() for p in draft.model.parameters()} < ours
    assert [m.self_attn.layer_idx for m in tiny.model.model.layers] == [0, 1, 2, 3, 4]
    assert [m.self_attn.layer_idx for m in draft.model.model.layers] == [0, 1, 2]
    assert draft.name == "skip:1,3"
    assert draft.revision == tiny.revision


def make_gpt2():
    import transformers

    config = transformers.GPT2Config(vocab_size=62, n_embd=32, n_layer=4, n_head=4)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Gemma2", "GPTNeoX", "Bloom"])
def test_generation_with_cache_and_padding_equals_full_forwards(family):
    torch.manual_seed(0)
    model = make_gpt2() if family == "GPT2" else make_model(layers=4, family=family, head_dim=8)
    target = LanguageModel(model, make_tokenizer(), family, "random")
    draft = skip_layers(target, [1, 2])
    prompts = [IDS, IDS[:3], [10]]
    for model in (target, draft):
        drawn = model.generate(prompts, 5, 0.0, rngs=[np.random.default_rng(0)] * 3)
        for prompt, new in zip(prompts, drawn, strict=True):
            tokens = list(prompt)
            for _ in new:
                tokens.append(int(model.logits(tokens)[-1].argmax()))
            assert tokens[len(prompt) :] == new


def test_layer_types_follow_the_layers_that_stay():
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    model = make_model(layers=4, family="Gemma2", head_dim=8, layer_types=kinds)
    draft = skip_layers(LanguageModel(model, make_tokenizer(), "gemma2", "random"), [0, 2])
    assert draft.model.config.layer_types == ["full_attention", "sliding_attention"]


def test_an_n_gram_model_of_a_file(tiny, tmp_path):
    text = tmp_path / "corpus.txt"
    text.write_text("w1 w2 w3 w1 w2 w4")
    draft = load_draft(f"ngram:2:{text}", tiny)
    tokens = tiny.tokenizer("w1 w2").input_ids
    logits = draft.logits(tokens)
    assert logits.shape == (2, 62)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(np.exp(logits.astype(float)).sum(-1), 1, atol=1e-5)
    assert logits[0].argmax() == tiny.tokenizer("w2").input_ids[0]
    np.testing.assert_array_equal(draft.logits(tokens, rows=[1]), logits[1:])
    assert draft.describe()["revision"].startswith("sha256:")


def test_padding_rows_are_named_and_cut(tiny, tmp_path, prompts):
    padded = LanguageModel(make_model(vocab_size=64, seed=3), tiny.tokenizer, "padded", "random")
    assert common_vocabulary(tiny, padded) == (62, {"target": 0, "draft": 2})
    with pytest.warns(UserWarning, match="draft: the last 2 rows.*rows 62 to 63 are cut"):
        dataset = collect(tiny, padded, prompts, tmp_path, max_new_tokens=6, progress=False)
    assert dataset.metadata["padding_rows_cut"] == {"target": 0, "draft": 2}
    assert dataset.arrays([0])[1].shape == (1, 62)


def test_padding_tokens_are_never_sampled(tiny):
    padded = LanguageModel(make_model(vocab_size=600), tiny.tokenizer, "padded", "random")
    drawn = padded.generate([[2, 3]], 100, 5.0, rngs=[np.random.default_rng(0)])[0]
    assert max(drawn) < 62
