import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from models.conftest import make_tokenizer
from otmd.models import (
    DatasetError,
    HarnessError,
    LanguageModel,
    Prompt,
    collect,
    open_dataset,
)
from otmd.models.dataset import read_shard
from otmd.models.prompts import prompt_tokens
from otmd.models.variants import skip_layers
from otmd.storage.files import LOCK

OPTIONS = {
    "positions_per_prompt": 3,
    "max_new_tokens": 8,
    "batch_size": 2,
    "progress": False,
}


@pytest.fixture
def draft(tiny):
    return skip_layers(tiny, [1, 3])


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != LOCK}


def shards(folder):
    return sorted(folder.glob("*.safetensors"))


def counting(monkeypatch, model, fail_at=None):
    """Count the batches that are sampled, and let one of them die."""
    calls = []
    original = model.generate

    def generate(*arguments, **options):
        calls.append(1)
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(model, "generate", generate)
    return calls


def test_the_rows_are_the_models_logits_at_the_samples(tiny, draft, prompts, tmp_path):
    dataset = collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    texts = {
        text["prompt_id"]: text for shard in shards(tmp_path) for text in read_shard(shard).texts
    }
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


def test_text_mode_is_teacher_forced_on_the_answers(tiny, draft, prompts, tmp_path):
    dataset = collect(tiny, draft, prompts, tmp_path, mode="text", **OPTIONS)
    tokens = tiny.tokenizer(f"{prompts[0].text} {prompts[0].answer}").input_ids
    place = dataset.positions[1]
    np.testing.assert_allclose(
        dataset.arrays([1])[0][0], tiny.logits(tokens[: place.position])[-1], atol=2e-5
    )


def test_a_chat_template_is_put_around_prompts_but_not_continuations(prompts):
    template = "{% for m in messages %}w1 {{ m['content'] }} w2{% endfor %}"
    tokenizer = make_tokenizer(chat_template=template)
    bare = tokenizer(prompts[0].text).input_ids
    framed = tokenizer(f"w1 {prompts[0].text} w2").input_ids
    assert prompt_tokens(tokenizer, prompts[0]) == framed
    assert prompt_tokens(make_tokenizer(), prompts[0]) == bare
    assert prompt_tokens(tokenizer, prompts[6]) == tokenizer(prompts[6].text).input_ids


def test_float16_is_the_rounded_float32(tiny, draft, prompts, tmp_path):
    full = collect(tiny, draft, prompts, tmp_path / "full", **OPTIONS)
    half = collect(tiny, draft, prompts, tmp_path / "half", dtype="float16", **OPTIONS)
    everything = range(len(full))
    for wide, narrow in zip(full.arrays(everything), half.arrays(everything), strict=True):
        assert narrow.dtype == np.float16
        np.testing.assert_array_equal(narrow, wide.astype(np.float16))


def test_a_killed_run_goes_on_and_gives_the_same_bytes(tiny, draft, prompts, tmp_path, monkeypatch):
    collect(tiny, draft, prompts, tmp_path / "straight", **OPTIONS)
    folder = tmp_path / "killed"
    with monkeypatch.context() as patched:
        counting(patched, tiny, fail_at=3)
        with pytest.raises(KeyboardInterrupt):
            collect(tiny, draft, prompts, folder, **OPTIONS)
    assert len(shards(folder)) == 2
    with pytest.raises(DatasetError, match="unfinished"):
        open_dataset(folder)
    calls = counting(monkeypatch, tiny)
    collect(tiny, draft, prompts, folder, **OPTIONS)
    assert len(calls) == 2
    assert contents(folder) == contents(tmp_path / "straight")


def test_a_finished_folder_is_not_computed_again(tiny, draft, prompts, tmp_path, monkeypatch):
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    before = contents(tmp_path)
    calls = counting(monkeypatch, tiny)
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    assert calls == []
    assert contents(tmp_path) == before


@pytest.mark.parametrize("damage", ["altered", "missing", "manifest"])
def test_damage_is_found_and_mended(tiny, draft, prompts, tmp_path, monkeypatch, damage):
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    before = contents(tmp_path)
    shard = shards(tmp_path)[1]
    if damage == "altered":
        data = bytearray(shard.read_bytes())
        data[-3] ^= 1
        shard.write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    else:
        (tmp_path / "manifest.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DatasetError, match="collect again"):
        open_dataset(tmp_path)
    calls = counting(monkeypatch, tiny)
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    assert len(calls) == (0 if "manifest" in damage else 1)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("about", [b"[]", b'{"shards": [1]}'])
def test_a_manifest_that_otmd_did_not_write_is_named(tiny, draft, prompts, tmp_path, about):
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    before = contents(tmp_path)
    path = tmp_path / "manifest.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"otmd": about}), path)
    with pytest.raises(DatasetError, match=r"not written by otmd.*collect again"):
        open_dataset(tmp_path)
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.5}, "temperature: stored 1.0, asked 0.5"),
        ({"mode": "text"}, "mode: stored samples, asked text"),
    ],
)
def test_other_settings_are_named(tiny, draft, prompts, tmp_path, change, message):
    collect(tiny, draft, prompts, tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match=message):
        collect(tiny, draft, prompts, tmp_path, **{**OPTIONS, **change})


def test_short_samples_give_the_positions_they_have(tiny, draft, prompts, tmp_path):
    options = {**OPTIONS, "positions_per_prompt": 20}
    dataset = collect(tiny, draft, prompts, tmp_path, **options)
    places = [p.position for p in dataset.positions if p.prompt_id == "p0"]
    assert places == list(range(places[0], places[0] + len(places)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "dream"}, "mode"),
        ({"dtype": "int8"}, "dtype"),
        ({"positions_per_prompt": 0}, "positions_per_prompt"),
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_new_tokens": 125}, r"'p0' has 4 tokens.*more than the 128"),
    ],
)
def test_bad_settings(tiny, draft, prompts, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        collect(tiny, draft, prompts, tmp_path, **{**OPTIONS, **change})


def test_bad_prompts(tiny, draft, prompts, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        collect(tiny, draft, [], tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="the id 'p0' twice"):
        collect(tiny, draft, [prompts[0], prompts[0]], tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="'blank' is empty"):
        collect(tiny, draft, [Prompt("blank", "code", " ")], tmp_path, **OPTIONS)
    unanswered = [Prompt("open", "chat", "w1 w2")]
    with pytest.raises(ValueError, match=r"'open'.*has no answer"):
        collect(tiny, draft, unanswered, tmp_path, mode="text", **OPTIONS)


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


def test_logits_too_large_for_float16_are_an_error(tiny, prompts, tmp_path):
    with pytest.raises(ValueError, match="expected dtype='float32'"):
        collect(tiny, Scaled(tiny, 1e6), prompts, tmp_path, dtype="float16", **OPTIONS)


def test_logits_that_are_no_numbers_are_an_error(tiny, prompts, tmp_path):
    with pytest.raises(HarnessError, match="not numbers on 'p0'"):
        collect(tiny, Scaled(tiny, float("nan")), prompts, tmp_path, **OPTIONS)


def test_names_instead_of_models_and_a_bar(tiny, prompts, tmp_path, capsys):
    tiny.model.save_pretrained(tmp_path / "model")
    tiny.tokenizer.save_pretrained(tmp_path / "model")
    dataset = collect(
        str(tmp_path / "model"),
        "skip:2",
        prompts[:2],
        tmp_path / "data",
        max_new_tokens=4,
        device="cpu",
        progress=True,
    )
    assert "Collecting" in capsys.readouterr().err
    stored = json.loads((tmp_path / "data" / "collect.json").read_text())
    assert stored == dataset.metadata
    assert isinstance(tiny, LanguageModel)
