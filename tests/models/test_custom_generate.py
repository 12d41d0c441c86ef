"""The folder ``custom_generate`` of a repository: two files without otmd, which transformers loads."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import otmd
from otmd.models import LanguageModel
from otmd.models.drafts import skip_layers
from otmd.tensors import generate as copied

from .test_generation import IDS, PENALTY, alone, by_file, similar, small, texts  # noqa: F401

SCRIPT = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.modules["otmd"] = None
sys.modules["numba"] = sys.modules["scipy"] = None
torch.manual_seed(0)
config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=.3)
model, assistant = LlamaForCausalLM(config), LlamaForCausalLM(config)
settings = {"inputs": torch.tensor([[3, 4, 5]]), "max_new_tokens": 12}
ours = {"custom_generate": sys.argv[1], "trust_remote_code": True, "assistant_model": assistant}
greedy = model.generate(do_sample=False, **settings, **ours)
assert torch.equal(greedy, model.generate(do_sample=False, **settings))
assert model.generate(do_sample=True, **settings, **ours).shape == (1, 15)
print("done")
"""


@pytest.fixture
def repository(tmp_path):
    """A repository for the hub, made as the page says."""
    folder = tmp_path / "strata" / "custom_generate"
    folder.mkdir(parents=True)
    for name in ("generate.py", "layers.py"):
        shutil.copy(Path(copied.__file__).with_name(name), folder)
    return folder.parent


@pytest.mark.parametrize(
    ("name", "needed"), [("layers", {"torch"}), ("generate", {"torch", "transformers", ".layers"})]
)
def test_the_files_import_no_more(name, needed) -> None:
    nodes = [*ast.walk(ast.parse(Path(copied.__file__).with_name(f"{name}.py").read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += ["." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = {name if name.startswith(".") else name.partition(".")[0] for name in names}
    assert imported - sys.stdlib_module_names == needed


@pytest.mark.slow
def test_the_folder_needs_torch_and_transformers_alone(repository, tmp_path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(repository)],
        env={"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert ran.stdout == "done\n", ran.stderr
    # transformers has copied both files.
    assert len([*(tmp_path / "modules").rglob("layers.py")]) == 1


def test_greedy_steps_are_those_of_otmd(tiny: LanguageModel) -> None:
    """Greedy trees do not depend on random numbers: both loops draft and keep the same."""
    draft = skip_layers(tiny, [2])
    settings = {"do_sample": False, "repetition_penalty": PENALTY, "return_dict_in_generate": True}
    settings |= {"branching": (3, 2, 1, 1), "max_new_tokens": 30, "eos_token_id": None}
    ours = tiny.model.generate(IDS, custom_generate=otmd.generate, draft=draft, **settings)
    theirs = by_file(tiny, draft, **settings)
    assert theirs.sequences.tolist() == ours.sequences.tolist()
    assert theirs.steps == ours.steps
    assert len({kept for kept, _ in theirs.steps}) > 1


def test_a_cache_with_the_wrong_path_is_noticed(tiny: LanguageModel, monkeypatch) -> None:
    """The negative control of the equality of greedy texts."""
    keep = copied._Reader.keep

    def first_nodes(self, tree, path):
        keep(self, tree, range(1, len(path) + 1))

    settings = {"do_sample": False, "branching": (3, 1, 1), "eos_token_id": None}
    draft = similar(tiny, 0.1)
    expected = alone(tiny, do_sample=False, eos_token_id=None)
    assert torch.equal(by_file(tiny, draft, **settings), expected)
    monkeypatch.setattr(copied._Reader, "keep", first_nodes)
    assert not torch.equal(by_file(tiny, draft, **settings), expected)


@pytest.mark.slow
def test_a_draft_that_is_always_accepted_is_noticed(
    small: LanguageModel,  # noqa: F811
    monkeypatch,
) -> None:
    """The negative control of the audits of sampled texts."""
    verify_tree = copied.verify_tree

    def accept_first(probs, levels):
        probs = torch.cat([levels[0].inclusion.new_zeros(probs[:, :1].shape), probs[:, 1:]], 1)
        probs[:, 0].scatter_(1, levels[0].draft_tokens[:, :1], 1.0)
        return verify_tree(probs, levels)

    monkeypatch.setattr(copied, "verify_tree", accept_first)
    written = texts(by_file, small, similar(small), temperature=1.0, top_k=0)
    assert otmd.audit.texts(written, small.logits_after).outcome == "FAULTY"
