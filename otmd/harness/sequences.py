"""From prompts to token sequences, and which of their positions are looked at."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otmd.harness.models import LanguageModel
from otmd.harness.prompts import Prompt


@dataclass(frozen=True)
class RunSettings:
    """The settings of :func:`otmd.harness.collect`, checked; see there."""

    positions_per_prompt: int
    mode: str
    temperature: float
    max_new_tokens: int
    dtype: str
    seed: int
    batch_size: int

    def __post_init__(self):
        for name in ("positions_per_prompt", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.mode not in {"samples", "text"}:
            raise ValueError(f"mode must be 'samples' or 'text', got {self.mode!r}")
        if self.dtype not in {"float32", "float16"}:
            raise ValueError(f"dtype must be 'float32' or 'float16', got {self.dtype!r}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")


@dataclass(frozen=True)
class TokenSequence:
    """A prompt's tokens followed by those of its answer; ``start`` is where the answer begins."""

    prompt: Prompt
    tokens: list[int]
    start: int


def prompt_tokens(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt.

    Where the tokenizer has a chat template it is put around the prompt, as a user's turn with
    the assistant's to come; a prompt to be continued is taken as it is.
    """
    if prompt.continuation or not tokenizer.chat_template:
        return tokenizer(prompt.text).input_ids
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True
    )
    return tokenizer(text, add_special_tokens=False).input_ids


def answer_tokens(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt's answer, tokenised by itself; ValueError if it has none."""
    if prompt.answer is None:
        raise ValueError(
            f"prompts: {prompt.id!r} ({prompt.domain}) has no answer, which mode='text' needs; "
            "leave it out, or use mode='samples'"
        )
    return tokenizer(prompt.answer, add_special_tokens=False).input_ids


def check_prompts(
    target: LanguageModel, prompts: Sequence[Prompt], max_length: int | None, settings: RunSettings
) -> None:
    """Raise ValueError if a prompt is empty, too long with its answer, or lacks an answer that is needed."""
    for prompt in prompts:
        length = len(prompt_tokens(target.tokenizer, prompt))
        if length == 0:
            raise ValueError(f"prompts: {prompt.id!r} is empty")
        if max_length is not None and length + settings.max_new_tokens > max_length:
            raise ValueError(
                f"prompts: {prompt.id!r} has {length} tokens, which with max_new_tokens="
                f"{settings.max_new_tokens} is more than the {max_length} the models take"
            )
        if settings.mode == "text" and not answer_tokens(target.tokenizer, prompt):
            raise ValueError(f"prompts: the answer of {prompt.id!r} is empty")


def with_answers(
    target: LanguageModel, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[TokenSequence]:
    """Prompts followed by at most ``max_new_tokens`` tokens of their own answers."""
    pairs = [
        (prompt_tokens(target.tokenizer, p), answer_tokens(target.tokenizer, p)) for p in prompts
    ]
    return [
        TokenSequence(prompt, before + after[:max_new_tokens], len(before))
        for prompt, (before, after) in zip(prompts, pairs, strict=True)
    ]


def with_samples(
    target: LanguageModel,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> list[TokenSequence]:
    """Prompts followed by what the target samples, each under a seed of its own."""
    before = [prompt_tokens(target.tokenizer, prompt) for prompt in prompts]
    rngs = [np.random.default_rng([seed, zlib.crc32(prompt.id.encode())]) for prompt in prompts]
    after = target.generate(before, max_new_tokens, temperature, rngs=rngs)
    return [
        TokenSequence(prompt, old + new, len(old))
        for prompt, old, new in zip(prompts, before, after, strict=True)
    ]


def chosen_positions(sequence: TokenSequence, count: int) -> list[int]:
    """Positions of the answer, spread evenly: the middles of ``count`` equal parts, or all if fewer.

    Position t stands for the law of token t given all tokens before it.
    """
    length = len(sequence.tokens) - sequence.start
    if length <= count:
        return list(range(sequence.start, len(sequence.tokens)))
    return [sequence.start + (2 * i + 1) * length // (2 * count) for i in range(count)]
