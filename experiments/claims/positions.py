"""Positions of texts that the studies of laws and of lossy rules read, collected under ``runs``.

Of each prompt there is a text for each temperature, which the target sampled at that temperature, with the
logits of the target and of its drafts at a few positions of each. The target is SmolLM2-135M-Instruct
(``LAYERS``), or a larger model with a smaller one as its draft (``SIZES``), whose files must lie in
``runs/models``.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.texts import after_prompt, load_models, sample_paths
from otmd import Processing
from otmd.models import Prompt, load_prompts
from otmd.storage.files import write_atomically

DOMAINS = ("code", "maths", "chat", "prose")
TEMPERATURES = (0.3, 0.6, 0.8, 1.0, 1.5)
PER_DOMAIN = 16
PER_TEXT = 3
LENGTH = 24


class Models(NamedTuple):
    """A target and its drafts by name, as ``otmd`` loads them, and the folder of the texts' logits."""

    target: str
    drafts: dict[str, str]
    texts: Path


LAYERS = Models(
    "default",
    {name: name for name in ("skip:15", "skip:13,15,17", "skip:27,28,29", "ngram:3+context")},
    Path("runs/draft_laws_texts"),
)
SIZES = Models(
    "runs/models/qwen2.5-coder-1.5b-instruct.gguf",
    {"Qwen2.5-Coder 0.5B": "runs/models/qwen2.5-coder-0.5b-instruct.gguf"},
    Path("runs/two_sizes_texts"),
)
MODELS = {"layers": LAYERS, "sizes": SIZES}


def chosen_prompts() -> list[Prompt]:
    """The prompts, in the order of the tasks."""
    return load_prompts(list(DOMAINS), PER_DOMAIN, 0, progress=False)


def text_file(prompt: Prompt, models: Models = LAYERS) -> Path:
    """The file of the logits of a prompt's texts."""
    return models.texts / f"{hashlib.sha256(prompt.id.encode()).hexdigest()[:16]}.npz"


def stored(prompt: Prompt, models: Models = LAYERS) -> dict[str, np.ndarray]:
    """The ``temperature`` of each position of a prompt's texts, and the logits of each model there."""
    with np.load(text_file(prompt, models)) as arrays:
        return dict(arrays)


def positions(prompt: int, draft: str, temperature: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Target and draft distributions at the positions of a prompt's text of this temperature."""
    step = Processing(temperature)
    arrays = stored(chosen_prompts()[prompt])
    for at in np.flatnonzero(arrays["temperature"] == temperature):
        yield step(arrays["target"][at]), step(arrays[draft][at])


def texts_of(tasks: Sequence[dict[str, Any]]) -> str:
    """Collect the missing texts of these tasks' prompts, of all if they name none; identify all texts."""
    prompts = chosen_prompts()
    [models] = {task.get("pairs", "layers") for task in tasks}
    numbers = dict.fromkeys(task.get("prompt", -1) for task in tasks)
    asked = prompts if -1 in numbers else [prompts[number] for number in numbers]
    return collected(asked, MODELS[models])


def collected(prompts: Sequence[Prompt], models: Models = LAYERS) -> str:
    """Collect the missing texts of the prompts; return a string that identifies all texts."""
    missing = [prompt for prompt in prompts if not text_file(prompt, models).exists()]
    if missing:
        target, loaded = load_models(models.target, models.drafts.values(), chosen_prompts())
        drafts = dict(zip(models.drafts, loaded, strict=True))
        for number, prompt in enumerate(missing, start=1):
            print(f"[{number}/{len(missing)}] collecting texts: {prompt.id}", flush=True)
            write_atomically(text_file(prompt, models), _collect(target, drafts, prompt))
    # All prompts count, so that a sweep over more of them knows what is done.
    ids = [prompt.id for prompt in chosen_prompts()]
    identity = f"{ids}{tuple(models.drafts)}{TEMPERATURES}{PER_TEXT}{LENGTH}"
    return hashlib.sha256(identity.encode()).hexdigest()


def _collect(target: Any, drafts: dict[str, Any], prompt: Prompt) -> bytes:
    """Sample a text at each temperature; return all models' logits at a few of its positions, as .npz."""
    model = after_prompt(target, target, prompt)
    texts = sample_paths(target, model, prompt, LENGTH, TEMPERATURES, 0)
    # The middles of equal parts of the text; all of a text that is too short for that.
    middles = [sorted({(2 * i + 1) * len(text) // (2 * PER_TEXT) for i in range(PER_TEXT)}) for text in texts]
    prefixes = [text[:t] for text, of_text in zip(texts, middles, strict=True) for t in of_text]
    arrays: dict[str, Any] = {"temperature": np.repeat(TEMPERATURES, list(map(len, middles)))}
    for name, draft in {"target": target, **drafts}.items():
        read = model if draft is target else after_prompt(draft, target, prompt)
        logits = np.stack(read.logits(prefixes))[:, : target.token_count]
        arrays[name] = logits.astype(np.float32)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
