"""Draft trees inside ``generate`` of transformers: ``model.generate(…, custom_generate=otmd.generate)``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.generation import logits_process
from transformers.generation.utils import GenerateDecoderOnlyOutput

from otmd.laws import DraftLaw, Stratified, TopK
from otmd.models.continuations import CachedContinuations, Reader, continuations
from otmd.models.decoding import Decoded, decoding_steps
from otmd.models.drafts import Draft
from otmd.models.language_models import LanguageModel
from otmd.probabilities import FloatArray, Processing, validate_count, wrong, wrong_type
from otmd.trees import AdaptiveTree, LayerVerification, TokenTree, TreeLaw
from otmd.trees.base import Model, Prefix

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
_SERVED = frozenset(_SETTINGS.split())
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
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    draft: Draft | PreTrainedModel | None = None,
    branching: Sequence[int] = NARROW_AND_DEEP,
    quotas: Sequence[int] | None = None,
    draft_top_k: int | None = 1024,
    token_streamer: Any = None,
    **model_kwargs: Any,
) -> TreeOutput | torch.Tensor:
    """Write a text with draft trees, as the ``custom_generate`` of transformers' ``generate``.

    Each step drafts a tree, evaluates the model on it in one call, and keeps a path by
    :class:`~otmd.trees.LayerVerification`. With sampling, drafts come from strata; with greedy decoding they
    are the most likely tokens. The text is distributed as that of ``generate`` alone. A greedy text is the
    same, except where logits tie within rounding.

    Parameters
    ----------
    model, input_ids, logits_processor, stopping_criteria, generation_config
        As ``generate`` prepares them. The processors see each node of the tree with its own prefix, and the
        criteria the text token by token.
    draft : Draft or transformers.PreTrainedModel
        What :func:`otmd.models.load_draft` returns, or a model over the same tokens.
    branching : sequence of int
        The numbers of drafts at the root, below each of its drafts, and so on.
    quotas : sequence of int, optional
        The most drafts on each level of an :class:`~otmd.trees.AdaptiveTree`, in place of ``branching``.
    draft_top_k : int, optional
        Drafts come from this many most likely tokens of the draft; None is no limit. It bounds the time of
        verification.
    token_streamer : transformers.generation.BaseStreamer, optional
        Receives the prompt, the tokens of each step, and the end.

    Returns
    -------
    torch.Tensor or TreeOutput
        Token ids (1, T), prompt included; with ``return_dict_in_generate`` an output that also has ``steps``.

    Notes
    -----
    ``generate`` does not pass its own keywords ``assistant_model`` and ``streamer`` on to a callable, so they
    are ``draft`` and ``token_streamer`` here. What is not served is a ValueError: more than one text, inputs
    beyond token ids, some models, processors and outputs. Random numbers follow from torch's global
    generator.

    Examples
    --------
    >>> import torch
    >>> import otmd
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    ...     num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    >>> model, draft = LlamaForCausalLM(config), LlamaForCausalLM(config)
    >>> prompt = torch.tensor([[3, 4, 5]])
    >>> drafted = model.generate(
    ...     prompt, custom_generate=otmd.generate, draft=draft, do_sample=False, max_new_tokens=9)
    >>> torch.equal(drafted, model.generate(prompt, do_sample=False, max_new_tokens=9))
    True
    """
    _check_call(input_ids, logits_processor, generation_config, model_kwargs)
    if draft_top_k is not None:
        validate_count("draft_top_k", draft_top_k, minimum=1)
    name, levels = ("branching", branching) if quotas is None else ("quotas", quotas)
    counts = tuple(validate_count(name, count, minimum=1) for count in levels)
    if not counts:
        raise wrong(name, "no level", "at least one")
    do_sample = generation_config.do_sample
    after = partial(_Scores, ids=input_ids, processors=logits_processor)
    target = after(_readable("model", model), step=Processing(1.0 if do_sample else 0.0))
    drafting = Processing(top_k=draft_top_k)
    reader = after(_readable("draft", draft), step=drafting, vocab_size=target.vocab_size)
    shape: Any = TokenTree if quotas is None else AdaptiveTree

    def law_of(model: Model) -> TreeLaw:
        # A tree of depth d yields at most d + 1 tokens.
        left = generation_config.max_length - target.ids.shape[1]
        law = Stratified if do_sample else _most_likely
        return shape(model, counts[: max(left - 1, 1)], law=law)

    # So torch.manual_seed fixes the text.
    rng = np.random.default_rng(int(torch.randint(2**62, ())))
    decoded = Decoded()
    with_dict = generation_config.return_dict_in_generate
    outputs: dict[str, tuple[torch.Tensor, ...]] = {
        name: ()
        for name in ("scores", "logits")
        if with_dict and getattr(generation_config, f"output_{name}")
    }
    finished = False

    def keep(emitted: Prefix) -> int:
        nonlocal finished
        kept = 0
        while kept < len(emitted) and not finished:
            for name in outputs:
                outputs[name] += (getattr(target, name)(emitted[:kept]),)
            kept += 1
            text = target.text(emitted[:kept])
            finished = bool(stopping_criteria(text, outputs.get("scores")).all())
        return kept

    if token_streamer is not None:
        token_streamer.put(input_ids.cpu())
    trees = (reader, law_of, LayerVerification())
    for kept in decoding_steps(target, trees, rng, decoded, keep):
        if token_streamer is not None:
            token_streamer.put(torch.tensor([kept]))
        if finished:
            break
    if token_streamer is not None:
        token_streamer.end()
    if not with_dict:
        return target.ids
    ids: Any = target.ids
    return TreeOutput(sequences=ids, steps=tuple(decoded.steps), **cast(Any, outputs))


class _Scores(Reader):
    """A model after a text and after paths that continue it, with generate's processors before ``step``.

    Logits and scores are over ``vocab_size`` tokens. Tokens that the model does not know have the logit −∞.
    """

    def __init__(
        self,
        model: Any,
        ids: torch.Tensor,
        processors: Any,
        step: Processing,
        vocab_size: int | None = None,
    ) -> None:
        self._token_count = int(getattr(model, "token_count", None) or model.vocab_size)
        self.vocab_size = vocab_size or self._token_count
        self.ids = ids
        self.processors = processors
        begin: Any = CachedContinuations if isinstance(model, _BareModel) else continuations
        super().__init__(begin(model, self._known(ids[0].tolist())), step)

    def text(self, prefix: Prefix) -> torch.Tensor:
        """Token ids (1, T) of the text and a prefix."""
        return torch.cat([self.ids, self.ids.new_tensor([prefix])], dim=1)

    def logits(self, prefix: Prefix) -> torch.Tensor:
        """Logits (1, V) of the next token after the text and a prefix, float32."""
        row = self._text.logits([self._known(prefix)])[0][: self.vocab_size]
        logits = torch.full((1, self.vocab_size), -torch.inf, device=self.ids.device)
        logits[0, : row.size] = torch.from_numpy(row)
        return logits

    def scores(self, prefix: Prefix) -> torch.Tensor:
        """The logits (1, V) after the processors, which see the text and the prefix."""
        return self.processors(self.text(prefix), self.logits(prefix))

    def _distribution(self, prefix: Prefix) -> FloatArray:
        return self._step(self.scores(prefix)[0].numpy(force=True))

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        """Read the prefixes in one call, if the model can."""
        super().read([self._known(prefix) for prefix in prefixes])

    def extend(self, tokens: Prefix) -> None:
        """Append tokens to the text."""
        super().extend(self._known(tokens))
        self.ids = self.text(tokens)

    def _known(self, tokens: Sequence[int]) -> Prefix:
        # The draft reads its last token in place of one that it does not know. Any draft is lossless.
        return tuple(min(token, self._token_count - 1) for token in tokens)


class _BareModel(NamedTuple):
    """A transformers model in the form that ``CachedContinuations`` takes, with all its logits."""

    model: PreTrainedModel
    token_count: int


def _most_likely(draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
    """The most likely tokens, at most as many as have mass."""
    return TopK(draft_probs, min(num_drafts, int(np.count_nonzero(draft_probs))))


def _readable(name: str, given: Draft | PreTrainedModel | None) -> Draft | _BareModel:
    """A model that reads trees; ValueError for one whose attention would not be that of its paths."""
    if given is None:
        expected = (
            "draft=…: generate keeps assistant_model from a custom_generate that is a callable"
        )
        raise wrong(name, None, expected)
    if not isinstance(given, PreTrainedModel | LanguageModel):
        if not hasattr(given, "logits"):
            raise wrong_type(name, given, "a model of transformers, or of otmd.models.load_draft")
        return given
    model = given.model if isinstance(given, LanguageModel) else given
    head = cast(Any, model.get_output_embeddings())
    if model.config.is_encoder_decoder or head is None:
        raise wrong(name, type(model).__name__, "a decoder with an output layer")
    kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
    if kinds != {DynamicLayer.__name__}:
        raise wrong(
            name, f"cache layers {', '.join(sorted(kinds))}", "full attention in each layer"
        )
    attention = model.config._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise wrong(name, f"{attention} attention", "sdpa or eager, which take the mask of a tree")
    if isinstance(given, LanguageModel):
        return given
    return _BareModel(model, int(head.weight.shape[0]))


def _check_call(ids: torch.Tensor, processors: Any, config: Any, inputs: dict[str, Any]) -> None:
    """Refuse what generate prepared and the trees do not serve."""
    if ids.shape[0] != 1:
        raise wrong("input_ids", f"{ids.shape[0]} texts or beams", "one")
    given = {name: value for name, value in inputs.items() if value is not None}
    if unknown := sorted(given.keys() - _PREPARED):
        raise wrong(unknown[0], "an input beyond token ids", "input_ids and attention_mask alone")
    if "attention_mask" in given and not bool(given["attention_mask"].all()):
        raise wrong("attention_mask", "masked tokens", "ones: a single text needs no padding")
    indices = torch.arange(ids.shape[1], device=ids.device)
    if "position_ids" in given and not bool((given["position_ids"] == indices).all()):
        raise wrong("position_ids", "others", "0, 1, … of the tokens")
    cache = given.get("cache", given.get("past_key_values"))
    if cache is not None and cache.get_seq_length() > 0:
        raise wrong("past_key_values", "a cache that holds tokens", "none: the prompt is read here")
    usual = vars(GenerationConfig()) | GenerationConfig._get_default_generation_params()
    for name in sorted(usual.keys() - _SERVED):
        value = getattr(config, name, None)
        # False is as good as unset where nothing is usual.
        if not name.startswith("_") and value is not None and value != (usual[name] or False):
            raise wrong(name, repr(value), "it unset: draft trees do not serve it")
    for processor in processors:
        if isinstance(processor, _STATEFUL):
            name = type(processor).__name__
            raise wrong("logits_processor", name, "processors without a memory of their calls")
