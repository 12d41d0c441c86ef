import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from models.conftest import make_tokenizer
from otmd.models import DatasetError, HarnessError, collect, open_dataset
from otmd.models.drafts import skip_layers
from otmd.models.prompts import prompt_tokens
from otmd.storage.files import LOCK

OPTIONS = {"positions_per_prompt": 3, "max_new_tokens": 8, "batch_size": 2, "progress": False}


@pytest.fixture
def draft(tiny):
    return skip_layers(tiny, [1, 3])


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != LOCK}


def shards(folder):
    return sorted(folder.glob("*.safetensors"))


def test_the_rows_are_the_models_logits_at_the_samples(tiny, draft, prompts, tmp_path, capsys):
    dataset = collect(tiny, draft, prompts, tmp_path, **OPTIONS | {"progress": True})
    assert "Collecting" in capsys.readouterr().err
    assert json.loads((tmp_path / "collect.json").read_text()) == dataset.metadata
    texts = {text["prompt_id"]: text for text in dataset.texts}
    assert list(texts) == [prompt.id for prompt in prompts]
    target, other = dataset.arrays(range(len(dataset)))
    for place, p, q in zip(dataset.positions, target, other, strict=True):
        text = texts[place.prompt_id]
        assert text["start"] <= place.position < len(text["tokens"])
        before = text["tokens"][: place.position]
        np.testing.assert_allclose(p, tiny.logits(before)[-1], atol=2e-5)
        np.testing.assert_allclose(q, draft.logits(before)[-1], atol=2e-5)
    assert [p.domain for p in dataset.positions[:3]] == ["code"] * 3
    assert (dataset.kind, dataset.vocab_size) == ("logits", 62)


def test_a_chat_template_is_put_around_prompts_but_not_continuations(prompts):
    template = "{% for m in messages %}w1 {{ m['content'] }} w2{% endfor %}"
    tokenizer = make_tokenizer(chat_template=template)
    bare = tokenizer(prompts[0].text).input_ids
    framed = tokenizer(f"w1 {prompts[0].text} w2").input_ids
    assert prompt_tokens(tokenizer, prompts[0]) == framed
    assert prompt_tokens(make_tokenizer(), prompts[0]) == bare
    assert prompt_tokens(tokenizer, prompts[6]) == tokenizer(prompts[6].text).input_ids


def test_text_mode_is_teacher_forced_on_the_answers(tiny, draft, prompts, tmp_path):
    options = OPTIONS | {"positions_per_prompt": 20}
    dataset = collect(tiny, draft, prompts, tmp_path / "full", mode="text", **options)
    tokens = tiny.tokenizer(f"{prompts[0].text} {prompts[0].answer}").input_ids
    wanted = tiny.logits(tokens[: dataset.positions[1].position])[-1]
    np.testing.assert_allclose(dataset.arrays([1])[0][0], wanted, atol=2e-5)
    # A text that is shorter than that gives every position.
    first = [p.position for p in dataset.positions if p.prompt_id == "p0"]
    assert first == list(range(first[0], first[0] + 8))
    half = collect(tiny, draft, prompts, tmp_path / "a", mode="text", dtype="float16", **options)
    rows = range(len(dataset))
    for wide, narrow in zip(dataset.arrays(rows), half.arrays(rows), strict=True):
        assert narrow.dtype == np.float16
        np.testing.assert_array_equal(narrow, wide.astype(np.float16))


def test_batches_in_threads_give_the_same_bytes(tiny, draft, prompts, tmp_path):
    collect(tiny, draft, prompts, tmp_path / "one", **OPTIONS)
    threads = torch.get_num_threads()
    collect(tiny, draft, prompts, tmp_path / "two", workers=2, **OPTIONS)
    assert torch.get_num_threads() == threads
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def altered(folder):
    data = bytearray(shards(folder)[1].read_bytes())
    data[-3] ^= 1
    shards(folder)[1].write_bytes(data)


@pytest.mark.parametrize("damage", [altered, lambda folder: shards(folder)[1].unlink()])
def test_damage_is_found_and_mended(tiny, draft, prompts, tmp_path, monkeypatch, damage):
    collect(tiny, draft, prompts[:4], tmp_path, **OPTIONS)
    before = contents(tmp_path)
    damage(tmp_path)
    with pytest.raises(DatasetError, match="collect again"):
        open_dataset(tmp_path)
    generate = Mock(wraps=tiny.generate)
    monkeypatch.setattr(tiny, "generate", generate)
    collect(tiny, draft, prompts[:4], tmp_path, **OPTIONS)
    assert generate.call_count == 1
    assert contents(tmp_path) == before


class Scaled:
    """A draft whose logits are the target's times a number."""

    def __init__(self, target, factor):
        self.target, self.factor = target, factor
        self.name, self.vocab_size, self.max_length = "scaled", target.vocab_size, None
        self.tokenizer = target.tokenizer

    def logits(self, token_ids, rows=None):
        return self.target.logits(token_ids, rows) * np.float32(self.factor)

    def describe(self):
        return {"name": self.name}


def test_logits_that_cannot_be_stored(tiny, prompts, tmp_path):
    with pytest.raises(ValueError, match="expected dtype='float32'"):
        collect(tiny, Scaled(tiny, 1e6), prompts, tmp_path / "a", dtype="float16", **OPTIONS)
    with pytest.raises(HarnessError, match="not numbers on 'p0'"):
        collect(tiny, Scaled(tiny, float("nan")), prompts, tmp_path / "b", **OPTIONS)
