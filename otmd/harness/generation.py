"""Sampling continuations with a key-value cache, a batch at a time, with own seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from otmd.harness.forward import forward_logits


def sample_token(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a token from one row of logits.

    Parameters
    ----------
    logits : (V,) array
        Raw logits.
    temperature : float
        0 takes the likeliest, ties to the lowest id.
    rng : numpy.random.Generator
        Gives one uniform number where the temperature is positive.

    Returns
    -------
    int
        The token's id.
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / temperature
    cumulative = np.cumsum(np.exp(scaled - scaled.max()))
    chosen = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(chosen)


def generate_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    rngs: Sequence[np.random.Generator],
    stop_tokens: frozenset[int],
    vocab_size: int,
) -> list[list[int]]:
    """Continue every prompt of one batch.

    The prompts are padded on the left; each has a generator of its own, so that what is drawn
    for one does not hang on who else is in the batch, but for rounding.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A decoder-only language model in evaluation mode.
    prompts : sequence of sequences of int
        Token ids, none empty.
    max_new_tokens : int
        Where to stop.
    temperature : float
        Of the sampling; 0 is greedy.
    rngs : sequence of numpy.random.Generator
        One a prompt.
    stop_tokens : frozenset of int
        A sequence ends with the first of these that it draws.
    vocab_size : int
        Only the first so many tokens are ever drawn.

    Returns
    -------
    list of list of int
        The new tokens alone.
    """
    import torch
    from transformers import DynamicCache

    device = model.device
    longest = max(map(len, prompts))
    inputs = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros((len(prompts), longest), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        inputs[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    inputs, mask = inputs.to(device), mask.to(device)
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    new: list[list[int]] = [[] for _ in prompts]
    running = set(range(len(prompts)))
    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        for _ in range(max_new_tokens):
            output = forward_logits(
                model,
                torch.tensor([inputs.shape[1] - 1], device=device),
                position_ids=places,
                input_ids=inputs,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            )
            logits = output[:, 0, :vocab_size].float().cpu().numpy()
            for row in sorted(running):
                token = sample_token(logits[row], temperature, rngs[row])
                new[row].append(token)
                if token in stop_tokens:
                    running.discard(row)
            if not running:
                break
            inputs = torch.tensor([[tokens[-1]] for tokens in new], device=device)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            places = places[:, -1:] + 1
    return new
