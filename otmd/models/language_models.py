"""Language models: loading, logits after each prefix, and sampled continuations."""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from huggingface_hub.utils import logging as hub_logging
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import hub, logging

from otmd.laws.drafts import draw_tokens
from otmd.models.progress import progress_bar
from otmd.models.wheels import DEFAULT_MODEL, cached, fetch
from otmd.probabilities import Processing, validate_count, wrong
from otmd.storage.files import one_line, sha256_of

# A model's files are data: no Python that they hold or name is run, whatever standard input says.
_AS_DATA = {"trust_remote_code": False}
# No pickles; and a configuration may name an attention kernel of the hub, which is code.
_SAFE_MODEL = {"use_safetensors": True, "weights_only": True, "attn_implementation": None}


class LanguageModel:
    """A decoder-only transformers model, on its device, with its tokenizer.

    Parameters
    ----------
    model, tokenizer : transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase
        A model without an output layer is a ValueError.
    name, revision : str
        What the user called it, and ``commit:…`` of the hub or ``sha256:…`` of the weights.

    Attributes
    ----------
    vocab_size, token_count : int
        Logits at each position, padding included; one more than the largest id that the tokenizer knows.
    max_length : int or None
        Longest sequence the model takes, where its configuration says so.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, revision: str):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.revision = revision
        head = model.get_output_embeddings()
        if head is None:
            raise ValueError(f"{name}: {type(model).__name__} has no output layer")
        self.vocab_size = int(head.weight.shape[0])
        self.token_count = max(tokenizer.get_vocab().values()) + 1
        self.max_length = getattr(model.config, "max_position_embeddings", None)
        self.backend = (
            f"transformers {version('transformers')}, torch {torch.__version__}, "
            f"{model.device.type}, {str(model.dtype).removeprefix('torch.')}"
        )

    def logits(self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None) -> np.ndarray:
        """Raw logits (T, V), float32, of the next token after each prefix of ``token_ids`` (T,).

        These are in [0, ``vocab_size``), at least one, else ValueError. With ``rows``, only these rows are
        computed: row t is for the token after ``token_ids[: t + 1]``.
        """
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise wrong("token_ids", f"{ids.dtype} of shape {ids.shape}", "integers (T,)")
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            ends = f"ids from {ids.min()} to {ids.max()}"
            raise wrong("token_ids", ends, f"ids in [0, {self.vocab_size})")
        keep = torch.arange(ids.size) if rows is None else torch.as_tensor(list(rows))
        inputs = torch.as_tensor(ids[None], dtype=torch.long, device=self.model.device)
        return forward_logits(self.model, keep.to(inputs.device), input_ids=inputs)[0]

    def logits_after(self, prefixes: Sequence[Sequence[int]]) -> np.ndarray:
        """Raw logits (len(prefixes), V) of the next token after each prefix, float32.

        A prefix that begins another one costs nothing: one pass over the longer one gives both. It is the
        oracle that :func:`otmd.audit.texts` takes.
        """
        ordered = sorted(set(map(tuple, prefixes)))
        if not (ordered and ordered[0]):
            raise wrong("prefixes", "none, or an empty one", "prefixes of at least one token")
        rows: dict[tuple[int, ...], np.ndarray] = {}
        # In this order a prefix that begins any other one begins the next one.
        shared: list[tuple[int, ...]] = []
        for prefix, following in zip(ordered, [*ordered[1:], ()], strict=True):
            shared.append(prefix)
            if following[: len(prefix)] != prefix:
                of_text = self.logits(prefix, rows=[len(x) - 1 for x in shared])
                rows |= dict(zip(shared, of_text, strict=True))
                shared = []
        return np.stack([rows[tuple(prefix)] for prefix in prefixes])

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        temperature: float = 1.0,
        *,
        rngs: Sequence[np.random.Generator],
        rows: Sequence[list[np.ndarray]] | None = None,
    ) -> list[list[int]]:
        """Continue prompts as one batch: the new tokens of each.

        A text ends with its first stop token, or after ``max_new_tokens``. Each prompt has a generator, so
        that its tokens do not depend on the other prompts, except by rounding. Of ``rows``, each list gets
        the raw logits (V,) of each new token of its prompt, without padding.
        """
        validate_count("max_new_tokens", max_new_tokens)
        Processing(temperature)  # refuses a bad temperature
        if len(rngs) != len(prompts) or not all(len(prompt) for prompt in prompts):
            raise ValueError("expected one generator for each prompt, and no prompt empty")
        tokens = [torch.tensor(prompt, device=self.model.device) for prompt in prompts]
        left = {"batch_first": True, "padding_side": "left"}
        inputs = pad_sequence(tokens, **left)
        mask = pad_sequence([torch.ones_like(row) for row in tokens], **left)
        indices = (mask.cumsum(-1) - 1).clamp(min=0)
        new: list[list[int]] = [[] for _ in prompts]
        running = [*range(len(prompts))]
        cache = DynamicCache(config=self.model.config)
        for _ in range(max_new_tokens):
            output = forward_logits(
                self.model,
                torch.tensor([inputs.shape[1] - 1], device=inputs.device),
                position_ids=indices,
                input_ids=inputs,
                attention_mask=mask,
                cache=cache,
            )
            logits = output[:, 0, : self.token_count]
            for row in running:
                new[row].append(sample_token(logits[row], temperature, rngs[row]))
                if rows is not None:
                    rows[row].append(logits[row])
            running = [row for row in running if new[row][-1] not in self.stop_tokens]
            if not running:
                break
            inputs = torch.tensor([[text[-1]] for text in new], device=inputs.device)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            indices = indices[:, -1:] + 1
        return new

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a text, according to the model's generation settings and its tokenizer."""
        named = getattr(self.model.generation_config, "eos_token_id", None)
        ids = named if isinstance(named, list) else [named]
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)

    def describe(self) -> dict[str, Any]:
        """Name, revision, backend and tokenizer."""
        return description(self.name, self.revision, self.backend, self.tokenizer)


def description(name: str, revision: str, backend: str, tokenizer: Any) -> dict[str, Any]:
    """A model's description for JSON, with the class, the size and a hash of its token map."""
    vocab = sorted(tokenizer.get_vocab().items())
    digest = hashlib.sha256(json.dumps(vocab).encode()).hexdigest()
    about = {"class": type(tokenizer).__name__, "size": len(vocab), "sha256": digest}
    return {"name": name, "revision": revision, "backend": backend, "tokenizer": about}


@torch.inference_mode()
def forward_logits(model: Any, keep: Any, cache: Any = None, **inputs: Any) -> np.ndarray:
    """Compute a model's logits (B, K, V), float32, at the K positions ``keep`` (an integer tensor) alone.

    ``position_ids`` (B, T) go to models that take them; others count positions by the attention mask.
    """
    takes = inspect.signature(model.forward).parameters
    if "position_ids" not in takes:
        inputs.pop("position_ids", None)
    inputs["use_cache"] = cache is not None
    if cache is not None:
        # transformers calls it ``cache`` from 5.24 on, and ``past_key_values`` before.
        inputs["cache" if "cache" in takes else "past_key_values"] = cache
    if "logits_to_keep" in takes:
        # The output layer, the largest of all, is then computed at these positions only.
        logits = model(**inputs, logits_to_keep=keep).logits
    else:
        logits = model(**inputs).logits[:, keep]
    return logits.float().cpu().numpy()


def sample_token(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a token from raw logits (V,); temperature 0 takes the most likely, ties to the lowest id."""
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    return int(draw_tokens(np.exp(scaled - scaled.max()), rng, 1)[0])


def structural_copy(model: Any) -> Any:
    """Copy a model's modules, which share its weights."""
    # The memo of a deep copy already holds the tensors.
    return copy.deepcopy(model, {id(t): t for t in chain(model.parameters(), model.buffers())})


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
    device, dtype : str, optional
        As torch calls them, or "auto" for the dtype of the checkpoint. By default "cuda" where there is one,
        else "cpu"; and "float32" on a CPU, "auto" elsewhere.
    revision : str, optional
        Branch, tag or commit on the hub.
    progress : bool
        Show a bar while converting, and a line for a download.

    Raises
    ------
    ValueError
        If the model is not found, or the device or dtype is unknown.
    FetchError
        If the default model cannot be fetched.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = one_line(str(error).partition("\n")[0])
        raise wrong("device", repr(device), f"one that torch has here, such as 'cpu' ({reason})") from error
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    type_ = getattr(torch, dtype, None)
    if dtype != "auto" and not (isinstance(type_, torch.dtype) and type_.is_floating_point):
        raise wrong("dtype", repr(dtype), "'auto' or a torch dtype such as 'float32'")
    model, tokenizer, revision = _find(name, dtype, revision, progress)
    shown = f"{DEFAULT_MODEL.name} {DEFAULT_MODEL.version}" if name == "default" else name
    return LanguageModel(model.to(device), tokenizer, shown, revision)


def _find(name: str, dtype: str, revision: str | None, progress: bool) -> tuple[Any, Any, str]:
    """The model, its tokenizer, and its commit or the hash of its weights."""
    local = name == "default" or name.endswith(".gguf") or Path(name).is_dir()
    if local and revision is not None:
        raise wrong("revision", f"{revision!r} for {name!r}", "none: it is for names on the hub")
    source, identity = _on_disk(name, progress) if local else (name, "")
    options: dict[str, Any] = {**_AS_DATA}
    try:
        with _quiet_transformers():
            if not local:
                # A branch moves. So the commit that it stands for now is loaded and recorded.
                path = hub.cached_file(name, "config.json", revision=revision or "main")
                options["revision"] = hub.extract_commit_hash(path, None)
                if options["revision"] is None:
                    raise ValueError(f"cannot tell its commit from its path {path}")
                identity = f"commit:{options['revision']}"
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            config = AutoConfig.from_pretrained(source, **options)
            model = AutoModelForCausalLM.from_pretrained(
                source, config=config, dtype=dtype, **_SAFE_MODEL, **options
            )
    except Exception as error:  # of any kind, since transformers does not check a model's files
        reason = one_line(error)[:300]
        if "trust_remote_code" in str(error):
            reason = "it needs code of its own, which otmd never runs"
        raise ValueError(
            f"no model {name!r}: it is neither 'default', nor a GGUF file, nor a folder with a model "
            f"(.safetensors) and its tokenizer, nor on the hub ({reason})"
        ) from error
    return model, tokenizer, identity


def _on_disk(name: str, progress: bool) -> tuple[str, str]:
    """The folder of a local model, into which a GGUF file is converted, and the hash of its weights."""
    if Path(name).is_dir():
        weights = sorted(Path(name).glob("*.safetensors"))
        if not weights:
            raise ValueError(f"{name}: no weights in this folder, expected .safetensors files")
        hashes = "".join(map(sha256_of, weights))
        several = len(weights) > 1
        return name, f"sha256:{hashlib.sha256(hashes.encode()).hexdigest() if several else hashes}"
    gguf = fetch(DEFAULT_MODEL, progress) if name == "default" else Path(name)
    if not gguf.is_file():
        raise ValueError(f"there is no GGUF file {name!r}")
    # Converted once: later loads take a fraction of a second.
    folder = cached("models", sha256_of(gguf), lambda fresh: _convert(gguf, fresh, progress))
    return str(folder), f"sha256:{folder.name}"


def _convert(path: Path, folder: Path, progress: bool) -> None:
    """Write the float32 weights and the tokenizer of a GGUF file into a folder."""
    import gguf

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, **_AS_DATA}
    source = str(path.parent)
    # transformers reads the whole header whenever it needs a part of it, and lists all names of tensors
    # for each module: half of the time.
    slow: dict[str, Any] = {
        name: cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")
    }
    bar = progress_bar(f"Converting {path.name}, once", 2, progress)
    with bar as update, _quiet_transformers(), patch.multiple(gguf, **slow):
        try:
            # transformers draws a bar of its own here, which cannot be turned off.
            with redirect_stderr(io.StringIO()):
                tokenizer = AutoTokenizer.from_pretrained(source, **where)
                loaded = AutoModelForCausalLM.from_pretrained(source, dtype="float32", **where)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            raise ValueError(f"{path}: transformers cannot read this GGUF file ({error})") from error
        _split_digits_as_in(path, tokenizer)
        update(1, "saving")
        # A model read from a quantised file cannot be saved, since its configuration still says quantised.
        # The same weights with a fresh configuration can.
        left_out = {"quantization_config", "_name_or_path", "model_type"}
        settings = {k: v for k, v in loaded.config.to_dict().items() if k not in left_out}
        with torch.device("meta"):
            model = type(loaded)(type(loaded.config)(**settings))
        model.load_state_dict(loaded.state_dict(), assign=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        update(2, "")


def _split_digits_as_in(path: Path, tokenizer: Any) -> None:
    """Let a tokenizer from a GGUF file split digits as the file says, which the conversion forgets."""
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    pre = GGUFReader(os.fspath(path)).fields.get("tokenizer.ggml.pre")
    if pre is not None and pre.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Inside the block, silence progress bars and all messages below errors, the hub's included."""
    bars = logging.is_progress_bar_enabled()
    levels = [(library, library.get_verbosity()) for library in (logging, hub_logging)]
    logging.disable_progress_bar()
    for library, _ in levels:
        library.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for library, level in levels:
            library.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
