"""Long runs, prompt by prompt. The rows of a prompt are stored at once, and the time left is printed."""

import argparse
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from target_texts import Pair, Text, sample_texts

from otmd.models import (
    DEFAULT_DRAFT,
    DOMAINS,
    Prompt,
    load_draft,
    load_prompts,
    load_target,
)

sys.path.append(str(Path(__file__).parents[1]))

from progress_store import ProgressStore, progress_store

Rows = list[dict[str, Any]]
MINUTE = 60.0


def options(description: str, output: Path, seconds_a_prompt: float) -> argparse.ArgumentParser:
    """The options that all experiments on sampled texts have.

    ``seconds_a_prompt``, measured in the default setting, gives the first estimate of the time.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each source")
    parser.add_argument("--sources", nargs="+", default=list(DOMAINS), help="domains or files")
    parser.add_argument("--length", type=int, default=72, help="most tokens of a text")
    parser.add_argument("--target", default="default", help="as for `otmd collect`")
    parser.add_argument("--draft", default=DEFAULT_DRAFT, help="as for `otmd collect`")
    parser.add_argument("--seed", type=int, default=0, help="of the texts")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument(
        "--output", type=Path, default=output, help="the summary; rows by prompt stand beside it"
    )
    parser.set_defaults(seconds_a_prompt=seconds_a_prompt)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Read the options, and check those that all experiments have."""
    chosen = parser.parse_args(arguments)
    for name, least in (("prompts", 2), ("length", 1), ("threads", 1)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name}: got {getattr(chosen, name)}, expected at least {least}")
    return chosen


def load_pair(chosen: argparse.Namespace) -> Pair:
    """The target and the draft that were chosen."""
    import torch

    torch.set_num_threads(chosen.threads)
    target = load_target(chosen.target)
    return Pair(target, load_draft(chosen.draft, target))


def rows_path(output: Path) -> Path:
    """Where the rows by prompt are stored, beside the summary."""
    return output.with_name(f"{output.stem}_prompts.parquet")


def run_prompts(
    chosen: argparse.Namespace,
    temperatures: list[float],
    what: str,
    measure: Callable[[Pair, Text, np.random.Generator], Rows],
) -> pl.DataFrame:
    """Measure, or go on measuring, the texts of each prompt, one at each temperature.

    Parameters
    ----------
    chosen : argparse.Namespace
        The options, see :func:`options`.
    temperatures : list of float
        The temperatures of the texts, and of both models along them.
    what : str
        All that determines what is measured along a text. It is in the parts' names.
    measure : callable
        From the models, a text and a generator to its rows.

    Returns
    -------
    DataFrame
        The rows of this run, with the columns ``domain``, ``prompt`` and ``temperature``.
    """
    prompts = load_prompts(chosen.sources, per_domain=chosen.prompts, seed=chosen.seed)
    parts = {_name(chosen, temperatures, what, prompt): prompt for prompt in prompts}
    with progress_store(rows_path(chosen.output)) as store:
        _measure_left(store, parts, chosen, temperatures, measure)
        whole = store.finish()
    return whole.filter(pl.col("part").is_in(list(parts))).drop("part")


def _measure_left(
    store: ProgressStore,
    parts: dict[str, Prompt],
    chosen: argparse.Namespace,
    temperatures: list[float],
    measure: Callable[[Pair, Text, np.random.Generator], Rows],
) -> None:
    left = {name: prompt for name, prompt in parts.items() if name not in store}
    minutes = len(left) * chosen.seconds_a_prompt / MINUTE
    print(
        f"{len(left)} of {len(parts)} prompts are to be measured, about {minutes:.0f} minutes "
        "in the default setting",
        flush=True,
    )
    if not left:
        return
    pair, begun = load_pair(chosen), time.perf_counter()
    for done, (name, prompt) in enumerate(left.items(), start=1):
        texts = sample_texts(pair, prompt, chosen.length, temperatures, chosen.seed)
        store.keep(name, partial(_rows, pair, prompt, texts, chosen.seed, measure))
        minutes = (time.perf_counter() - begun) / done * (len(left) - done) / MINUTE
        print(f"[{done}/{len(left)}] {prompt.id}: about {minutes:.0f} minutes left", flush=True)


def _rows(
    pair: Pair,
    prompt: Prompt,
    texts: list[Text],
    seed: int,
    measure: Callable[[Pair, Text, np.random.Generator], Rows],
) -> Rows:
    rows = []
    for text in texts:
        about = {"domain": prompt.domain, "prompt": prompt.id, "temperature": text.temperature}
        rng = np.random.default_rng([seed, *text.tokens])
        rows += [{**about, **row} for row in measure(pair, text, rng)]
    return rows


def _name(chosen: argparse.Namespace, temperatures: list[float], what: str, prompt: Prompt) -> str:
    """A file's name for what is measured of a prompt."""
    whole = (
        f"{chosen.target} {chosen.draft} {what} T {temperatures} {chosen.length} {chosen.seed} "
        f"{prompt.domain} {prompt.id}"
    )
    return re.sub(r"[^\w.]+", "-", whole)
