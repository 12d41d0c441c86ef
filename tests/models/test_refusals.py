from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, MambaConfig, MambaForCausalLM

import otmd
from models.conftest import WORDS, make_model, make_sliding, make_tokenizer
from otmd.models import (
    LanguageModel,
    NGram,
    Prompt,
    Speculation,
    collect,
    decode,
    load_draft,
    load_prompts,
    load_target,
    open_dataset,
    pack_weights,
)
from otmd.models.drafts import common_vocabulary, skip_layers
from otmd.tensors import generate as trees
from otmd.trees import BlockVerification, IIDPaths

P, Q = np.random.default_rng(0).normal(size=(2, 5, 11))
LOGITS = {"target_logits": P, "draft_logits": Q}
IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture
def made(tiny, prompts, tmp_path):
    """A model, a draft, prompts and a folder."""
    return SimpleNamespace(tiny=tiny, draft=skip_layers(tiny, [1, 3]), prompts=prompts, at=tmp_path)


def collected(prompts=None, target=None, draft=None, **settings):
    options = {"positions_per_prompt": 3, "max_new_tokens": 8, "progress": False}
    return lambda m: collect(
        target or m.tiny, draft or m.draft, m.prompts if prompts is None else prompts, m.at / "data",
        **(options | settings),
    )  # fmt: skip


def opened(**arrays):
    def call(m):
        np.savez(m.at / "dump.npz", **arrays)
        open_dataset(m.at / "dump.npz")

    return call


def written(name, content, read):
    def call(m):
        (m.at / name).write_text(content)
        read(m.at / name)

    return call


def prompted(name, content):
    return written(name, content, lambda path: load_prompts([path], progress=False))


def generated(model=None, ids=IDS, **settings):
    def call(m):
        options = {"custom_generate": otmd.generate, "draft": m.draft, "max_new_tokens": 4}
        (model or m.tiny.model).generate(ids, **(options | settings))

    return call


def copied(assistant=None, **settings):
    def call(m):
        options = {
            "assistant_model": assistant or m.draft.model,
            "inputs": IDS,
            "max_new_tokens": 4,
        }
        trees.generate(m.tiny.model, **(options | settings))

    return call


def without_numbers():
    model = make_model()
    model.lm_head.weight.data[:] = torch.nan
    return model


def other(vocab_size=62, words=WORDS):
    return LanguageModel(make_model(vocab_size), make_tokenizer(words), "other", "random")


def in_double(m):
    m.tiny.model.to(torch.float64)
    pack_weights(m.tiny)


def loaded(**options):
    return lambda m: load_target(**options)


def drafted(spec, **options):
    return lambda m: load_draft(spec, m.tiny, **options)


def paths_as_a_block(m):
    speculation = Speculation(m.draft, lambda q: IIDPaths(q, 2, 2), BlockVerification())
    decode(m.tiny, [3], 5, speculation, rng=0)


def recurrent():
    model = MambaForCausalLM(MambaConfig(vocab_size=62, hidden_size=32, num_hidden_layers=1))
    return LanguageModel(model, make_tokenizer(), "recurrent", "random")


SWAPPED = [WORDS[1], WORDS[0], *WORDS[2:]]
REFUSED = {
    "collect": [
        (collected(mode="dream"), "mode: got 'dream'"),
        (collected(dtype="int8"), "dtype: got 'int8'"),
        (collected(positions_per_prompt=0), "positions_per_prompt: got 0"),
        (collected(temperature=float("nan")), "temperature: got nan"),
        (collected(seed=-1), "seed: got -1"),
        (collected(batch_size=0), "batch_size: got 0"),
        (collected(max_new_tokens=125), r"'p0' has 4 tokens.*more than the 128"),
        (collected([]), "prompts: got none, expected at least one"),
        (collected([Prompt("a", "b", "w1")] * 2), "the id 'a' twice"),
        (collected([Prompt("blank", "b", " ")]), "'blank' is empty"),
        (collected([Prompt("a", "b", "w1")], mode="text"), "'a'.*has no answer"),
        # Files are looked for before a model is loaded.
        (collected(target="x.gguf", draft="nix.gguf"), "draft: there is no GGUF file"),
        (collected(target="nix.gguf"), "there is no GGUF file 'nix.gguf'"),
    ],
    "dumps": [
        (opened(target_logits=P), "expected either target_logits and draft_logits or"),
        (opened(target_logits=P, draft_probs=Q), "expected either"),
        (opened(**LOGITS, target_probs=P), "expected either"),
        (opened(target_logits=P, draft_logits=Q[:4]), "expected the same"),
        (opened(target_logits=P[0], draft_logits=Q[0]), r"expected \(N, V\)"),
        (opened(target_logits=P[:0], draft_logits=Q[:0]), r"expected \(N, V\)"),
        (opened(target_logits=P, draft_logits=Q.astype(int)), "a floating type"),
        (opened(**LOGITS, prompt_id=np.arange(4)), r"prompt_id: got shape \(4,\)"),
        (opened(**LOGITS, promptid=np.arange(5)),
         r"dump\.npz: array: got promptid, expected arrays named target_logits, draft_logits, .*prompt_id"),
        (opened(**LOGITS, metadata="{}"), "got metadata, expected arrays named"),
        (written("a.csv", "1,2", open_dataset), r"\.npz or \.safetensors"),
        (lambda m: open_dataset(m.at / "nowhere"), "there is no data set"),
        (lambda m: open_dataset(m.at), "no folder made by collect"),
    ],
    "prompts": [
        (prompted("a.jsonl", "{"), "line 1: not JSON"),
        (prompted("a.jsonl", '{"text": "x", "text": "y"}'), "'text' twice"),
        (prompted("a.jsonl", "[" * 100_000), "nested too deeply"),
        (prompted("a.jsonl", "[1]"), "expected a JSON object"),
        (prompted("a.jsonl", '{"id": 1}'), "record 1: expected a string under 'text'"),
        (prompted("a.jsonl", '{"text": "x", "answer": 3}'), "must be a string"),
        (prompted("a.jsonl", ""), "holds no prompts"),
        (prompted("a.txt", " \n\n "), "holds no prompts"),
        (prompted("a.csv", "x"), r"\.jsonl or \.txt"),
        (prompted("a.jsonl", '{"id": 1, "text": "x"}\n' * 2), "the id '1' twice"),
        (lambda m: load_prompts(["poems"]), "got 'poems', expected a file or one of"),
        (lambda m: load_prompts(per_domain=0), "per_domain: got 0"),
    ],
    "models": [
        *((lambda m, ids=ids: m.tiny.logits(ids), "token_ids: got")
          for ids in ([], [[]], [1.5], [62], [-1], [[1]])),
        (lambda m: LanguageModel(make_model().model, make_tokenizer(), "a", "b"), "no output"),
        *((loaded(dtype=dtype), f"dtype: got {dtype!r}") for dtype in ("float7", "int3")),
        *((loaded(device=d), f"device: got {d!r}, expected") for d in ("abacus", "cuda:99")),
        (loaded(revision="main"), "revision: got .*names on the hub"),
        (in_double, "expected float32 or bfloat16"),
        *((lambda m, layers=layers: skip_layers(m.tiny, layers), "layers: got")
          for layers in ([], [5], [-1], [1, 1], [0, 1, 2, 3, 4])),
        *((drafted(spec), "draft: got .*, expected")
          for spec in ("skip:", "skip:a", "skip:1,", "ngram:", "ngram:x", "ngram:0", "ngram:2:", "skip:1+2")),
        (drafted("ngram:2:nix"), "draft: there is no file 'nix'"),
        (drafted("ngram:2"), "needs text to be fitted on"),
        (lambda m: common_vocabulary(m.tiny, other(words=SWAPPED)), "2 tokens differ"),
        (lambda m: common_vocabulary(m.tiny, other(60)), "62 tokens, its logits only 60 rows"),
        (lambda m: NGram.fit([[0, 1]], 5, 0), "order: got 0"),
        *((lambda m, given=given: NGram.fit(given, 5, 2), "sequences: got")
          for given in ([[]], [[0, 9]], [])),
    ],
    "decoding": [
        (lambda m: decode(m.tiny, [], 5, rng=0), "prompt: got no tokens"),
        (lambda m: decode(m.tiny, [3], 0, rng=0), "max_new_tokens: got 0"),
        (lambda m: decode(make_sliding(4), [3, 4], 5, rng=0), "text: got 5 tokens, .*at most 4"),
        (lambda m: decode(recurrent(), [3], 2, rng=0), "model: got cache layers LinearAttention"),
    ],
    "generate": [
        (generated(num_return_sequences=2, do_sample=True), "input_ids: got 2 texts"),
        (generated(num_beams=2), "input_ids: got 2 texts or beams"),
        (generated(draft=None), "draft: got None"),
        (generated(draft=make_sliding(4).model), "draft: got cache .*Sliding.* full attention"),
        (generated(model=make_sliding(4).model), "model: got cache layers"),
        (generated(attention_mask=torch.tensor([[0, 1, 1, 1]])), "attention_mask: got masked"),
        (generated(position_ids=torch.tensor([[1, 2, 3, 4]])), "position_ids: got others"),
        (generated(guidance_scale=1.5), "logits_processor: got UnbatchedClassifierFree"),
        (generated(branching=()), "branching: got no level"),
        (generated(branching=(2, 0)), "branching: got 0"),
        (generated(quotas=()), "quotas: got no level"),
        (generated(draft_top_k=0), "draft_top_k: got 0"),
        (generated(output_attentions=True), "output_attentions: got an input beyond"),
        (generated(prompt_lookup_num_tokens=3), "prompt_lookup_num_tokens: got 3"),
        (generated(cache_implementation="static"), "cache_implementation: got 'static'"),
        (generated(num_assistant_tokens=5), "num_assistant_tokens: got 5"),
        (generated(use_cache=False), "use_cache: got False"),
    ],
    "custom_generate": [
        (copied(make_sliding(4).model), "assistant_model: got cache layers"),
        (copied(without_numbers()), "assistant_model: got scores that are NaN"),
        (copied(inputs=IDS.repeat(2, 1)), "input_ids: got 2 texts"),
        (copied(assistant_tokenizer="other"), "assistant_tokenizer: got other"),
        (copied(synced_gpus=True), "synced_gpus: got True"),
        (copied(branching=()), r"branching: got \(\)"),
        (copied(branching=(2, 0)), r"branching: got \(2, 0\)"),
        (copied(branching=(1.5,)), r"branching: got \(1.5,\)"),
        (copied(draft_top_k=0), "draft_top_k: got 0"),
    ],
}  # fmt: skip

OTHER_ERRORS = [
    (paths_as_a_block, otmd.UnsupportedLaw, "BlockVerification"),
    (generated(draft="ngram"), TypeError, "draft: got str"),
    (copied("ngram"), TypeError, "assistant_model: got str"),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(pytest.param(call, ValueError, message, id=f"{kind}-{i}")
          for kind, rows in REFUSED.items() for i, (call, message) in enumerate(rows)),
        *OTHER_ERRORS,
    ],
)  # fmt: skip
def test_refused(made, call, error, message):
    with pytest.raises(error, match=message) as raised:
        call(made)
    assert "\n" not in str(raised.value)


def test_no_setting_of_generate_goes_unread():
    """Each is served, or refused where it is set."""
    for name in vars(GenerationConfig()):
        config = GenerationConfig()
        setattr(config, name, 7)
        if not name.startswith("_") and name not in trees.SERVED:
            with pytest.raises(ValueError, match=f"{name}: got 7, expected it unset"):
                trees.check_call(IDS, [], config, {})
    trees.check_call(IDS, [], GenerationConfig(is_assistant=False, output_scores=True), {})


def test_a_cache_that_holds_tokens_is_refused(made):
    cache = made.tiny.model(IDS[:, :2], use_cache=True)
    key = "cache" if "cache" in cache else "past_key_values"
    with pytest.raises(ValueError, match="past_key_values: got a cache that holds tokens"):
        generated(**{key: cache[key]})(made)
