"""Small drafters trained by several losses, to see whether training for the rule that is run pays.

    python -m experiments trained_drafters

The drafter reads the target's hidden states after two thirds of its layers, adds a low-rank linear map of
them, and ends with the target's own output layer, for the most common tokens alone: no other token is ever
drafted, and all rates count what that loses. From the same initial maps it is trained by each loss on texts
that the target sampled after half of the prompts, with the learning rate that is best for this loss on a
quarter of that half. Rates and tokens per step are means over the texts of the held-out half.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm

from experiments.runner import RESULTS, options, save, show, write_whole
from otmd.models import DOMAINS, LanguageModel, load_prompts, load_target
from otmd.models.prompts import prompt_tokens
from otmd.study import jackknife
from otmd.tensors import acceptance_loss, tokens_per_step_loss, total_variation_loss

ONE_THREAD = True
TEXTS = Path("runs/trained_drafters.npz")
PER_DOMAIN, LENGTH, MOST_PROMPT_TOKENS, AT_A_TIME = 40, 48, 256, 12
LAYER, RANK, VOCABULARY = 19, 64, 1024
PATH = 4
"""Drafts of a path, and tokens of a window of a text."""
WINDOWS = 24
"""Windows in a batch."""
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
REFERENCE = "forward KL"


class Texts(NamedTuple):
    """Every window of texts: hidden states (N, L, D), targets (N, L, K + 1), tokens (N, L), prompts (N,).

    The last token stands for all that are never drafted.
    """

    hidden: Tensor
    target: Tensor
    tokens: Tensor
    prompt: Tensor

    def of(self, rows: Tensor) -> "Texts":
        """Some windows."""
        return Texts(*(values[rows] for values in self))


class Drafter:
    """Logits (…, K + 1) from hidden states (…, D), by a low-rank map before the target's output layer."""

    def __init__(self, scale: Tensor, output: Tensor, seed: int) -> None:
        self._scale, self._output = scale, output
        generator = torch.Generator().manual_seed(seed)
        size = output.shape[1]
        self.down = torch.randn((size, RANK), generator=generator) / size**0.5
        self.up = torch.zeros((RANK, size))
        self.parameters = [self.down.requires_grad_(), self.up.requires_grad_()]

    def __call__(self, hidden: Tensor) -> Tensor:
        """The logits; −inf for the last token, which is never drafted."""
        moved = hidden + hidden @ self.down @ self.up
        logits = rms_norm(moved, moved.shape[-1:], self._scale, 1e-5) @ self._output.T
        return pad(logits, (0, 1), value=-torch.inf)


Loss = Callable[[Texts, Tensor], Tensor]


def per_position(loss: Callable[..., Tensor]) -> Loss:
    """A loss of distributions as one of texts."""
    return lambda texts, logits: loss(texts.target, logits)


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """The forward KL divergence up to a constant, on the tokens that may be drafted."""
    return -(target * torch.log_softmax(logits, dim=-1))[..., :-1].sum(dim=-1)


def block_loss(texts: Texts, logits: Tensor) -> Tensor:
    """Negative tokens per step of block verification."""
    return tokens_per_step_loss(texts.target, logits, texts.tokens, validate=False)


def minus_log(num_drafts: int, rate: str) -> Loss:
    """The loss −log of a rate."""
    return per_position(
        partial(acceptance_loss, num_drafts=num_drafts, rate=rate, validate=False)  # pyright: ignore
    )


LOSSES: dict[str, Loss] = {
    REFERENCE: per_position(cross_entropy),
    "total variation": per_position(partial(total_variation_loss, validate=False)),
    "−log α, n = 1": minus_log(1, "optimal"),
    "−log α*, n = 4": minus_log(4, "optimal"),
    "−log preference on strata, n = 4": minus_log(4, "stratified"),
    "−tokens, block verification": block_loss,
}
MEASURES = {
    "one_draft": LOSSES["−log α, n = 1"],
    "optimum": LOSSES["−log α*, n = 4"],
    "preference": minus_log(4, "preference"),
    "strata": LOSSES["−log preference on strata, n = 4"],
}


def train(loss: Loss, texts: Texts, drafter: Drafter, rate: float, steps: int, seed: int) -> None:
    """Train by Adam with a rate that falls linearly to 0; equal seeds see the same batches."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(drafter.parameters, lr=rate)
    decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        batch = texts.of(torch.randint(len(texts.prompt), (WINDOWS,), generator=generator))
        optimiser.zero_grad()
        loss(batch, drafter(batch.hidden)).mean().backward()
        optimiser.step()
        decay.step()


@torch.no_grad()
def mean_loss(loss: Loss, texts: Texts, drafter: Drafter) -> float:
    """The mean of a loss over texts."""
    parts = torch.arange(len(texts.prompt)).split(256)
    values = [loss(part, drafter(part.hidden)).flatten() for part in map(texts.of, parts)]
    return float(torch.cat(values).mean())


@torch.no_grad()
def measured(texts: Texts, drafter: Drafter) -> dict[str, np.ndarray]:
    """Rates, and tokens per step of a path, summed over the windows of each prompt; and their number."""
    sums: dict[str, list[Tensor]] = {}
    for rows in torch.arange(len(texts.prompt)).split(256):
        part = texts.of(rows)
        logits = drafter(part.hidden)
        for name, loss in MEASURES.items():
            sums.setdefault(name, []).append((-loss(part, logits)).exp().mean(dim=-1))
        sums.setdefault("tokens", []).append(-block_loss(part, logits))
    prompts, number = texts.prompt.unique(return_inverse=True)
    values = {name: torch.cat(of) for name, of in sums.items()}
    values["windows"] = torch.ones(len(number))
    return {
        name: np.bincount(number.numpy(), of.numpy(), len(prompts)) for name, of in values.items()
    }


def best_rate(loss: Loss, texts: Texts, weights: tuple[Tensor, Tensor], steps: int) -> float:
    """The learning rate with the least loss on the texts of every fourth prompt, trained on the others."""
    prompts = texts.prompt.unique()
    left_out = torch.isin(texts.prompt, prompts[::4])
    losses = {}
    for rate in RATES:
        drafter = Drafter(*weights, seed=0)
        train(loss, texts.of(~left_out), drafter, rate, steps, seed=0)
        losses[rate] = mean_loss(loss, texts.of(left_out), drafter)
    return min(losses, key=lambda rate: losses[rate])


def rows(
    texts: Texts, held_out: Texts, weights: tuple[Tensor, Tensor], chosen: Any
) -> Iterator[dict[str, Any]]:
    """Sums of each prompt of the held-out half, by loss and seed; untrained first."""
    untrained = measured(held_out, Drafter(*weights, seed=0))
    yield from by_prompt({"loss": "untrained", "seed": 0, "learning_rate": 0.0}, untrained)
    for name, loss in LOSSES.items():
        rate = best_rate(loss, texts, weights, chosen.steps)
        for seed in range(chosen.seeds):
            drafter = Drafter(*weights, seed=seed)
            train(loss, texts, drafter, rate, chosen.steps, seed)
            about = {"loss": name, "seed": seed, "learning_rate": rate}
            yield from by_prompt(about, measured(held_out, drafter))
        print(f"trained by {name}, learning rate {rate:g}", flush=True)


def by_prompt(about: dict[str, Any], sums: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """A row for each prompt."""
    for number in range(len(sums["windows"])):
        yield {**about, "prompt": number, **{name: of[number] for name, of in sums.items()}}


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """Means over prompts and seeds, and gains over the reference loss, with intervals over prompts."""
    measures = [*MEASURES, "tokens"]
    means = table.group_by("loss", "prompt", maintain_order=True).agg(
        pl.col(*measures, "windows").mean()
    )
    base = means.filter(loss=REFERENCE)
    result = []
    for [name], of in means.group_by("loss", maintain_order=True):
        rates = table.filter(loss=name)["learning_rate"]
        row: dict[str, Any] = {"loss": name, "learning_rate": rates[0]}
        windows = of["windows"].to_numpy()
        for measure in measures:
            values = of[measure].to_numpy()
            gains = values - base[measure].to_numpy()
            for suffix, sums in {"": values, "_gain": gains}.items():
                value = float(sums.sum() / windows.sum())
                low, high = jackknife.interval(value, jackknife.left_out(sums, windows))
                row |= {
                    f"{measure}{suffix}": value,
                    f"{measure}{suffix}_low": low,
                    f"{measure}{suffix}_high": high,
                }
        result.append(row)
    return pl.DataFrame(result)


def cells(result: pl.DataFrame) -> pl.DataFrame:
    """The summary as text: means, and gains over the reference with their intervals, rates in per cent."""
    listed = []
    for row in result.iter_rows(named=True):
        cell = {"loss": row["loss"], "learning_rate": f"{row['learning_rate']:g}"}
        for measure in (*MEASURES, "tokens"):
            unit, digits = (1.0, 3) if measure == "tokens" else (100.0, 1)
            value, gain, low, high = (
                unit * row[f"{measure}{suffix}"]
                for suffix in ("", "_gain", "_gain_low", "_gain_high")
            )
            cell[measure] = f"{value:.{digits}f}"
            if row["loss"] != REFERENCE:
                cell[measure] += f" ({gain:+.{digits}f}: {low:+.{digits}f} to {high:+.{digits}f})"
        listed.append(cell)
    return pl.DataFrame(listed)


# ---------------------------------------------------------------- texts


def collected(model: LanguageModel) -> dict[str, np.ndarray]:
    """Sample a text after each prompt; hidden states after ``LAYER`` and at the end, before each token."""
    if TEXTS.exists():
        with np.load(TEXTS) as arrays:
            return dict(arrays)
    states: dict[str, list[np.ndarray]] = {"hidden": [], "final": []}

    def record(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            states[name].append(output[:, -1].numpy().copy())

        return hook

    modules = {"hidden": model.model.model.layers[LAYER], "final": model.model.model.norm}
    hooks = [module.register_forward_hook(record(name)) for name, module in modules.items()]
    prompts = load_prompts(list(DOMAINS), PER_DOMAIN, 0, progress=False)
    tokens = [prompt_tokens(model.tokenizer, prompt)[-MOST_PROMPT_TOKENS:] for prompt in prompts]
    ordered = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
    parts: dict[int, dict[str, np.ndarray]] = {}
    for start in range(0, len(ordered), AT_A_TIME):
        numbers = ordered[start : start + AT_A_TIME]
        rngs = [np.random.default_rng([0, zlib.crc32(prompts[i].id.encode())]) for i in numbers]
        texts = model.generate([tokens[i] for i in numbers], LENGTH, rngs=rngs)
        steps = {name: np.stack(of) for name, of in states.items()}
        for row, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            of_text = {name: of[: len(text), row] for name, of in steps.items()}
            parts[number] = {
                "prompt": np.full(len(text), number),
                "tokens": np.array(text),
                **of_text,
            }
        for of in states.values():
            of.clear()
        print(f"sampled {len(parts)} of {len(prompts)} texts", flush=True)
    for hook in hooks:
        hook.remove()
    arrays = {name: np.concatenate([parts[i][name] for i in sorted(parts)]) for name in parts[0]}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_whole(TEXTS, file.getvalue())
    return arrays


@torch.no_grad()
def halves(model: LanguageModel) -> tuple[Texts, Texts, tuple[Tensor, Tensor]]:
    """The windows of every second prompt, and of the others; and the drafter's constant weights."""
    arrays = {name: torch.from_numpy(of) for name, of in collected(model).items()}
    output = model.model.lm_head.weight.detach()
    is_first = arrays["prompt"] % 2 == 0
    probs = torch.cat([(part @ output.T).softmax(dim=-1) for part in arrays["final"].split(256)])
    common = probs[is_first].mean(dim=0).topk(VOCABULARY).indices
    target = probs[:, common]
    rest = probs.index_fill_(1, common, 0.0).sum(dim=-1, keepdim=True)
    target = torch.cat([target, rest], dim=-1)
    index = torch.full((len(output),), VOCABULARY)
    index[common] = torch.arange(VOCABULARY)
    flat = Texts(arrays["hidden"], target, index[arrays["tokens"]], arrays["prompt"])
    starts = [
        rows
        for prompt in flat.prompt.unique()
        for rows in (flat.prompt == prompt).nonzero()[:, 0].split(PATH)
        if len(rows) == PATH
    ]
    windows = flat.of(torch.stack(starts))
    windows = windows._replace(prompt=windows.prompt[:, 0])
    first = windows.prompt % 2 == 0
    return (
        windows.of(first),
        windows.of(~first),
        (model.model.model.norm.weight.detach(), output[common]),
    )


def main(arguments: list[str]) -> pl.DataFrame:
    """Train, measure, store the summary, and print it."""
    output = RESULTS / "trained_drafters.parquet"
    chosen = options(__name__, arguments, steps=200, seeds=3, output=output)
    torch.set_num_threads(1)
    model = load_target(device="cpu", progress=False)
    table = pl.DataFrame(list(rows(*halves(model), chosen)))
    result = summary(table)
    save(chosen.output, result, chosen)
    show(cells(result))
    return result
