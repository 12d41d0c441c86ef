"""A tiny model with a tokenizer, made here: nothing is fetched."""

import numpy as np
import pytest

WORDS = [f"w{i}" for i in range(60)]


def make_tokenizer(words=WORDS, chat_template=None):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate(["<unk>", "<eos>", *words])}
    inner = Tokenizer(WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_model(vocab_size=62, layers=5, seed=0, family="Llama", **settings):
    import torch
    import transformers

    torch.manual_seed(seed)
    usual = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "initializer_range": 0.3,
        "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1,
    }  # fmt: skip
    sizes = {"vocab_size": vocab_size, "num_hidden_layers": layers}
    config = getattr(transformers, f"{family}Config")(**usual | sizes | settings)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def make_tiny(layers=5):
    from otmd.models import LanguageModel

    return LanguageModel(make_model(layers=layers), make_tokenizer(), "tiny", "sha256:made-in-the-test")


def make_sliding(window):
    """A model whose layers see the last tokens alone, so many as the window."""
    from otmd.models import LanguageModel

    model = make_model(layers=2, family="Mistral", sliding_window=window).eval()
    return LanguageModel(model, make_tokenizer(), "sliding", "random")


def make_pair():
    from otmd.models import load_draft

    target = make_tiny()
    return target, load_draft("skip:1,3", target)


def make_ngram(model, context=0):
    from otmd.models import NGram, NGramDraft

    counts = NGram.fit([np.random.default_rng(0).integers(0, 62, 400)], 62, 3)
    return NGramDraft(counts, model.tokenizer, context)


def save_tiny(folder, layers=5):
    make_model(layers=layers).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_prompts(count, domain="d"):
    from otmd.models import Prompt

    return [Prompt(f"p{i}", domain, " ".join(WORDS[i : i + 5])) for i in range(count)]


@pytest.fixture
def tiny():
    return make_tiny()


@pytest.fixture
def prompts():
    from otmd.models import Prompt

    return [
        Prompt(
            id=f"p{i}",
            domain="code" if i < 4 else "prose",
            text=" ".join(WORDS[(3 * i + j) % 60] for j in range(4 + i)),
            answer=" ".join(WORDS[(7 * i + 5 * j) % 60] for j in range(9)),
            continuation=i >= 4,
        )
        for i in range(7)
    ]
