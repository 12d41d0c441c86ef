"""Language models behind one small interface: logits after each prefix, and sampled continuations."""

import hashlib
import inspect
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np


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
    max_length : int or None
        Longest sequence the model takes, where its configuration says so.
    backend : str
        Library versions, device and dtype the numbers come from.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, revision: str):
        import torch

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

    def logits(
        self, token_ids: Sequence[int] | np.ndarray, rows: Sequence[int] | None = None
    ) -> np.ndarray:
        """Raw logits (T, V) or (B, T, V), float32, of the next token after each prefix.

        The ids are (T,), or (B, T) of equal length; ValueError if they are empty or outside the
        vocabulary. With ``rows`` only these: row t is the law of what follows ``token_ids[: t + 1]``.
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
            output = forward_logits(
                self.model, wanted.to(inputs.device), input_ids=inputs, use_cache=False
            )
        logits = output.float().cpu().numpy()
        return logits if ids.ndim == 2 else logits[0]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        temperature: float = 1.0,
        *,
        rngs: Sequence[np.random.Generator],
    ) -> list[list[int]]:
        """Continue prompts (token ids, none empty) as one batch: the new tokens of each prompt.

        Each prompt has a generator of its own, so that its tokens do not depend on the other prompts,
        except by rounding. A text ends with its first stop token, or after ``max_new_tokens``.
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence
        from transformers import DynamicCache

        if temperature < 0 or max_new_tokens < 1:
            raise ValueError(
                f"wanted temperature >= 0 and max_new_tokens >= 1, got {temperature}, "
                f"{max_new_tokens}"
            )
        if len(rngs) != len(prompts) or not all(len(prompt) for prompt in prompts):
            raise ValueError("wanted one generator for each prompt, and no prompt empty")
        tokens = [torch.tensor(prompt, device=self.model.device) for prompt in prompts]
        left = {"batch_first": True, "padding_side": "left"}
        inputs = pad_sequence(tokens, **left)
        mask = pad_sequence([torch.ones_like(each) for each in tokens], **left)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        new: list[list[int]] = [[] for _ in prompts]
        running = set(range(len(prompts)))
        cache = DynamicCache(config=self.model.config)
        for _ in range(max_new_tokens):
            with torch.inference_mode():
                output = forward_logits(
                    self.model,
                    torch.tensor([inputs.shape[1] - 1], device=inputs.device),
                    position_ids=places,
                    input_ids=inputs,
                    attention_mask=mask,
                    past_key_values=cache,
                    use_cache=True,
                )
            logits = output[:, 0, : self.token_count].float().cpu().numpy()
            for row in sorted(running):
                token = sample_token(logits[row], temperature, rngs[row])
                new[row].append(token)
                if token in self.stop_tokens:
                    running.discard(row)
            if not running:
                break
            inputs = torch.tensor([[own[-1]] for own in new], device=inputs.device)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            places = places[:, -1:] + 1
        return new

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a text, of the model's generation settings and its tokenizer's."""
        named = getattr(self.model.generation_config, "eos_token_id", None)
        ids = named if isinstance(named, list) else [named]
        return frozenset(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None)

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


def forward_logits(model: Any, keep: Any, position_ids: Any = None, **inputs: Any) -> Any:
    """Call a decoder-only model: logits (B, K, V) at the K positions ``keep`` (an integer tensor) alone.

    ``position_ids`` (B, T) go to models that take them; others count positions by the attention mask.
    """
    takes = inspect.signature(model.forward).parameters
    if position_ids is not None and "position_ids" in takes:
        inputs["position_ids"] = position_ids
    if "logits_to_keep" in takes:
        # The output layer, the largest of all, is then computed at the wanted positions only.
        return model(**inputs, logits_to_keep=keep).logits
    return model(**inputs).logits[:, keep]


def sample_token(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a token from raw logits (V,); temperature 0 takes the likeliest, ties to the lowest id."""
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    cumulative = np.cumsum(np.exp(scaled - scaled.max()))
    chosen = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(chosen)
