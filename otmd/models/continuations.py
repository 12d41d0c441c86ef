"""Next-token distributions after a growing text and after the paths of a draft tree.

A language model computes a whole tree in one call: every token attends to the text and to its own ancestors
alone (SpecInfer's tree attention). The key-value cache keeps the path that is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from otmd.models.draft_models import Draft, NGramDraft
from otmd.models.language_models import LanguageModel, forward_logits
from otmd.models.ngram import ContextNGram
from otmd.models.tree_reading import Continuations
from otmd.trees.base import Prefix


def continuations(model: Draft, tokens: Sequence[int]) -> Continuations:
    """A model's continuations of a text: from a cache, from counts, or computed anew each time."""
    if isinstance(model, LanguageModel):
        return CachedContinuations(model, tokens)
    if isinstance(model, NGramDraft):
        counted = ContextNGram(model.model, model.context)
        counted.extend(tokens)
        return counted
    return Recomputed(model, tokens)


def branches(model: Draft, texts: Sequence[Sequence[int]]) -> list[Continuations]:
    """A model's continuations of several texts; a language model reads all of them in one call."""
    if not isinstance(model, LanguageModel):
        return [continuations(model, text) for text in texts]
    together = CachedContinuations(model, ())
    return [Branch(together, tuple(text)) for text in texts]


class Recomputed(Continuations):
    """Continuations by a model that computes everything anew each time."""

    def __init__(self, model: Draft, tokens: Sequence[int]) -> None:
        self.model = model
        self.text = list(tokens)
        # The logits after these are padding and stand for no token.
        self._token_count = max(model.tokenizer.get_vocab().values()) + 1

    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        texts = [[*self.text, *prefix] for prefix in prefixes]
        rows = [self.model.logits(tokens, rows=[len(tokens) - 1])[0] for tokens in texts]
        return [row[: self._token_count] for row in rows]

    def extend(self, tokens: Sequence[int]) -> None:
        self.text += tokens


class Branch(Continuations):
    """Continuations of one of several texts that a language model reads together, as paths of one tree."""

    def __init__(self, together: CachedContinuations, text: Prefix) -> None:
        self._together = together
        self._text = text

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        self._together.noted |= {(*self._text, *prefix) for prefix in prefixes}

    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        return self._together.logits([(*self._text, *prefix) for prefix in prefixes])

    def extend(self, tokens: Sequence[int]) -> None:
        self._text = (*self._text, *tokens)


class CachedContinuations(Continuations):
    """Continuations by a language model and its cache; the model must take 4-dimensional attention masks."""

    def __init__(self, model: LanguageModel, tokens: Sequence[int]) -> None:
        self.model = model
        self.text = list(tokens)
        # Prefixes that the next call reads as well.
        self.noted = set[Prefix]()
        self._cache: Any = DynamicCache(config=model.model.config)
        # The cache holds the first ``_held`` tokens of the text, and then tokens of prefixes, ``_size`` in
        # all. The slots of a prefix are the indices of its tokens.
        self._held = self._size = 0
        self._slots: dict[Prefix, tuple[int, ...]] = {}
        self._logits: dict[Prefix, np.ndarray] = {}

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        if missing := {*prefixes} - self._logits.keys():
            self._compute(missing)

    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        self.read([*prefixes, *self.noted])
        self.noted.clear()
        return [self._logits[prefix] for prefix in prefixes]

    @torch.inference_mode()
    def extend(self, tokens: Sequence[int]) -> None:
        # The last token is left out, so that the next call computes the logits after it.
        paths = (tuple(tokens[: i + 1]) for i in range(len(tokens) - 1))
        kept = [self._slots[path][-1] for path in takewhile(self._slots.__contains__, paths)]
        if self._slots:
            # The accepted path's entries move up to the text's, and all others behind them are dropped.
            end = self._held + len(kept)
            for layer in self._cache.layers:
                for stored in (layer.keys, layer.values):
                    stored[:, :, self._held : end] = stored[:, :, kept]
                layer.keys, layer.values = layer.keys[:, :, :end], layer.values[:, :, :end]
        self._held += len(kept)
        self._size = self._held
        self.text += tokens
        self._slots = {}
        self._logits = {}

    def _compute(self, missing: set[Prefix]) -> None:
        """Compute the logits after the missing prefixes, in one call that also reads their ancestors."""
        nodes = missing - {()}
        for prefix in missing:
            while (prefix := prefix[:-1]) and prefix not in self._slots and prefix not in nodes:
                nodes.add(prefix)
        ordered = sorted(nodes, key=lambda prefix: (len(prefix), prefix))
        pending = self.text[self._held :]
        size = self._size
        indices = [*range(self._held, len(self.text))]
        indices += [len(self.text) - 1 + len(prefix) for prefix in ordered]
        for i, prefix in enumerate(ordered, size + len(pending)):
            self._slots[prefix] = (*self._slots.get(prefix[:-1], ()), i)
        # After the text has grown, the logits after it are computed whether asked for or not.
        rows = {(): len(pending) - 1} if pending else {}
        rows |= {prefix: i for i, prefix in enumerate(ordered, len(pending)) if prefix in missing}
        device = self.model.model.device
        output = forward_logits(
            self.model.model,
            torch.tensor([*rows.values()], device=device),
            position_ids=torch.tensor([indices], device=device),
            input_ids=torch.tensor([[*pending, *(p[-1] for p in ordered)]], device=device),
            attention_mask=self._mask(size, len(pending), ordered),
            cache=self._cache,
        )
        self._logits |= dict(zip(rows, output[0, :, : self.model.token_count], strict=True))
        self._held = len(self.text)
        self._size += len(indices)

    def _mask(self, size: int, pending: int, nodes: list[Prefix]) -> Any:
        """Attention mask of the T new tokens, to be added to their scores: (1, 1, T, size + T)."""
        count = pending + len(nodes)
        # A token of the text sees the text up to itself. A node sees the whole text, its ancestors, itself.
        seen = torch.ones((count, size + count), dtype=torch.bool).tril(self._held)
        seen[:, self._held + pending :] = False
        for i, prefix in enumerate(nodes):
            seen[pending + i, list(self._slots[prefix])] = True
        dtype = self.model.model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        return mask[None, None].to(self.model.model.device)
