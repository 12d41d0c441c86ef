"""What a collection run is made with, and whether a folder was begun in the same way."""

import hashlib
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .drafts import Draft, common_vocabulary
from .models import LanguageModel
from .prompts import Prompt, load_prompts
from .sequences import prompt_tokens

FORMAT = 1


@dataclass(frozen=True)
class RunSettings:
    """The numbers that ``collect`` takes; see there. Checked when made."""

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


def describe_run(
    target: LanguageModel, draft: Draft, prompts: Sequence[Prompt], settings: RunSettings
) -> dict[str, Any]:
    """Everything that decides what a run stores, ready for JSON.

    Warns where padding rows are cut from a model's logits, and names them.
    """
    vocab_size, padding = common_vocabulary(target, draft)
    for role, rows in padding.items():
        if rows:
            warnings.warn(
                f"{role}: the last {rows} rows of its logits stand for no token of its tokenizer "
                f"(padding); rows {vocab_size} to {vocab_size + rows - 1} are cut",
                stacklevel=3,
            )
    texts = json.dumps([asdict(prompt) for prompt in prompts]).encode()
    return {
        "format": FORMAT,
        "target": target.describe(),
        "draft": draft.describe(),
        "vocab_size": vocab_size,
        "padding_rows_cut": padding,
        "prompts": {"count": len(prompts), "sha256": hashlib.sha256(texts).hexdigest()},
        "chat_template": bool(target.tokenizer.chat_template),
        **asdict(settings),
    }


def check_same_settings(folder: Path, metadata: dict[str, Any]) -> None:
    """Raise ValueError where the folder was begun with other settings, naming them."""
    path = folder / "collect.json"
    if not path.is_file():
        return
    begun = _flat(json.loads(path.read_text("utf-8")))
    asked = _flat(metadata)
    differing = [
        f"{name} was {begun.get(name)!r}, now {asked.get(name)!r}"
        for name in sorted(begun.keys() | asked.keys())
        if begun.get(name) != asked.get(name)
    ]
    if differing:
        raise ValueError(
            f"folder: {folder} was begun with other settings ({'; '.join(differing)}); "
            "use the same or another folder"
        )


def held_out_corpus(
    spec: str, target: LanguageModel, prompts: Sequence[Prompt], progress: bool
) -> list[list[int]] | None:
    """Tokens of the built-in prompts and answers that are not among ``prompts``.

    None where the draft is no n-gram model that wants a corpus.
    """
    if not re.fullmatch(r"ngram(:\d+)?", spec):
        return None
    used = {prompt.text for prompt in prompts}
    others = [p for p in load_prompts(per_domain=None, progress=progress) if p.text not in used]
    tokenizer = target.tokenizer
    return [
        prompt_tokens(tokenizer, prompt)
        + tokenizer(prompt.answer or "", add_special_tokens=False).input_ids
        for prompt in others
    ]


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
