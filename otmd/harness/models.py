"""Language models behind one small interface: from a hub, a folder, or a GGUF file."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .catalog import DEFAULT_MODEL
from .files import sha256_of
from .generation import generate_batch
from .gguf_files import converted_gguf
from .quiet import quiet_transformers
from .wheels import fetch


class LanguageModel:
    """A decoder-only transformers model with its tokenizer.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model, on its device.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.
    name : str
        What the user called it.
    revision : str
        ``commit:…`` of the hub, or ``sha256:…`` of the weights.

    Attributes
    ----------
    vocab_size : int
        Rows of the logits matrix, padding rows counted; see ``token_count``.
    token_count : int
        One more than the largest id the tokenizer knows.
    backend : str
        Library versions, device and dtype the numbers come from.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, revision: str):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.token_count = max(tokenizer.get_vocab().values()) + 1
        self.backend = _backend(model)

    def logits(
        self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None
    ) -> np.ndarray:
        """Raw logits of the next token after each prefix.

        Parameters
        ----------
        token_ids : (T,) or (B, T) integers
            One sequence, or several of equal length.
        rows : sequence of int, optional
            Only these rows; row t is the distribution of what follows ``token_ids[: t + 1]``.

        Returns
        -------
        (T, V) or (B, T, V) float32 array
            With ``rows``, T is their number.

        Raises
        ------
        ValueError
            If the ids are empty or outside the vocabulary.
        """
        import torch

        ids = np.asarray(token_ids)
        if ids.ndim not in (1, 2) or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"token_ids must be integers (T,) or (B, T), got shape {ids.shape}")
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ValueError(f"token_ids must lie in [0, {self.vocab_size}), got {ids.max()}")
        wanted = torch.arange(ids.shape[-1]) if rows is None else torch.as_tensor(list(rows))
        inputs = torch.as_tensor(np.atleast_2d(ids), dtype=torch.long, device=self.model.device)
        with torch.inference_mode():
            output = self.model(
                input_ids=inputs, use_cache=False, logits_to_keep=wanted.to(inputs.device)
            )
        logits = output.logits.float().cpu().numpy()
        return logits if ids.ndim == 2 else logits[0]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        temperature: float = 1.0,
        *,
        rngs: Sequence[np.random.Generator],
    ) -> list[list[int]]:
        """Continue each prompt (token ids) as one batch; see ``generation.generate_batch``."""
        if temperature < 0 or max_new_tokens < 1:
            raise ValueError(
                f"wanted temperature >= 0 and max_new_tokens >= 1, got {temperature}, "
                f"{max_new_tokens}"
            )
        if len(rngs) != len(prompts) or not all(len(prompt) for prompt in prompts):
            raise ValueError("wanted one generator for each prompt, and no prompt empty")
        return generate_batch(
            self.model,
            prompts,
            max_new_tokens,
            temperature,
            rngs,
            self.stop_tokens,
            min(self.vocab_size, self.token_count),
        )

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a text, of the model's generation settings and its tokenizer's."""
        named = getattr(self.model.generation_config, "eos_token_id", None)
        ids = named if isinstance(named, list) else [named]
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)

    @property
    def max_length(self) -> int | None:
        """Longest sequence the model takes, where its configuration says so."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def describe(self) -> dict[str, Any]:
        """Name, revision, backend and tokenizer, for the metadata of a data set."""
        return {
            "name": self.name,
            "revision": self.revision,
            "backend": self.backend,
            "tokenizer": describe_tokenizer(self.tokenizer),
        }


def describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Class, size and a hash of the token map."""
    vocab = sorted(tokenizer.get_vocab().items())
    digest = hashlib.sha256(json.dumps(vocab).encode()).hexdigest()
    return {"class": type(tokenizer).__name__, "size": len(vocab), "sha256": digest}


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
        Show a bar while fetching the default model.

    Returns
    -------
    LanguageModel

    Raises
    ------
    ValueError
        If no such model is found, or the device or dtype is none.
    FetchError
        If the default model cannot be fetched.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"dtype must be 'auto' or a torch dtype such as 'float32', got {dtype!r}")
    if name == "default" or name.endswith(".gguf"):
        gguf = fetch(DEFAULT_MODEL, progress)[0] if name == "default" else Path(name)
        if not gguf.is_file():
            raise ValueError(f"target: there is no GGUF file {name!r}")
        folder = converted_gguf(gguf)
        source, fixed = str(folder), f"sha256:{folder.name}"
    elif Path(name).is_dir():
        source, fixed = name, f"sha256:{_weights_hash(Path(name))}"
    else:
        source, fixed = name, None
    model, tokenizer = _load(source, name, dtype, revision)
    commit = getattr(model.config, "_commit_hash", None)
    return LanguageModel(model.to(device), tokenizer, name, fixed or f"commit:{commit}")


def _load(source: str, name: str, dtype: str, revision: str | None) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {} if revision is None else {"revision": revision}
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
    except OSError as error:
        raise ValueError(
            f"no model {name!r}: it is neither 'default', nor a GGUF file, nor a folder with a "
            f"model and its tokenizer, nor to be had from the hub ({str(error).splitlines()[0]})"
        ) from error
    return model, tokenizer


def _weights_hash(folder: Path) -> str:
    files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".bin"})
    if not files:
        raise ValueError(f"{folder}: no weights (.safetensors or .bin) in this folder")
    if len(files) == 1:
        return sha256_of(files[0])
    return hashlib.sha256("".join(map(sha256_of, files)).encode()).hexdigest()


def _backend(model: Any) -> str:
    import torch
    import transformers

    dtype = str(model.dtype).removeprefix("torch.")
    return (
        f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{model.device.type}, {dtype}"
    )
