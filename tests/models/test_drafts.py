import numpy as np
import pytest

from models.conftest import make_llama
from otmd.models import LanguageModel, collect, load_draft
from otmd.models.drafts import common_vocabulary


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
    padded = LanguageModel(make_llama(vocab_size=64, seed=3), tiny.tokenizer, "padded", "random")
    assert common_vocabulary(tiny, padded) == (62, {"target": 0, "draft": 2})
    with pytest.warns(UserWarning, match="draft: the last 2 rows.*rows 62 to 63 are cut"):
        dataset = collect(tiny, padded, prompts, tmp_path, max_new_tokens=6, progress=False)
    assert dataset.metadata["padding_rows_cut"] == {"target": 0, "draft": 2}
    assert dataset.arrays([0])[1].shape == (1, 62)


def test_padding_tokens_are_never_sampled(tiny):
    padded = LanguageModel(make_llama(vocab_size=600), tiny.tokenizer, "padded", "random")
    drawn = padded.generate([[2, 3]], 100, 5.0, rngs=[np.random.default_rng(0)])[0]
    assert max(drawn) < 62
