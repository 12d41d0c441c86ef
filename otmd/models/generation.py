"""Draft trees inside ``generate`` of transformers: ``model.generate(…, custom_generate=otmd.generate)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from otmd.laws import DraftLaw, Stratified, TopK
from otmd.models.continuations import CachedContinuations, Continuations, Reader, continuations
from otmd.models.decoding import Decoded, decoding_steps
from otmd.models.drafts import Draft
from otmd.models.language_models import LanguageModel
from otmd.probabilities import FloatArray, Processing, validate_count, wrong, wrong_type
from otmd.tensors.generate import NARROW_AND_DEEP, Text, TreeOutput, check_call, check_model
from otmd.trees import AdaptiveTree, LayerVerification, TokenTree, TreeLaw
from otmd.trees.base import Model, Prefix


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
    check_call(input_ids, logits_processor, generation_config, model_kwargs)
    if draft_top_k is not None:
        validate_count("draft_top_k", draft_top_k, minimum=1)
    name, levels = ("branching", branching) if quotas is None else ("quotas", quotas)
    counts = tuple(validate_count(name, count, minimum=1) for count in levels)
    if not counts:
        raise wrong(name, "no level", "at least one")
    do_sample = generation_config.do_sample
    after = partial(_Scores, ids=input_ids, processors=logits_processor)
    target = after(*_reads("model", model), step=Processing(1.0 if do_sample else 0.0))
    drafting = Processing(top_k=draft_top_k)
    reader = after(*_reads("draft", draft), step=drafting, vocab_size=target.vocab_size)
    shape: Any = TokenTree if quotas is None else AdaptiveTree

    def law_of(model: Model) -> TreeLaw:
        # A tree of depth d yields at most d + 1 tokens.
        left = generation_config.max_length - target.ids.shape[1]
        law = Stratified if do_sample else _most_likely
        return shape(model, counts[: max(left - 1, 1)], law=law)

    # So torch.manual_seed fixes the text.
    rng = np.random.default_rng(int(torch.randint(2**62, ())))
    decoded = Decoded()
    text = Text(input_ids, stopping_criteria, generation_config, token_streamer)

    def keep(emitted: Prefix) -> int:
        ends = [emitted[:i] for i in range(len(emitted))]
        return text.append(
            emitted,
            {name: [getattr(target, name)(end)[0] for end in ends] for name in text.outputs},
        )

    trees = (reader, law_of, LayerVerification())
    for _ in decoding_steps(target, trees, rng, decoded, keep):
        if text.finished:
            break
    return text.output(decoded.steps)


class _Scores(Reader):
    """A model after a text and after paths that continue it, with generate's processors before ``step``.

    ``begin`` and ``token_count`` are those of :func:`_reads`. Logits and scores are over ``vocab_size``
    tokens. Tokens that the model does not know have the logit −∞.
    """

    def __init__(
        self,
        begin: Callable[[Prefix], Continuations],
        token_count: int,
        ids: torch.Tensor,
        processors: Any,
        step: Processing,
        vocab_size: int | None = None,
    ) -> None:
        self._token_count = token_count
        self.vocab_size = vocab_size or token_count
        self.ids = ids
        self.processors = processors
        super().__init__(begin(self._known(ids[0].tolist())), step)

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


def _most_likely(draft_probs: FloatArray, num_drafts: int) -> DraftLaw:
    """The most likely tokens, at most as many as have mass."""
    return TopK(draft_probs, min(num_drafts, int(np.count_nonzero(draft_probs))))


def _reads(name: str, given: Draft | PreTrainedModel | None) -> tuple[Callable[[Prefix], Continuations], int]:
    """From a text to a model's continuations of it, and the number of tokens that the model knows.

    ValueError for a model whose attention would not be that of a tree's paths.
    """
    if given is None:
        expected = "draft=…: generate keeps assistant_model from a custom_generate that is a callable"
        raise wrong(name, None, expected)
    if isinstance(given, PreTrainedModel):
        check_model(name, given)
        count = int(cast(Any, given.get_output_embeddings()).weight.shape[0])
        return partial(CachedContinuations, given, count), count
    if not hasattr(given, "logits"):
        raise wrong_type(name, given, "a model of transformers, or of otmd.models.load_draft")
    if isinstance(given, LanguageModel):
        check_model(name, given.model)
        return partial(continuations, given), given.token_count
    return partial(continuations, given), given.vocab_size
