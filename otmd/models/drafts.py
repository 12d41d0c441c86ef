"""Draft models: layers skipped, an n-gram model, or a second language model.

Leaving layers out makes a self-speculative draft (Zhang et al. 2023, "Draft & Verify"; Elhoushi et al. 2024,
"LayerSkip"). A draft over fewer tokens has logits of −∞ for the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from otmd.models.language_models import LanguageModel, description, load_target, structural_copy
from otmd.models.ngram import LONGEST, ContextNGram, NGram
from otmd.probabilities import wrong

DEFAULT_DRAFT = "skip:13,15,17"
_NGRAM = re.compile(r"ngram(?::(?P<order>\d+)(?::(?P<file>.+?))?)?(?P<context>\+context)?")


class Draft(Protocol):
    """The interface of a draft model, which ``LanguageModel`` and ``NGramDraft`` have.

    ``vocab_size`` is V, the number of logits of a row, ``max_length`` the most tokens that it reads, if any.
    """

    name: str
    vocab_size: int
    max_length: int | None
    tokenizer: Any

    def logits(self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None) -> np.ndarray:
        """Logits (T, V) of the next token after each prefix, or after those of ``rows`` alone."""
        ...

    def describe(self) -> dict[str, Any]:
        """Name, revision, backend and tokenizer."""
        ...


def skip_layers(target: LanguageModel, layers: Collection[int]) -> LanguageModel:
    """Leave out these decoder layers (counted from 0), sharing every weight that stays.

    ValueError for indices that are out of range or repeated, or leave nothing.
    """
    count = target.model.config.get_text_config().num_hidden_layers
    skipped = sorted(layers)
    kept = [index for index in range(count) if index not in skipped]
    if not 0 < len(skipped) < count or len(kept) + len(skipped) != count:
        raise wrong("layers", list(layers), f"1 to {count - 1} different ones of [0, {count})")
    model = structural_copy(target.model)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    stacks = [module for module in lists if len(module) == count]
    if len(stacks) != 1:
        lists_in = f"{len(stacks)} in {type(model).__name__}"
        raise wrong("target", lists_in, f"one list of {count} decoder layers")
    stack: Any = stacks[0]
    for new_index, index in enumerate(kept):
        stack[new_index] = stack[index]
        # These numbers are indices in key-value caches, which must have no gaps.
        for module in stack[index].modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = new_index
    del stack[len(kept) :]
    config = model.config.get_text_config()
    for key, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(config, key, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)
    spec = "skip:" + ",".join(map(str, skipped))
    return LanguageModel(model, target.tokenizer, spec, target.revision)


class NGramDraft:
    """An n-gram model over the target's tokens as a draft; its logits are log-probabilities.

    ``context`` is the longest run of tokens whose followers in the text itself are counted, see
    :class:`otmd.models.ContextNGram`; 0 counts none.
    """

    def __init__(self, model: NGram, tokenizer: Any, context: int = 0):
        self.model = model
        self.tokenizer = tokenizer
        self.context = context
        self.vocab_size = model.vocab_size
        self.max_length: int | None = None
        self.name = f"ngram:{model.order}" + ("+context" if context else "")

    def logits(self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None) -> np.ndarray:
        """Log-probabilities (T, V), float32, for one sequence; see :meth:`LanguageModel.logits`."""
        asked = range(len(token_ids)) if rows is None else rows
        counted = self.after(())
        read = 0
        probs = {}
        for row in sorted(asked):
            counted.extend(token_ids[read : row + 1])
            probs[row] = counted.probs()
            read = row + 1
        return np.log([probs[row] for row in asked]).astype(np.float32)

    def after(self, tokens: Sequence[int]) -> ContextNGram:
        """The model after a text, whose tokens it counts as well if ``context`` says so."""
        counted = ContextNGram(self.model, self.context)
        counted.extend(tokens)
        return counted

    def describe(self) -> dict[str, Any]:
        """Name, hash of the counts, backend and tokenizer."""
        counted = f", runs of up to {self.context} tokens of the text counted" * bool(self.context)
        backend = f"otmd interpolated n-gram (Witten-Bell){counted}"
        return description(self.name, f"sha256:{self.model.sha256()}", backend, self.tokenizer)


def load_draft(
    spec: str,
    target: LanguageModel,
    corpus: Sequence[Sequence[int]] | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Draft:
    """Build the draft model over the target's tokens that a short text names.

    Parameters
    ----------
    spec : str
        "skip:13,15,17" leaves out these layers of the target. "ngram" or "ngram:ORDER" fits an n-gram model
        (order 3 unless given) on ``corpus``, "ngram:ORDER:FILE" on a text file. With "+context" at the end it
        learns from the text being written too. Anything else names a second model over the same tokens, as
        for ``load_target``.
    target, corpus : LanguageModel, sequence of token sequences
        The target, and what an n-gram model without a file is fitted on.
    device, dtype : str, optional
        For a second model; the device is by default that of the target.

    Raises
    ------
    ValueError
        If ``spec`` is malformed, a file is missing, or the vocabularies differ.
    """
    ngram = check_draft(spec)
    if spec.startswith("skip:"):
        return skip_layers(target, [int(index) for index in spec[5:].split(",")])
    if ngram:
        if ngram["file"] is not None:
            text = Path(ngram["file"]).read_text("utf-8")
            corpus = [target.tokenizer(text, add_special_tokens=False, verbose=False).input_ids]
        if not corpus:
            raise ValueError(f"draft: {spec!r} needs text to be fitted on, as in ngram:3:FILE")
        model = NGram.fit(corpus, target.token_count, int(ngram["order"] or 3))
        return NGramDraft(model, target.tokenizer, LONGEST if ngram["context"] else 0)
    draft = load_target(spec, device or str(target.model.device), dtype)
    common_vocabulary(target, draft)
    return draft


def check_draft(spec: str) -> re.Match[str] | None:
    """The order, file and context of an n-gram model's name, None for another draft; loads no model.

    ValueError for a malformed ``spec`` or one of a missing file.
    """
    ngram = _NGRAM.fullmatch(spec)
    if spec.startswith("skip:"):
        if not re.fullmatch(r"skip:\d+(,\d+)*", spec):
            raise wrong("draft", repr(spec), "skip:LAYER,LAYER,…")
    elif ngram:
        if int(ngram["order"] or 1) < 1:
            raise wrong("draft", repr(spec), "an order of 1 or more")
        if ngram["file"] is not None and not Path(ngram["file"]).is_file():
            raise ValueError(f"draft: there is no file {ngram['file']!r} to fit an n-gram model on")
    elif re.match(r"ngram[:+]", spec):
        expected = "ngram, ngram:ORDER or ngram:ORDER:FILE, and +context after any of them"
        raise wrong("draft", repr(spec), expected)
    elif spec.endswith(".gguf") and not Path(spec).is_file():
        raise ValueError(f"draft: there is no GGUF file {spec!r}")
    return ngram


def common_vocabulary(target: Any, draft: Any) -> tuple[int, dict[str, int]]:
    """Number of tokens of two models, and padding rows of each; ValueError if their token maps differ."""
    ours = target.tokenizer.get_vocab()
    theirs = draft.tokenizer.get_vocab()
    if ours != theirs:
        differing = sorted(t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t))
        examples = ", ".join(
            f"{t!r} is {ours.get(t)} for the target and {theirs.get(t)} for the draft" for t in differing[:3]
        )
        raise ValueError(
            f"draft: its vocabulary is not the target's. {len(differing)} tokens differ between "
            f"{target.name} ({len(ours)}) and {draft.name} ({len(theirs)}): {examples}"
        )
    size = max(ours.values()) + 1
    padding = {"target": target.vocab_size - size, "draft": draft.vocab_size - size}
    for role, rows in padding.items():
        if rows < 0:
            raise ValueError(f"{role}: its tokenizer has {size} tokens, its logits only {size + rows} rows")
    return size, padding
