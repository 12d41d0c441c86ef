import copy
from functools import partial
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
from transformers.generation import RepetitionPenaltyLogitsProcessor, StoppingCriteria

import otmd
from otmd.models import LanguageModel, generation
from otmd.models.drafts import skip_layers
from otmd.tensors import generate as copied

from .conftest import WORDS, make_model, make_ngram, make_tokenizer

PROMPT = [3, 4, 5, 6]
IDS = torch.tensor([PROMPT])
PENALTY = 4.0
SETTINGS = {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01}


ngram = partial(make_ngram, context=6)


DRAFTS = {
    "layers skipped": lambda tiny: skip_layers(tiny, [2]),
    "of transformers": lambda tiny: skip_layers(tiny, [1]).model,
    "n-gram": ngram,
    "fewer tokens": lambda tiny: make_model(vocab_size=40, layers=2, seed=3).eval(),
    "more tokens": lambda tiny: make_model(vocab_size=70, layers=2, seed=3).eval(),
}


def by_otmd(tiny: LanguageModel, draft, max_new_tokens=24, **settings):
    settings |= {"custom_generate": otmd.generate, "draft": draft}
    return tiny.model.generate(IDS, max_new_tokens=max_new_tokens, **settings)


def by_file(tiny: LanguageModel, draft, max_new_tokens=24, token_streamer=None, **settings):
    """The same by the file that a repository copies."""
    settings |= {"inputs": IDS, "max_new_tokens": max_new_tokens, "streamer": token_streamer}
    assistant = draft.model if isinstance(draft, LanguageModel) else draft
    return copied.generate(tiny.model, assistant_model=assistant, **settings)


@pytest.fixture(params=[by_otmd, by_file])
def write(request):
    return request.param


def alone(tiny: LanguageModel, max_new_tokens=24, **settings):
    return tiny.model.generate(IDS, max_new_tokens=max_new_tokens, **settings)


@pytest.mark.parametrize(
    ("write", "name"),
    [(by_otmd, name) for name in DRAFTS] + [(by_file, name) for name in DRAFTS if name != "n-gram"],
)
def test_a_greedy_text_is_that_of_generate(name: str, tiny: LanguageModel, write) -> None:
    settings = {
        "do_sample": False, "return_dict_in_generate": True, "output_scores": True,
        "output_logits": True, "repetition_penalty": PENALTY, "no_repeat_ngram_size": 2,
    }  # fmt: skip
    drafted = write(tiny, DRAFTS[name](tiny), **settings)
    expected = alone(tiny, **settings)
    assert drafted.sequences.tolist() == expected.sequences.tolist()
    for kind in ("scores", "logits"):
        for ours, theirs in zip(drafted[kind], expected[kind], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert sum(kept for kept, _ in drafted.steps) == expected.sequences.shape[1] - len(PROMPT)


def test_a_perfect_draft_is_accepted_whole(tiny: LanguageModel, write) -> None:
    settings = {"eos_token_id": None, "return_dict_in_generate": True, "branching": (1, 1, 1)}
    for do_sample in (False, True):
        drafted = write(tiny, tiny, do_sample=do_sample, **settings)
        # The last tree is as deep as the tokens that are left.
        assert drafted.steps == ((4, 3),) * 6


def test_quotas_are_the_drafts_of_each_level(tiny: LanguageModel) -> None:
    settings = {"eos_token_id": None, "return_dict_in_generate": True, "quotas": (2, 3, 1)}
    draft = skip_layers(tiny, [2])
    for do_sample in (False, True):
        drafted = by_otmd(tiny, draft, 6, do_sample=do_sample, **settings)
        left = 6
        for kept, drafts in drafted.steps:
            assert drafts == sum(settings["quotas"][: max(left - 1, 1)])
            left -= kept
    greedy = by_otmd(tiny, draft, do_sample=False, quotas=(2, 3, 1))
    assert torch.equal(greedy, alone(tiny, do_sample=False))


# Of 12 tokens each: so many find a bias of 0.15.
NUM_TEXTS = 55
BIAS = 0.15
PENALTIES = {"repetition_penalty": PENALTY, "top_k": 0, "draft_top_k": 8}


@pytest.fixture
def small() -> LanguageModel:
    return LanguageModel(
        make_model(vocab_size=50, layers=1), make_tokenizer(WORDS[:48]), "small", "made here"
    )


def similar(small: LanguageModel, noise: float = 0.2):
    """A model whose weights differ a little."""
    model = copy.deepcopy(small.model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            added = torch.randn(weights.shape, generator=generator) * weights.std()
            weights += noise * added
    return model


def texts(write, small: LanguageModel, draft, **settings) -> list[dict]:
    torch.manual_seed(7)
    settings = {"branching": (2, 1, 1, 1), "do_sample": True, "eos_token_id": None} | settings
    written = [write(small, draft, 12, **settings)[0].tolist() for _ in range(NUM_TEXTS)]
    return [{"prompt_tokens": PROMPT, "output_tokens": text[len(PROMPT) :]} for text in written]


# A sound text fails an audit with probability 1e-3.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "trees"), [(by_otmd, {"quotas": (2, 2, 2, 2)}), (by_file, {"branching": (3, 1, 2)})]
)
def test_sampled_texts_are_audited(small: LanguageModel, write, trees) -> None:
    written = texts(write, small, similar(small), **trees, **SETTINGS)
    assert otmd.audit.texts(written, small.logits_after, bias=BIAS, **SETTINGS).outcome == "PASS"
    hotter = SETTINGS | {"temperature": 1.3}
    assert otmd.audit.texts(written, small.logits_after, **hotter).outcome == "FAULTY"


def penalised(small: LanguageModel):
    """The target's logits with the penalty on the tokens of each prefix."""
    penalty = RepetitionPenaltyLogitsProcessor(PENALTY)

    def oracle(prefixes):
        rows = torch.from_numpy(small.logits_after(prefixes))
        pairs = zip(prefixes, rows, strict=True)
        return np.stack([penalty(torch.tensor([prefix]), row[None])[0] for prefix, row in pairs])

    return oracle


@pytest.mark.slow
def test_processors_see_the_prefix_of_each_node(small: LanguageModel, write, monkeypatch) -> None:
    # A perfect draft: most tokens have a long path of the tree before them.
    settings = PENALTIES | {"draft": small, "branching": (2, 1, 1, 1, 1, 1, 1)}
    written = texts(write, small, **settings)
    assert otmd.audit.texts(written, penalised(small), bias=BIAS).outcome == "PASS"

    def without_prefix(self, prefix):
        return self.processors(self.ids, self.logits(prefix))

    def rows_without_prefix(self, logits):
        return torch.cat([self.processors(self.ids, row[None].clone()) for row in logits])

    monkeypatch.setattr(generation._Scores, "scores", without_prefix)
    monkeypatch.setattr(copied._Tree, "process", rows_without_prefix)
    written = texts(write, small, **settings)
    assert otmd.audit.texts(written, penalised(small)).outcome == "FAULTY"


def test_a_step_is_one_call_of_the_target_and_one_of_the_draft_a_level(small: LanguageModel, write) -> None:
    draft = similar(small)
    calls = []

    def count(name, model):
        def hook(module, args, inputs):
            calls.append((name, inputs["input_ids"].shape[1]))

        model.register_forward_pre_hook(hook, with_kwargs=True)

    count("draft", draft)
    count("target", small.model)
    settings = {"do_sample": True, "eos_token_id": None, "branching": (2, 1)}
    write(small, draft, 4, stopping_criteria=[Once()], **settings)
    # The draft reads the prompt and two nodes, the target the prompt and all four.
    assert calls == [("draft", 4), ("draft", 2), ("target", 8)]


class Once(StoppingCriteria):
    """Ends a text with its first new token."""

    def __call__(self, input_ids, scores, **_):
        return torch.ones(len(input_ids), dtype=torch.bool)


def test_the_seed_of_torch_decides(tiny: LanguageModel, write) -> None:
    draft = skip_layers(tiny, [2])
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(write(tiny, draft, do_sample=True, eos_token_id=None)[0].tolist())
    assert found[0] == found[1] != found[2]


def test_a_streamer_gets_the_prompt_each_step_and_the_end(tiny: LanguageModel, write) -> None:
    streamer = Mock()
    settings = {"token_streamer": streamer, "do_sample": True, "return_dict_in_generate": True}
    output = write(tiny, skip_layers(tiny, [2]), **settings)
    *puts, end = streamer.mock_calls
    assert end == call.end()
    chunks = [put.args[0][0].tolist() for put in puts]
    assert chunks[0] == PROMPT
    assert [len(chunk) for chunk in chunks[1:]] == [kept for kept, _ in output.steps]
    assert [token for chunk in chunks for token in chunk] == output.sequences[0].tolist()


class StopsAt(StoppingCriteria):
    """Ends a text with the first new token that is a multiple of 7."""

    def __call__(self, input_ids, scores, **_):
        # Of the scores, one for each new token so far.
        assert len(scores) == input_ids.shape[1] - len(PROMPT)
        return torch.tensor([int(input_ids[0, -1]) % 7 == 0])


def test_texts_end_where_generate_ends_them(tiny: LanguageModel, write) -> None:
    torch.manual_seed(3)
    lengths = set()
    for _ in range(20):
        output = write(
            tiny, tiny, do_sample=True, stopping_criteria=[StopsAt()], max_new_tokens=11,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        new = output.sequences[0, len(PROMPT) :].tolist()
        ends = [token % 7 == 0 or token == 1 for token in new]
        assert not any(ends[:-1])
        assert ends[-1] or len(new) == 11
        lengths.add(len(new))
    assert len(lengths) > 3
    stopped = write(tiny, tiny, do_sample=False, eos_token_id=alone(tiny, do_sample=False)[0, 6].item())
    assert stopped[0].tolist() == alone(tiny, do_sample=False)[0, : stopped.shape[1]].tolist()
    assert stopped.shape[1] <= 7
