"""Drafts that propose only some of the target's tokens: a reduced draft vocabulary, or another tokenizer.

A reduced vocabulary spares most of the draft's output layer: FR-Spec keeps the most frequent tokens (Zhao et
al. 2025, arXiv 2502.14856), EAGLE-3 has a table of them (Li et al. 2025, arXiv 2503.01840). A draft with
another tokenizer proposes the tokens of both vocabularies: token-level intersection (Timor et al. 2025, arXiv
2502.05202). In both cases draft_probs are the draft's own, restricted to these tokens and renormalised. The
verifier is given these probabilities, so it stays lossless.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from otmd.models.language_models import LanguageModel
from otmd.probabilities import IntArray, validate_count, wrong, wrong_type

if TYPE_CHECKING:
    from otmd.models.draft_models import Draft

# The characters that stand for bytes in byte-level BPE (GPT-2): printable ones for themselves.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE}
_BYTE_OF |= {chr(256 + i): byte for i, byte in enumerate(set(range(256)) - set(_PRINTABLE))}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class RestrictedDraft:
    """A draft that proposes only some tokens; the logits of all others are −∞.

    Parameters
    ----------
    inner : Draft
        The draft whose distributions are restricted and renormalised.
    tokens : sequence of int
        The tokens that it may propose, without repetition, such as EAGLE-3's table, or
        those of ``most_frequent``.

    Raises
    ------
    ValueError
        If there are no tokens, or tokens that repeat or are not in the vocabulary; TypeError unless they are
        integers.
    """

    def __init__(self, inner: Draft, tokens: Sequence[int] | IntArray) -> None:
        self.inner = inner
        self.tokenizer = inner.tokenizer
        self.vocab_size = max(self.tokenizer.get_vocab().values()) + 1
        self.tokens = np.asarray(tokens)
        if self.tokens.ndim != 1 or (self.tokens.size and self.tokens.dtype.kind not in "iu"):
            raise wrong_type("tokens", tokens, "token ids, shape (K,)")
        self.tokens = self.tokens.astype(np.int64)
        self.columns = self.tokens
        self.max_length = inner.max_length
        self.name = f"{inner.name}+vocab:{self.tokens.size}"
        distinct = np.unique(self.tokens)
        valid = distinct.size and distinct[0] >= 0 and distinct[-1] < self.vocab_size
        if not valid or distinct.size < self.tokens.size:
            expected = f"different ones in [0, {self.vocab_size}), at least one"
            raise wrong("tokens", f"{self.tokens.size} of which {distinct.size} differ", expected)

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that the inner draft reads for a text of the target's tokens."""
        return list(tokens)

    def restrict(self, logits: np.ndarray) -> np.ndarray:
        """Logits (T, V) over the target's tokens from those of the inner draft."""
        restricted = np.full((len(logits), self.vocab_size), -np.inf, np.float32)
        restricted[:, self.tokens] = logits[:, self.columns]
        return restricted

    def logits(
        self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None
    ) -> np.ndarray:
        """Logits (T, V), float32, for one sequence; see :meth:`LanguageModel.logits`."""
        return self.restrict(self.inner.logits(token_ids, rows))

    def describe(self) -> dict[str, Any]:
        """Description of the inner draft, with the number and a hash of the tokens that are proposed."""
        digest = hashlib.sha256(self.tokens.astype("<i8").tobytes()).hexdigest()
        proposed = {"count": self.tokens.size, "sha256": digest}
        return self.inner.describe() | {"name": self.name, "proposed_tokens": proposed}


class TranslatedDraft(RestrictedDraft):
    """A language model with another tokenizer as a draft: it proposes the tokens that both vocabularies hold.

    It reads the text so far in its own tokens: the target's are decoded, and the text is encoded again. Its
    mass on tokens that are not shared is lost. Where the target's tokens end within a word, the draft reads
    that part of the word in tokens that it would not use for the whole word, and is less accurate.

    Parameters
    ----------
    inner : LanguageModel
        The draft, with a tokenizer of its own.
    tokenizer : transformers.PreTrainedTokenizerBase
        The target's tokenizer.

    Raises
    ------
    ValueError
        If no tokens are shared.
    """

    inner: LanguageModel

    def __init__(self, inner: LanguageModel, tokenizer: Any) -> None:
        shared = shared_tokens(tokenizer, inner.tokenizer)
        if not shared:
            raise wrong("draft", f"no token of the target's in {inner.name}", "shared tokens")
        self.tokenizer = tokenizer
        self.inner = inner
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        self.tokens = np.array(list(shared))
        self.columns = np.array(list(shared.values()))
        self.max_length = inner.max_length
        self.name = inner.name
        # Special tokens of the target that mean nothing to the draft.
        vocab = inner.tokenizer.get_vocab()
        specials = tokenizer.added_tokens_decoder.items()
        self._unread = {i for i, token in specials if token.special and token.content not in vocab}
        bos = inner.tokenizer.bos_token_id
        begins = bos is not None and inner.tokenizer("").input_ids[:1] == [bos]
        self._beginning = [bos] if begins else []

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The draft's tokens for a text in the target's; ValueError for none, or more than ``max_length``."""
        text = self.tokenizer.decode(
            [token for token in tokens if token not in self._unread],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        read = self.inner.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        if read[: len(self._beginning)] != self._beginning:
            read = self._beginning + read
        longest = self.inner.max_length or math.inf
        if not 0 < len(read) <= longest:
            expected = f"1 to {longest} that {self.inner.name} reads"
            raise wrong("tokens", f"a text of {len(read)} tokens of the draft", expected)
        return read

    def logits(
        self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None
    ) -> np.ndarray:
        """Logits (T, V), float32, for one sequence; see :meth:`LanguageModel.logits`."""
        text = [int(token) for token in token_ids]
        asked = range(len(text)) if rows is None else rows
        return self.restrict(self.inner.logits_after([self.read(text[: t + 1]) for t in asked]))


def most_frequent(corpus: Sequence[Sequence[int]], count: int, vocab_size: int) -> IntArray:
    """The most frequent tokens of a corpus.

    Equally frequent tokens, and those that do not occur, come by their ids: byte-pair encoding numbers
    its merges from frequent to rare.

    Parameters
    ----------
    corpus : sequence of token sequences
        Token ids in [0, ``vocab_size``).
    count, vocab_size : int
        The number of tokens to choose, and to choose from.

    Returns
    -------
    ndarray of int64, shape (count,)
        Most frequent first.

    Raises
    ------
    ValueError
        If ``count`` is not in [1, ``vocab_size``].

    Examples
    --------
    >>> from otmd.models.draft_vocabularies import most_frequent
    >>> most_frequent([[4, 2, 4], [0, 2, 4]], 4, vocab_size=6).tolist()
    [4, 2, 0, 1]
    """
    if validate_count("vocab", count) > vocab_size:
        raise wrong("vocab", count, f"1 to {vocab_size} tokens")
    tokens = np.concatenate([*corpus, np.empty(0)]).astype(np.int64)
    return np.argsort(-np.bincount(tokens, minlength=vocab_size), kind="stable")[:count]


def shared_tokens(tokenizer: Any, draft_tokenizer: Any) -> dict[int, int]:
    """Map the ids of shared tokens to the draft's ids of them.

    Tokens are shared if they stand for the same bytes. Special tokens stand for none; the tokens that end a
    text are shared with each other.
    """
    ours = _ids_by_bytes(tokenizer)
    theirs = _ids_by_bytes(draft_tokenizer)
    shared = {i: theirs[token] for token, i in ours.items() if token in theirs}
    if shared and None not in (tokenizer.eos_token_id, draft_tokenizer.eos_token_id):
        shared[tokenizer.eos_token_id] = draft_tokenizer.eos_token_id
    return shared


def _ids_by_bytes(tokenizer: Any) -> dict[bytes, int]:
    """The id of each token by its bytes, without special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
    added = tokenizer.added_tokens_decoder
    ids: dict[bytes, int] = {}
    bytes_alone: dict[bytes, int] = {}
    for token, i in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if i in added:
            if not added[i].special:
                ids.setdefault(added[i].content.encode(), i)
        elif byte_level and _BYTE_OF.keys() >= set(token):
            ids.setdefault(bytes(_BYTE_OF[character] for character in token), i)
        elif match := _BYTE_TOKEN.fullmatch(token):
            bytes_alone[bytes.fromhex(match[1])] = i
        else:
            ids.setdefault(token.replace("▁", " ").encode(), i)
    # SentencePiece writes a character in bytes only where it has no token of its own.
    return bytes_alone | ids
