"""What ways of decoding took: summed over texts, as a table in a terminal and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otmd.harness.decoding import STAGES, Decoded

if TYPE_CHECKING:
    from rich.console import Console

# What is counted per token: the prompt is read once in every way, by the same call.
GENERATION = STAGES[1:]
SHOWN_DEPTHS = 6


@dataclass(frozen=True)
class DecodingCost:
    """What a way of decoding took, over all texts.

    Attributes
    ----------
    name : str
        Of the way.
    tokens, steps : int
        How many tokens were written, and in how many steps, one call of the target each.
    acceptance : list of float
        For each depth, the share of drafted nodes' tokens that were accepted: of the times that something
        was drafted there below an accepted path, how often one of it was accepted.
    seconds_per_token : dict of str to float
        By stage: "draft", "target", "verification", "rest".
    prompt_seconds : float
        What reading the prompts took, which counts nowhere else.
    """

    name: str
    tokens: int
    steps: int
    acceptance: list[float]
    seconds_per_token: dict[str, float]
    prompt_seconds: float

    @property
    def tokens_per_step(self) -> float:
        """New tokens per step."""
        return self.tokens / self.steps

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, once the prompt is read."""
        return 1.0 / sum(self.seconds_per_token.values())


def decoding_costs(texts: Sequence[Mapping[str, Decoded]]) -> list[DecodingCost]:
    """Sum what was decoded in several ways.

    Parameters
    ----------
    texts : sequence of mappings
        From :func:`otmd.harness.decode_in_turn`: for each prompt, what was decoded in each way.

    Returns
    -------
    list of DecodingCost
        One a way, in their order.

    Raises
    ------
    ValueError
        For no texts.
    """
    if not texts:
        raise ValueError("texts: got none, wanted at least one")
    return [_cost(name, [text[name] for text in texts]) for name in texts[0]]


def _cost(name: str, texts: list[Decoded]) -> DecodingCost:
    tokens = sum(len(text.tokens) for text in texts)
    reached, kept, seconds = Counter[int](), Counter[int](), Counter[str]()
    for text in texts:
        reached.update(text.reached)
        kept.update(text.kept)
        seconds.update(text.seconds)
    return DecodingCost(
        name,
        tokens,
        sum(len(text.steps) for text in texts),
        [kept[depth] / reached[depth] for depth in sorted(reached)],
        {stage: seconds[stage] / tokens for stage in GENERATION},
        seconds["prompt"],
    )


def decoding_json(costs: Sequence[DecodingCost]) -> list[dict[str, Any]]:
    """The costs as JSON would have them, one object a way; times in seconds."""
    return [
        vars(cost)
        | {"tokens_per_step": cost.tokens_per_step, "tokens_per_second": cost.tokens_per_second}
        for cost in costs
    ]


def print_decoding(costs: Sequence[DecodingCost], console: "Console | None" = None) -> None:
    """Print one column a way.

    Parameters
    ----------
    costs : sequence of DecodingCost
        From :func:`decoding_costs`; the first is what the others' speed is compared with.
    console : rich.console.Console, optional
        By default one on stdout.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for cost in costs:
        table.add_column(cost.name.replace("; ", "\n"), justify="right", vertical="bottom")
    speeds = [cost.tokens_per_second for cost in costs]
    table.add_row("tokens per step", *(f"{cost.tokens_per_step:.2f}" for cost in costs))
    table.add_row("tokens per second", *(f"{speed:.1f}" for speed in speeds))
    table.add_row("speed-up", *(f"{speed / speeds[0]:.2f}" for speed in speeds))
    table.add_row("accepted by depth, %", *(_depths(cost.acceptance) for cost in costs))
    for stage in GENERATION:
        times = (f"{1e3 * cost.seconds_per_token[stage]:.1f}" for cost in costs)
        table.add_row(f"ms per token: {stage}", *times)
    (console or Console()).print(table)


def _depths(acceptance: list[float]) -> str:
    shown = [f"{100 * rate:.0f}" for rate in acceptance[:SHOWN_DEPTHS]]
    return " ".join(shown + ["…"] * (len(acceptance) > SHOWN_DEPTHS)) or "·"
