"""Loading a language model: from a hub, a folder, a GGUF file, or the default one."""

import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from otmd.harness.models import LanguageModel
from otmd.harness.progress import progress_bar
from otmd.harness.wheels import DEFAULT_MODEL, cached, fetch
from otmd.storage.errors import one_line
from otmd.storage.files import sha256_of


def load_target(
    name: str = "default",
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    progress: bool = True,
) -> LanguageModel:
    """Load a language model.

    Parameters
    ----------
    name : str
        "default" (SmolLM2-135M-Instruct, fetched into the cache), a ``.gguf`` file, a local
        folder, or a name on the hub.
    device : str, optional
        As torch calls it; by default "cuda" where there is one, else "cpu".
    dtype : str, optional
        As torch calls it ("float32", "bfloat16", …), or "auto" for that of the checkpoint; by
        default "float32" on a CPU and "auto" elsewhere.
    revision : str, optional
        Branch, tag or commit on the hub.
    progress : bool
        Show a bar while fetching or converting.

    Raises
    ------
    ValueError
        If no such model is found, or the device or dtype is none.
    FetchError
        If the default model cannot be fetched.
    """
    import torch

    device = _checked_device(device)
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"dtype must be 'auto' or a torch dtype such as 'float32', got {dtype!r}")
    model, tokenizer, found = _find(name, dtype, revision, progress)
    shown = f"{DEFAULT_MODEL.name} {DEFAULT_MODEL.version}" if name == "default" else name
    return LanguageModel(model.to(device), tokenizer, shown, found)


def _find(name: str, dtype: str, revision: str | None, progress: bool) -> tuple[Any, Any, str]:
    local = name == "default" or name.endswith(".gguf") or Path(name).is_dir()
    if local and revision is not None:
        raise ValueError(f"revision is for names on the hub, got {revision!r} for {name!r}")
    if Path(name).is_dir():
        found = f"sha256:{_weights_hash(Path(name))}"
        return *_load(name, name, dtype), found
    if not local:
        commit = _commit_of(name, revision)
        return *_load(name, name, dtype, revision=commit), f"commit:{commit}"
    gguf = fetch(DEFAULT_MODEL, progress) if name == "default" else Path(name)
    if not gguf.is_file():
        raise ValueError(f"there is no GGUF file {name!r}")
    # Converted once: later loads take a fraction of a second.
    folder = cached("models", sha256_of(gguf), lambda fresh: _convert(gguf, fresh, progress))
    return *_load(str(folder), name, dtype), f"sha256:{folder.name}"


def _checked_device(device: str | None) -> str:
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(
            f"device must be one torch knows, such as 'cpu', got {device!r}"
        ) from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch sees no CUDA device here")
    return device


def _load(source: str, name: str, dtype: str, **options: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from error
    return model, tokenizer


def _commit_of(name: str, revision: str | None) -> str:
    # Branches move: what is loaded, and what is recorded, is the commit one stands for now.
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(name, "config.json", revision=revision or "main")
    except (OSError, ValueError) as error:
        raise _no_model(name, error) from error
    match = re.search("/snapshots/([0-9a-f]+)/", Path(str(path)).as_posix())
    if match is None:
        raise ValueError(f"cannot tell the commit of {name!r} from its place {path}")
    return match[1]


def _no_model(name: str, error: Exception) -> ValueError:
    return ValueError(
        f"no model {name!r}: it is neither 'default', nor a GGUF file, nor a folder with a model "
        f"and its tokenizer, nor to be had from the hub ({one_line(error)[:300]})"
    )


def _weights_hash(folder: Path) -> str:
    files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".bin"})
    if not files:
        raise ValueError(f"{folder}: no weights (.safetensors or .bin) in this folder")
    if len(files) == 1:
        return sha256_of(files[0])
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


def _convert(path: Path, folder: Path, progress: bool) -> None:
    """Write the float32 weights and the tokenizer of a GGUF file into a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    with progress_bar(f"Converting {path.name}, once", 3, progress) as update:
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
            raise ValueError(
                f"{path}: transformers cannot read this GGUF file ({error})"
            ) from error
        _split_digits_as_in(path, tokenizer)
        update(2, "saving")
        # A model that came out of a quantised file refuses to be saved: its configuration still says
        # quantised. The same weights under a configuration that never was can be saved.
        left_out = {"quantization_config", "_name_or_path", "model_type"}
        settings = {k: v for k, v in loaded.config.to_dict().items() if k not in left_out}
        model = type(loaded)(type(loaded.config)(**settings))
        model.load_state_dict(loaded.state_dict())
        with quiet_transformers():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        update(3, "")


def _split_digits_as_in(path: Path, tokenizer: Any) -> None:
    """Give a tokenizer converted from a GGUF file back the splitting of digits that conversion loses."""
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    pre = GGUFReader(os.fspath(path)).fields.get("tokenizer.ggml.pre")
    if pre is not None and pre.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and messages below an error inside the block."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
