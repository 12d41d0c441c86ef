"""The description of a run, and whether a folder was begun in the same way."""

import hashlib
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from otmd.harness.drafts import Draft, common_vocabulary
from otmd.harness.models import LanguageModel
from otmd.harness.prompts import Prompt, load_prompts
from otmd.harness.sequences import prompt_tokens
from otmd.harness.settings import RunSettings

FORMAT = 1


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
        "otmd": version("otmd"),
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
    try:
        begun = _flat(json.loads(path.read_text("utf-8")))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"folder: {path} was not written by collect ({error})") from error
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
    if not re.fullmatch(r"ngram(:\d+)?(\+context)?", spec):
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
