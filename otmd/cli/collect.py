"""``otmd collect``: run two models over prompts and store their logits."""

import json
from pathlib import Path
from typing import Literal

from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveInt

from otmd.cli.options import Json, split

EXAMPLES = """Examples:

  otmd collect runs/mine --draft skip:13,15,17 --per-domain 8

  otmd collect runs/qwen --target Qwen/Qwen3-1.7B --draft Qwen/Qwen3-0.6B --prompts code,chat

  otmd collect runs/own --prompts questions.jsonl --mode text --draft ngram"""


def collect(
    folder: Path,
    *,
    target: str = "default",
    draft: str = "skip:13,15,17",
    prompts: str = "code,maths,chat,prose",
    per_domain: PositiveInt = 16,
    positions: PositiveInt = 6,
    mode: Literal["samples", "text"] = "samples",
    temperature: NonNegativeFloat = 1.0,
    max_new_tokens: PositiveInt = 32,
    dtype: Literal["float32", "float16"] = "float32",
    seed: NonNegativeInt = 0,
    batch_size: PositiveInt = 8,
    device: str | None = None,
    model_dtype: str | None = None,
    overwrite: bool = False,
    json_output: Json = False,
    quiet: bool = False,
) -> None:
    """Run target and draft over prompts and store their raw next-token logits.

    An interrupted run goes on where it stopped when the same command is given again.

    Parameters
    ----------
    folder : Path
        Where the dataset goes.
    target : str
        The target model: default (SmolLM2-135M-Instruct, fetched once), a folder, a .gguf file, or
        a name on the hub.
    draft : str
        The draft: skip:13,15,17 (the target without these layers), ngram, ngram:ORDER:FILE, or a
        second model, named like the target.
    prompts : str
        Comma-separated: code, maths, chat, prose, or .jsonl and .txt files of your own.
    per_domain : int
        How many prompts from each of them.
    positions : int
        How many positions of each answer are stored.
    mode : str
        samples: on what the target samples itself; text: on the prompts' own answers.
    temperature : float
        Of that sampling. The logits that are stored are raw in any case.
    max_new_tokens : int
        How long an answer may be.
    dtype : str
        float32 or float16, what the logits are stored in.
    seed : int
        Of the choice of prompts and of the sampling.
    batch_size : int
        How many prompts are sampled from together.
    device : str
        As torch calls it; cuda where there is one.
    model_dtype : str
        As torch calls it.
    overwrite : bool
        Replace a dataset with other settings that the folder holds.
    json_output : bool
        Print a JSON object instead of a line.
    quiet : bool
        Show no progress bar.
    """
    from otmd.harness import collect as run
    from otmd.harness import load_prompts

    show = not (quiet or json_output)
    try:
        chosen = load_prompts(split("--prompts", prompts), per_domain, seed, progress=show)
        dataset = run(
            target,
            draft,
            chosen,
            folder,
            positions_per_prompt=positions,
            mode=mode,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            dtype=dtype,
            seed=seed,
            batch_size=batch_size,
            device=device,
            model_dtype=model_dtype,
            overwrite=overwrite,
            progress=show,
        )
    except KeyboardInterrupt as stop:
        stop.add_note(
            f"What was finished is kept in {folder}; the same command goes on from there."
        )
        raise
    found = {
        "dataset": str(folder),
        "positions": len(dataset),
        "prompts": len(chosen),
        "vocab_size": dataset.vocab_size,
    }
    if json_output:
        print(json.dumps(found))
    else:
        print(
            f"{folder}: {len(dataset)} positions of {len(chosen)} prompts, V = "
            f"{dataset.vocab_size}. Next: otmd measure {folder}"
        )
