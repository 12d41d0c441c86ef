"""GGUF files: converted once to a folder that transformers loads at once."""

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from otmd.harness.files import cache_folder, new_folder, sha256_of
from otmd.harness.progress import progress_bar
from otmd.harness.quiet import quiet_transformers


def converted_gguf(path: Path, progress: bool = True) -> Path:
    """Folder with the float32 weights and the tokenizer of a GGUF file.

    The conversion is done once for a content and kept in the cache under the file's hash, so
    that later loads take a fraction of a second.

    Parameters
    ----------
    path : Path
        A GGUF file of a decoder-only model that transformers can read.

    progress : bool
        Show a bar while converting.

    Returns
    -------
    Path
        A folder for ``from_pretrained``; its name is the file's SHA-256.

    Raises
    ------
    ValueError
        If transformers cannot read the file.
    """
    folder = cache_folder() / "models" / sha256_of(path)
    if not folder.is_dir():
        bar = progress_bar(f"Converting {path.name}, once", 3, progress)
        with new_folder(folder) as fresh, bar as update:
            _convert(path, fresh, update)
    return folder


def _convert(path: Path, folder: Path, update: Callable[[float, str], None]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        # transformers draws a bar of its own here, which cannot be turned off.
        with quiet_transformers(), redirect_stderr(io.StringIO()):
            update(0, "tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **where)
            update(1, "weights")
            loaded = AutoModelForCausalLM.from_pretrained(
                str(path.parent), dtype=torch.float32, **where
            )
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise ValueError(f"{path}: transformers cannot read this GGUF file ({error})") from error
    if _field(path, "tokenizer.ggml.pre") == "smollm":
        split_digits(tokenizer)
    update(2, "saving")
    with quiet_transformers():
        _clean_copy(loaded).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    update(3, "")


def split_digits(tokenizer: Any) -> None:
    """Give a converted tokenizer back the splitting of digits that conversion loses."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def _clean_copy(model: Any) -> Any:
    # A model that came out of a quantised file refuses to be saved: its configuration still says
    # quantised. The same weights under a configuration that never was can be saved.
    settings = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in {"quantization_config", "_name_or_path", "model_type"}
    }
    config = type(model.config)(**settings)
    copy = type(model)(config)
    copy.load_state_dict(model.state_dict())
    return copy


def _field(path: Path, name: str) -> Any:
    from gguf import GGUFReader

    field = GGUFReader(os.fspath(path)).fields.get(name)
    return None if field is None else field.contents()
