# SPDX-License-Identifier: Apache-2.0
"""Draft trees from strata inside ``generate`` of transformers, for a repository of the Hugging Face hub.

Copied into the folder ``custom_generate`` of a repository, this file and ``layers.py`` are a decoding loop
that ``generate`` loads by itself. They import torch and transformers alone::

    model.generate(**inputs, custom_generate="FOLDER or NAME/REPOSITORY", trust_remote_code=True,
                   assistant_model=assistant, do_sample=True, max_new_tokens=64)

Each step the assistant drafts a tree, level by level. The model reads the tree in one call, and a path of it
is kept, with one more token. The text is distributed as that of ``generate`` alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.generation import logits_process
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .layers import Level, draft_level, top_tokens, verify_tree

NARROW_AND_DEEP = (2, 1, 1, 1, 1, 1, 1, 1)
# What generate passes to every loop. It says nothing beyond the token ids, or is checked below.
_PREPARED = {"attention_mask", "position_ids", "cache", "past_key_values", "cache_position"}
_PREPARED |= {"logits_to_keep", "use_cache"}
# The settings that generate, its processors and its criteria have served before a loop begins, and those that
# the output has. All others would go unread here.
_SETTINGS = """
    max_length max_new_tokens min_length min_new_tokens max_time stop_strings do_sample
    num_return_sequences temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff
    repetition_penalty encoder_repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids sequence_bias renormalize_logits remove_invalid_values forced_bos_token_id
    forced_eos_token_id suppress_tokens begin_suppress_tokens exponential_decay_length_penalty
    token_healing guidance_scale watermarking_config output_scores output_logits return_dict_in_generate
    transformers_version pad_token_id bos_token_id eos_token_id decoder_start_token_id disable_compile"""
SERVED = frozenset(_SETTINGS.split())
# Their scores depend on the calls before, which here are those of a tree.
_STATEFUL = (
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    logits_process.SynthIDTextWatermarkLogitsProcessor,
)


@dataclass
class TreeOutput(GenerateDecoderOnlyOutput):
    """The output of transformers' ``generate``, and in ``steps`` two numbers for each call of the target.

    They are the number of tokens that it yielded, and the number that were drafted for it.
    """

    steps: tuple[tuple[int, int], ...] | None = None


def generate(
    model: Any,
    *,
    assistant_model: PreTrainedModel | None = None,
    streamer: Any = None,
    branching: Sequence[int] = NARROW_AND_DEEP,
    draft_top_k: int | None = 1024,
    **settings: Any,
) -> TreeOutput | Tensor:
    """Write a text with draft trees; the arguments are those of transformers' ``generate``.

    With sampling, drafts come from strata; with greedy decoding they are the most likely tokens. A greedy
    text is that of ``generate``, except where logits tie within rounding. What is not served is a ValueError:
    more than one text, inputs beyond token ids, some models, processors and outputs. Random numbers are
    those of torch's global generator.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The target, a decoder with full attention.
    assistant_model : transformers.PreTrainedModel
        The draft model, over the same tokens. It may have fewer or more of them.
    streamer : transformers.generation.BaseStreamer, optional
        Receives the prompt, the tokens of each step, and the end.
    branching : sequence of int
        The numbers of drafts at the root, below each of its drafts, and so on.
    draft_top_k : int, optional
        Drafts come from this many most likely tokens of the draft; None is no limit.
    **settings
        All others, such as ``inputs``, ``do_sample``, ``temperature``, ``max_new_tokens``. Logits processors
        see each node of the tree with its own prefix, and stopping criteria the text token by token.

    Returns
    -------
    torch.Tensor or TreeOutput
        Token ids (1, T), prompt included; with ``return_dict_in_generate`` an output that also has ``steps``.

    Examples
    --------
    >>> import torch
    >>> from otmd.tensors.generate import generate
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    ...     num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    >>> model, assistant = LlamaForCausalLM(config), LlamaForCausalLM(config)
    >>> settings = {"inputs": torch.tensor([[3, 4, 5]]), "do_sample": False, "max_new_tokens": 9}
    >>> text = generate(model, assistant_model=assistant, **settings)
    >>> torch.equal(text, model.generate(**settings))
    True
    """
    # generate of transformers drops them where the loop is a function.
    for name in ("assistant_tokenizer", "synced_gpus"):
        if settings.get(name):
            raise _wrong(name, settings[name], "it unset: draft trees do not serve it")
    if not isinstance(assistant_model, PreTrainedModel):
        got = type(assistant_model).__name__
        raise TypeError(f"assistant_model: got {got}, expected a model of transformers")
    if not branching or not all(isinstance(count, int) and count >= 1 for count in branching):
        raise _wrong("branching", branching, "integers ≥ 1, at least one")
    if draft_top_k is not None and not (isinstance(draft_top_k, int) and draft_top_k >= 1):
        raise _wrong("draft_top_k", draft_top_k, "an integer ≥ 1")
    options = {"branching": branching, "draft_top_k": draft_top_k}
    loop = partial(_write, assistant_model=assistant_model, streamer=streamer, **options)
    return model.generate(**settings, custom_generate=loop)


def _write(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    assistant_model: PreTrainedModel,
    streamer: Any,
    branching: Sequence[int],
    draft_top_k: int | None,
    **model_kwargs: Any,
) -> TreeOutput | Tensor:
    """The loop, with what ``generate`` has prepared."""
    check_call(input_ids, logits_processor, generation_config, model_kwargs)
    check_model("model", model)
    check_model("assistant_model", assistant_model)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    do_sample = generation_config.do_sample
    text = Text(input_ids, stopping_criteria, generation_config, streamer)
    target, draft = _Reader(model), _Reader(assistant_model)
    steps = []
    while not text.finished:
        tree = _Tree(text.ids, logits_processor, vocab_size)
        levels: list[Level] = []
        # A tree of depth d yields at most d + 1 tokens.
        left = generation_config.max_length - text.ids.shape[1]
        for num_drafts in branching[: max(left - 1, 1)]:
            scores = tree.process(draft.read(tree))
            most = min(draft_top_k or vocab_size, vocab_size)
            k = most if do_sample else min(num_drafts, most)
            mass, tokens = top_tokens(_probs("assistant_model", scores), k)
            if not do_sample:
                # Equal masses are strata of one token each.
                mass = (mass > 0).double()
            counts = (mass > 0).sum(-1).clamp(max=num_drafts)
            level = draft_level(mass[None], tokens[None], counts[None], int(counts.sum()))
            levels.append(level)
            tree.grow(level)
        logits = target.read(tree)
        scores = tree.process(logits)
        probs = _probs("model", scores)
        if not do_sample:
            probs = torch.zeros_like(probs).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
        path, length, token = verify_tree(probs[None], levels)
        accepted = path[0, : int(length)].tolist()
        emitted = [*(tree.tokens[node] for node in accepted), int(token)]
        nodes = [0, *accepted]
        kept = text.append(emitted, {"scores": scores[nodes], "logits": logits[nodes]})
        steps.append((kept, len(tree.tokens) - 1))
        for reader in (target, draft):
            reader.keep(tree, accepted)
    return text.output(steps)


def _probs(name: str, scores: Tensor) -> Tensor:
    probs = scores.softmax(-1)
    if not bool(probs.isfinite().all()):
        raise _wrong(name, "scores that are NaN or all −∞", "a number for at least one token")
    return probs


class _Tree:
    """A text (1, T) and a tree that continues it. Node 0 is the last token of the text."""

    def __init__(self, ids: Tensor, processors: Any, vocab_size: int) -> None:
        self.ids = ids
        self.processors = processors
        self.vocab_size = vocab_size
        self.tokens = [int(ids[0, -1])]
        # The nodes from the root's draft down to each.
        self.paths: list[list[int]] = [[]]
        self.last_level = [0]

    def grow(self, level: Level) -> None:
        """Append the drafts of a level."""
        above, self.last_level = self.last_level, []
        drafts = level.draft_tokens[0].tolist(), level.parents[0].tolist()
        for token, parent in zip(*drafts, strict=True):
            self.last_level.append(len(self.tokens))
            self.paths.append([*self.paths[above[parent]], len(self.tokens)])
            self.tokens.append(token)

    def process(self, logits: Tensor) -> Tensor:
        """The scores (n, V) of the last n nodes, each processed with the tokens before it."""
        scores = []
        for path, row in zip(self.paths[-len(logits) :], logits, strict=True):
            prefix = self.ids.new_tensor([[self.tokens[node] for node in path]])
            scores.append(self.processors(torch.cat([self.ids, prefix], 1), row[None].clone()))
        return torch.cat(scores)


class _Reader:
    """A model and its cache: the first tokens of a text and, after the last of them, nodes of a tree."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: Any = DynamicCache(config=model.config)
        self.takes = inspect.signature(model.forward).parameters

    def read(self, tree: _Tree) -> Tensor:
        """Read what the cache does not hold; logits (n, V), float32, after the nodes among it."""
        held, length = self.cache.get_seq_length(), tree.ids.shape[1]
        device, dtype = self.model.device, self.model.dtype
        sequence = torch.cat([tree.ids[0], tree.ids.new_tensor(tree.tokens[1:])]).to(device)
        positions = [*range(length), *(length - 1 + len(path) for path in tree.paths[1:])]
        # A token of the text sees the text up to itself. A node sees all of the text, its ancestors, itself.
        index = torch.arange(len(sequence))
        seen = (index <= index[held:, None]) & (index < length)
        for node, path in enumerate(tree.paths):
            if length - 1 + node >= held:
                seen[length - 1 + node - held, [length - 1 + above for above in path]] = True
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        # A draft model may have fewer tokens; it reads its last one in place of one that it does not have.
        most = self.model.get_input_embeddings().weight.shape[0] - 1
        inputs = {
            "input_ids": sequence[None, held:].clamp(max=most),
            "attention_mask": mask[None, None].to(device),
            # transformers calls it ``cache`` from 5.24 on, and ``past_key_values`` before.
            "cache" if "cache" in self.takes else "past_key_values": self.cache,
        }
        count = len(sequence) - max(held, length - 1)
        if "position_ids" in self.takes:
            inputs["position_ids"] = torch.tensor([positions[held:]], device=device)
        if "logits_to_keep" in self.takes:
            inputs["logits_to_keep"] = count
        logits = self.model(**inputs, use_cache=True).logits[0, -count:, : tree.vocab_size]
        logits = logits.to(tree.ids.device, torch.float32)
        missing = tree.vocab_size - logits.shape[-1]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)

    def keep(self, tree: _Tree, path: Sequence[int]) -> None:
        """Keep the entries of the text and of a path, which move up to the text's."""
        length, held = tree.ids.shape[1], self.cache.get_seq_length()
        entries = [length - 1 + node for node in path if length - 1 + node < held]
        end = length + len(entries)
        for layer in self.cache.layers:
            for stored in (layer.keys, layer.values):
                stored[:, :, length:end] = stored[:, :, entries]
            layer.keys, layer.values = layer.keys[:, :, :end], layer.values[:, :, :end]


class Text:
    """The text that ``generate`` returns, as it grows."""

    def __init__(self, ids: Tensor, criteria: Any, config: Any, streamer: Any) -> None:
        self.ids = ids
        self.criteria = criteria
        self.streamer = streamer
        self.with_dict = config.return_dict_in_generate
        self.finished = False
        self.outputs: dict[str, Any] = {
            name: () for name in ("scores", "logits") if self.with_dict and getattr(config, f"output_{name}")
        }
        if streamer is not None:
            streamer.put(ids.cpu())

    def append(self, tokens: Sequence[int], rows: Mapping[str, Sequence[Tensor] | Tensor]) -> int:
        """Append tokens until the text ends, and return their number; ``rows`` has their outputs (V,)."""
        kept = 0
        while kept < len(tokens) and not self.finished:
            for name in self.outputs:
                self.outputs[name] += (rows[name][kept][None],)
            self.ids = torch.cat([self.ids, self.ids.new_tensor([[tokens[kept]]])], 1)
            kept += 1
            self.finished = bool(self.criteria(self.ids, self.outputs.get("scores")).all())
        if self.streamer is not None:
            self.streamer.put(torch.tensor([tokens[:kept]]))
        return kept

    def output(self, steps: Sequence[tuple[int, int]]) -> TreeOutput | Tensor:
        """The output of ``generate``, once the text has ended."""
        if self.streamer is not None:
            self.streamer.end()
        if not self.with_dict:
            return self.ids
        ids: Any = self.ids
        return TreeOutput(sequences=ids, steps=tuple(steps), **self.outputs)


def _wrong(name: str, got: Any, expected: str) -> ValueError:
    return ValueError(f"{name}: got {got}, expected {expected}")


def check_model(name: str, model: Any) -> None:
    """Refuse a model whose attention would not be that of the paths of a tree."""
    if model.config.is_encoder_decoder or model.get_output_embeddings() is None:
        raise _wrong(name, type(model).__name__, "a decoder with an output layer")
    kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
    if kinds != {DynamicLayer.__name__}:
        got = f"cache layers {', '.join(sorted(kinds))}"
        raise _wrong(name, got, "full attention in each layer")
    attention = model.config._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise _wrong(name, f"{attention} attention", "sdpa or eager, which take the mask of a tree")


def check_call(ids: Tensor, processors: Any, config: Any, inputs: dict[str, Any]) -> None:
    """Refuse what ``generate`` prepared and draft trees do not serve."""
    if ids.shape[0] != 1:
        raise _wrong("input_ids", f"{ids.shape[0]} texts or beams", "one")
    given = {name: value for name, value in inputs.items() if value is not None}
    if unknown := sorted(given.keys() - _PREPARED):
        raise _wrong(unknown[0], "an input beyond token ids", "input_ids and attention_mask alone")
    if "attention_mask" in given and not bool(given["attention_mask"].all()):
        raise _wrong("attention_mask", "masked tokens", "ones: a single text needs no padding")
    indices = torch.arange(ids.shape[1], device=ids.device)
    if "position_ids" in given and not bool((given["position_ids"] == indices).all()):
        raise _wrong("position_ids", "others", "0, 1, … of the tokens")
    cache = given.get("cache", given.get("past_key_values"))
    if cache is not None and cache.get_seq_length() > 0:
        raise _wrong("past_key_values", "a cache that holds tokens", "none: the prompt is read here")
    usual = vars(GenerationConfig()) | GenerationConfig._get_default_generation_params()
    for name in sorted(usual.keys() - SERVED):
        value = getattr(config, name, None)
        # False is as good as unset where nothing is usual.
        if not name.startswith("_") and value is not None and value != (usual[name] or False):
            raise _wrong(name, repr(value), "it unset: draft trees do not serve it")
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            name = type(processor).__name__
            raise _wrong("logits_processor", name, "processors without a memory of their calls")
