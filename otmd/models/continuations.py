"""Next-token distributions after a growing text and after the paths of a draft tree, read level by level.

A language model computes a whole level, or a whole tree, in one call: every token attends to the text and to
its own ancestors alone (SpecInfer's tree attention). The key-value cache keeps the path that is accepted.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from otmd.probabilities import FloatArray, Processing, wrong
from otmd.trees.base import DraftTree, Prefix

# A finished study is read without torch.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from otmd.models.drafts import Draft


class Continuations(ABC):
    """A model's next-token distributions after a text, and after prefixes that continue the text."""

    @abstractmethod
    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        """Logits (V,) of the next token after each prefix; the empty prefix stands for the text itself."""

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""

    def read(self, prefixes: Sequence[Prefix], /) -> None:  # noqa: B027
        """Compute the logits after several prefixes, if one call for all is cheaper than one each."""

    def distribution(self, prefix: Prefix, step: Processing, size: int | None = None) -> FloatArray:
        """Distribution of the next token after a prefix, from its first ``size`` logits."""
        return step(self.logits([prefix])[0][:size])


class Reader:
    """A model's distributions (V,) after a text and after prefixes that continue it."""

    def __init__(self, text: Continuations, step: Processing, vocab_size: int | None = None) -> None:
        self._text = text
        self._step = step
        self._vocab_size = vocab_size
        self._probs: dict[Prefix, FloatArray] = {}

    def __call__(self, prefix: Prefix) -> FloatArray:
        """The distribution after a prefix."""
        if prefix not in self._probs:
            self._probs[prefix] = self._distribution(prefix)
        return self._probs[prefix]

    def _distribution(self, prefix: Prefix) -> FloatArray:
        return self._text.distribution(prefix, self._step, self._vocab_size)

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        """Read many prefixes in one call of the model, if that is cheaper."""
        self._text.read(prefixes)

    def extend(self, tokens: Prefix) -> None:
        """Append tokens to the text."""
        self._text.extend(tokens)
        self._probs.clear()


def read_trees(
    trees: Iterable[tuple[DraftTree, Any, Any]],
    spent: Callable[[str], object] = lambda stage: None,
) -> None:
    """Draw trees, each with its target and its draft model after a text, such as a :class:`Reader`.

    The draft models read the trees level by level, then the targets read them in one call. A model that reads
    several texts together reads a level of all their trees in one call. ``spent`` is told when the stages
    "draft" and "target" end.
    """
    trees = list(trees)
    growing = [(draft, tree.grow()) for tree, _, draft in trees]
    while levels := [(draft, nodes) for draft, tree in growing if (nodes := next(tree, None))]:
        for draft, nodes in levels:
            draft.read(nodes)
    prefixes = [tree.prefixes() for tree, _, _ in trees]
    spent("draft")
    for (_, target, _), nodes in zip(trees, prefixes, strict=True):
        target.read(nodes)
    spent("target")


def continuations(model: Draft, tokens: Sequence[int]) -> Continuations:
    """A model's continuations of a text: from a cache, from counts, or computed anew each time."""
    from otmd.models.drafts import NGramDraft
    from otmd.models.language_models import LanguageModel

    if isinstance(model, LanguageModel):
        return CachedContinuations(model.model, model.token_count, tokens)
    if isinstance(model, NGramDraft):
        return model.after(tokens)
    return Recomputed(model, tokens)


def branches(model: Draft, texts: Sequence[Sequence[int]]) -> list[Continuations]:
    """A model's continuations of several texts; a language model reads all of them in one call."""
    from otmd.models.language_models import LanguageModel

    if not isinstance(model, LanguageModel):
        return [continuations(model, text) for text in texts]
    together = SharedContinuations(model.model, model.token_count, [tuple(text) for text in texts])
    return [Branch(together, number) for number in range(len(texts))]


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

    def __init__(self, together: SharedContinuations, number: int) -> None:
        self._together = together
        self._number = number

    @property
    def text(self) -> Prefix:
        """The tokens of the text."""
        return self._together.texts[self._number]

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        self._together.noted |= {(*self.text, *prefix) for prefix in prefixes}

    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        return self._together.logits([(*self.text, *prefix) for prefix in prefixes])

    def extend(self, tokens: Sequence[int]) -> None:
        self._together.texts[self._number] = (*self.text, *tokens)
        self._together.has_grown = True


class CachedContinuations(Continuations):
    """Continuations by a model of transformers and its cache, from its first ``token_count`` logits.

    The model must take 4-dimensional attention masks. ValueError for layers without attention, and where a
    path is longer than the window of sliding attention.
    """

    def __init__(self, model: PreTrainedModel, token_count: int, tokens: Sequence[int]) -> None:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        self.model = model
        self.token_count = token_count
        self.text = list(tokens)
        self._cache: Any = DynamicCache(config=model.config)
        kinds = {type(layer).__name__ for layer in self._cache.layers if not isinstance(layer, DynamicLayer)}
        if kinds:
            raise wrong("model", f"cache layers {', '.join(sorted(kinds))}", "attention in each layer")
        windows = {layer.sliding_window for layer in self._cache.layers if layer.is_sliding}
        # A text that fits into the windows is read as by full attention. A cache of theirs would drop nodes.
        self._longest = min(windows, default=sys.maxsize)
        if windows:
            self._cache = DynamicCache()
        # The cache holds the first ``_held`` tokens of the text, and then tokens of prefixes, ``_size`` in
        # all. The slots of a prefix are the indices of its tokens.
        self._held = self._size = 0
        self._slots: dict[Prefix, tuple[int, ...]] = {}
        self._logits: dict[Prefix, np.ndarray] = {}

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        if missing := {prefix for prefix in prefixes if prefix not in self._logits}:
            self._compute(missing)

    def logits(self, prefixes: Sequence[Prefix]) -> list[np.ndarray]:
        self.read(prefixes)
        return [self._logits[prefix] for prefix in prefixes]

    def extend(self, tokens: Sequence[int]) -> None:
        # The last token is left out, so that the next call computes the logits after it.
        paths = (tuple(tokens[: i + 1]) for i in range(len(tokens) - 1))
        kept = [self._slots[path][-1] for path in takewhile(self._slots.__contains__, paths)]
        if self._slots:
            import torch

            # The accepted path's entries move up to the text's, and all others behind them are dropped.
            end = self._held + len(kept)
            with torch.inference_mode():
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
        import torch

        from otmd.models.language_models import forward_logits

        nodes = missing - {()}
        for prefix in missing:
            while (prefix := prefix[:-1]) and prefix not in self._slots and prefix not in nodes:
                nodes.add(prefix)
        ordered = sorted(nodes, key=lambda prefix: (len(prefix), prefix))
        pending = self.text[self._held :]
        size = self._size
        indices = [*range(self._held, len(self.text))]
        indices += [len(self.text) - 1 + len(prefix) for prefix in ordered]
        if indices[-1] >= self._longest:
            expected = f"at most {self._longest}, which the model's sliding attention sees"
            raise wrong("text", f"{indices[-1] + 1} tokens", expected)
        for i, prefix in enumerate(ordered, size + len(pending)):
            self._slots[prefix] = (*self._slots.get(prefix[:-1], ()), i)
        # After the text has grown, the logits after it are computed whether asked for or not.
        rows = {(): len(pending) - 1} if pending else {}
        rows |= {prefix: i for i, prefix in enumerate(ordered, len(pending)) if prefix in missing}
        # The mask (1, 1, T, size + T) is added to the scores of the T new tokens. A token of the text sees
        # the text up to itself. A node sees all of the text, its ancestors, itself.
        seen = torch.ones((len(indices), size + len(indices)), dtype=torch.bool).tril(self._held)
        seen[:, len(self.text) :] = False
        for i, prefix in enumerate(ordered, len(pending)):
            seen[i, list(self._slots[prefix])] = True
        device, dtype = self.model.device, self.model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        output = forward_logits(
            self.model,
            torch.tensor([*rows.values()], device=device),
            position_ids=torch.tensor([indices], device=device),
            input_ids=torch.tensor([[*pending, *(p[-1] for p in ordered)]], device=device),
            attention_mask=mask[None, None].to(device),
            cache=self._cache,
        )
        self._logits |= dict(zip(rows, output[0, :, : self.token_count], strict=True))
        self._held = len(self.text)
        self._size += len(indices)


class SharedContinuations(CachedContinuations):
    """Continuations of the empty text, of which the texts of all branches are paths."""

    has_grown = False

    def __init__(self, model: PreTrainedModel, token_count: int, texts: list[Prefix]) -> None:
        super().__init__(model, token_count, ())
        # The branches' texts, not the branches, so that no cycle of references keeps the cache.
        self.texts = texts
        # Prefixes that the next call reads as well.
        self.noted = set[Prefix]()

    def read(self, prefixes: Sequence[Prefix], /) -> None:
        together = {*prefixes, *self.noted}
        self.noted.clear()
        if self.has_grown and self._slots and not together <= self._logits.keys():
            self._keep_texts()
        super().read([*together])

    def _keep_texts(self) -> None:
        """Drop what was read of trees: the cache keeps the texts of the branches alone."""
        kept = {}
        # The last token is left out, so that the next call computes the logits after it.
        for text in {text[:-1] for text in self.texts}:
            while text and text not in self._slots:
                text = text[:-1]
            kept[text] = self._slots.get(text, ())
        order = sorted({slot for slots in kept.values() for slot in slots})
        moved = {slot: index for index, slot in enumerate(order)}
        self._slots = {text: tuple(moved[slot] for slot in slots) for text, slots in kept.items()}
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[:, :, order], layer.values[:, :, order]
        self._size = len(order)
        self._logits = {}
        self.has_grown = False
