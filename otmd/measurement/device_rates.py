"""Run target and draft over prompts and measure where their logits are, storing none of them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from otmd.harness.draft_models import Draft, common_vocabulary
from otmd.harness.errors import HarnessError
from otmd.harness.models import LanguageModel, forward_logits
from otmd.harness.prompts import Prompt, check_unique
from otmd.harness.sequences import (
    RunSettings,
    TokenSequence,
    check_prompts,
    chosen_positions,
    with_answers,
    with_samples,
)
from otmd.measurement.rows import SCHEMA

if TYPE_CHECKING:
    import polars as pl


def device_rates(
    target: LanguageModel,
    draft: Draft,
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float] = (1.0,),
    num_drafts: Sequence[int] = (1, 2, 3, 4),
    positions_per_prompt: int = 6,
    mode: str = "samples",
    sampling_temperature: float = 1.0,
    max_new_tokens: int = 32,
    seed: int = 0,
    batch_size: int = 8,
) -> Iterator["pl.DataFrame"]:
    """Measure a pair of models on the device of the target, batch by batch.

    The positions are those that ``collect`` would store with the same settings.

    Parameters
    ----------
    target : LanguageModel
        The target.
    draft : Draft
        The draft; where it lies elsewhere its logits are brought to the target's device.
    prompts : sequence of Prompt
        What is asked; ids are unique.
    temperatures : sequence of float
        What both logits are divided by, one after another.
    num_drafts : sequence of int
        Numbers of drafts.
    positions_per_prompt, mode, max_new_tokens, seed, batch_size
        See ``collect``.
    sampling_temperature : float
        ``temperature`` of ``collect``.

    Yields
    ------
    polars.DataFrame
        One for each batch of prompts, with the columns of ``otmd.measure``.

    Raises
    ------
    ValueError
        Before anything is computed, if an argument is out of range, the vocabularies differ, or a
        prompt cannot be used; and for bad ``temperatures`` or ``num_drafts``.
    HarnessError
        If a model gives logits that are not numbers.
    """
    settings = RunSettings(
        positions_per_prompt,
        mode,
        sampling_temperature,
        max_new_tokens,
        "float32",
        seed,
        batch_size,
    )
    prompts = list(prompts)
    if not prompts:
        raise ValueError("prompts: wanted at least one")
    check_unique(prompts)
    vocab_size, _ = common_vocabulary(target, draft)
    lengths = [model.max_length for model in (target, draft) if model.max_length is not None]
    check_prompts(target, prompts, min(lengths, default=None), settings)
    return _tables(target, draft, prompts, vocab_size, settings, temperatures, num_drafts)


def _tables(
    target: LanguageModel,
    draft: Draft,
    prompts: list[Prompt],
    vocab_size: int,
    settings: RunSettings,
    temperatures: Sequence[float],
    num_drafts: Sequence[int],
) -> Iterator["pl.DataFrame"]:
    import torch

    from otmd.tensors import measure_logits

    done = 0
    for start in range(0, len(prompts), settings.batch_size):
        sequences = _sequences(target, prompts[start : start + settings.batch_size], settings)
        places = [chosen_positions(s, settings.positions_per_prompt) for s in sequences]
        pair = []
        for model in (target, draft):
            rows = [
                device_logits(model, sequence.tokens[:-1], [t - 1 for t in chosen])
                for sequence, chosen in zip(sequences, places, strict=True)
            ]
            pair.append(torch.cat(rows)[:, :vocab_size].to(target.model.device))
        _refuse_nan(pair, (target.name, draft.name))
        table = measure_logits(pair[0], pair[1], temperatures, num_drafts)
        yield _with_places(table, sequences, places, done)
        done += sum(map(len, places))


def device_logits(model: Draft, token_ids: Sequence[int], rows: Sequence[int]) -> Any:
    """``model.logits(token_ids, rows)`` as a tensor where the model computed it.

    Parameters
    ----------
    model : Draft
        A language model, or a draft without a device, whose logits start on the CPU.
    token_ids : sequence of int
        One sequence.
    rows : sequence of int
        Row t is the distribution of what follows ``token_ids[: t + 1]``.

    Returns
    -------
    torch.Tensor of float32, shape (len(rows), V)
    """
    import torch

    if not isinstance(model, LanguageModel):
        return torch.from_numpy(model.logits(token_ids, rows))
    inner = model.model
    inputs = torch.as_tensor([list(token_ids)], dtype=torch.long, device=inner.device)
    wanted = torch.as_tensor(list(rows), device=inner.device)
    with torch.inference_mode():
        output = forward_logits(inner, wanted, input_ids=inputs, use_cache=False)
        return output[0].float()


def _sequences(
    target: LanguageModel, batch: list[Prompt], settings: RunSettings
) -> list[TokenSequence]:
    if settings.mode == "text":
        return with_answers(target, batch, settings.max_new_tokens)
    return with_samples(target, batch, settings.max_new_tokens, settings.temperature, settings.seed)


def _refuse_nan(pair: Sequence[Any], names: Sequence[str]) -> None:
    for logits, name in zip(pair, names, strict=True):
        if bool(logits.isnan().any() | logits.isposinf().any()):
            raise HarnessError(f"{name} gave logits that are not numbers; try another model_dtype")


def _with_places(
    table: "pl.DataFrame", sequences: list[TokenSequence], places: list[list[int]], done: int
) -> "pl.DataFrame":
    """Say of each row which prompt and position it is, in the columns of ``otmd.measure``."""
    import polars as pl

    found = [(s.prompt, t) for s, chosen in zip(sequences, places, strict=True) for t in chosen]
    at = pl.DataFrame(
        {
            "index": range(done, done + len(found)),
            "prompt_id": [prompt.id for prompt, _ in found],
            "domain": [prompt.domain for prompt, _ in found],
            "position": [position for _, position in found],
        }
    )
    whole = at[table["index"].to_numpy()].hstack(table.drop("index"))
    nothing = {"top_k": pl.Int64, "top_p": pl.Float64, "min_p": pl.Float64}
    # Every rate here is a closed form, so its bounds are the rate itself.
    same = {"rate": ("rate_low", "rate_high"), "gap": ("gap_low", "gap_high")}
    return whole.with_columns(
        *(pl.lit(None, kind).alias(name) for name, kind in nothing.items()),
        *(pl.col(name).alias(bound) for name, bounds in same.items() for bound in bounds),
    ).select(list(SCHEMA))
