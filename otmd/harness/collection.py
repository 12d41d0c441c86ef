"""Run target and draft over prompts and store their raw logits, resumably."""

import json
from collections.abc import Sequence
from pathlib import Path

from otmd.harness.dataset import Dataset, open_dataset
from otmd.harness.drafts import Draft, load_draft
from otmd.harness.files import make_folder, remove_leftovers, write_atomically
from otmd.harness.loading import load_target
from otmd.harness.lock import folder_lock
from otmd.harness.manifest import write_manifest
from otmd.harness.models import LanguageModel
from otmd.harness.prompts import Prompt, check_unique
from otmd.harness.run_description import check_same_settings, describe_run, held_out_corpus
from otmd.harness.sequences import check_prompts
from otmd.harness.settings import RunSettings
from otmd.harness.shard_run import Run, collect_shards


def collect(
    target: str | LanguageModel,
    draft: str | Draft,
    prompts: Sequence[Prompt],
    folder: str | Path,
    *,
    positions_per_prompt: int = 6,
    mode: str = "samples",
    temperature: float = 1.0,
    max_new_tokens: int = 32,
    dtype: str = "float32",
    seed: int = 0,
    batch_size: int = 8,
    device: str | None = None,
    model_dtype: str | None = None,
    progress: bool = True,
) -> Dataset:
    """Store the next-token logits of two models at chosen positions of the prompts' answers.

    One shard is written for each batch of prompts. A run that was interrupted goes on where it
    stopped when it is called again in the same folder; a shard that is torn or altered is made
    anew. On a finished folder nothing is computed.

    Parameters
    ----------
    target : str or LanguageModel
        A model, or its name as ``load_target`` takes it ("default" needs no hub).
    draft : str or Draft
        A draft, or its name as ``load_draft`` takes it ("skip:13,15,17"). "ngram" without a file
        is fitted on those built-in prompts and their answers that are not among ``prompts``.
    prompts : sequence of Prompt
        What is asked; ids are unique.
    folder : str or Path
        Where the data set goes; created where it is missing.
    positions_per_prompt : int
        How many positions of each answer are stored, spread evenly over it.
    mode : {"samples", "text"}
        Positions on what the target samples itself, or on the prompts' own answers.
    temperature : float
        Of that sampling; 0 is greedy. The logits stored are raw in any case.
    max_new_tokens : int
        How long an answer may be; longer ones are cut.
    dtype : {"float32", "float16"}
        What the logits are stored in.
    seed : int
        Of the sampling.
    batch_size : int
        Prompts sampled from together, and stored in one shard.
    device, model_dtype : str, optional
        For models that are given by name; see ``load_target``.
    progress : bool
        Show a bar.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        If an argument is out of range, the folder was begun with other settings, the two
        vocabularies differ, or a prompt with its answer is too long for a model.
    HarnessError
        If a model gives logits that are not numbers.
    FolderLockedError
        If another process is collecting into the folder.
    OSError
        If the disk is full or the folder cannot be written to; what was finished is kept.
    """
    settings = RunSettings(
        positions_per_prompt, mode, temperature, max_new_tokens, dtype, seed, batch_size
    )
    prompts = list(prompts)
    if not prompts:
        raise ValueError("prompts: wanted at least one")
    check_unique(prompts)
    if isinstance(target, str):
        target = load_target(target, device, model_dtype, progress=progress)
    if isinstance(draft, str):
        corpus = held_out_corpus(draft, target, prompts, progress)
        draft = load_draft(draft, target, corpus, device, model_dtype)
    folder = make_folder(Path(folder).absolute())
    metadata = describe_run(target, draft, prompts, settings)
    lengths = [model.max_length for model in (target, draft) if model.max_length is not None]
    check_prompts(target, prompts, min(lengths, default=None), settings)
    run = Run(target, draft, folder, settings, metadata["vocab_size"])
    with folder_lock(folder):
        check_same_settings(folder, metadata)
        remove_leftovers(folder)
        write_atomically(folder / "collect.json", json.dumps(metadata, indent=1).encode() + b"\n")
        shards = collect_shards(run, prompts, progress)
        write_manifest(folder, shards, metadata)
    return open_dataset(folder, verify=False)
