"""Advice in sentences from a ranking: the decision, its support, and the headroom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from otmd.study.jackknife import FEW_PROMPTS
from otmd.study.planning.candidates import CANDIDATES
from otmd.study.planning.latency import Latency
from otmd.study.planning.ranking import Row, difference, prompts_needed
from otmd.study.planning.tree_choices import Choice


def advice(rows: Sequence[Row], prompts: int, latency: Latency | None) -> list[str]:
    """Advice in sentences: the decision, its support, where more drafts stop paying, the headroom.

    ``prompts`` is how many the dataset has; about half of them are held out.
    """
    unit = "tokens per second" if latency else "tokens per step"
    best = max(rows, key=lambda row: row.fitted)
    speed = ""
    value = f"{best.value:.2f} {unit} [{best.low:.2f}, {best.high:.2f}]"
    warnings = _few_prompts(best.without.size, prompts)
    said = [_decision(best, rows, value, prompts), *_led_by(rows, best), *warnings]
    if latency:
        times, *ends = (part * latency.alone for part in (best.value, best.low, best.high))
        alone = f"the {1.0 / latency.alone:.2f} {unit} of the target alone"
        speed = f"{times:.2f}× [{ends[0]:.2f}, {ends[1]:.2f}] {alone}"
        if times <= 1.0:
            chosen = f"{named(best)}, the best on the fitting half, has {value}"
            return [f"Do not draft: {chosen}, {speed}.", *warnings]
        if ends[0] <= 1.0:
            said.insert(0, f"Undecided whether to draft: {speed}, not significant.")
        else:
            said.append(f"That is {speed}.")
    said += [*_by_engine(rows), _when_it_stops(best, rows)]
    return [*said, _headroom(best)] if best.by_entropy else said


def _decision(best: Row, rows: Sequence[Row], value: str, prompts: int) -> str:
    engines = [row for row in rows if CANDIDATES[row.rule].engines]
    baseline = max(engines, key=lambda row: row.fitted, default=best)
    if baseline is best:
        return f"Take {named(best)}: {value}."
    gain = difference(best, baseline)
    compared = (
        f"compared with the best that engines run, {named(baseline)}: {_percent(gain, baseline)}"
    )
    if gain[1] > 0:
        return f"Take {named(best)}: {value}; {compared}."
    measured = best.without.size
    needed = prompts_needed(best, baseline, measured) if gain[0] > 0 else None
    more = (
        f"about {needed} prompts would show it (now {prompts}, of which {measured} measure)"
        if needed
        else "it is not ahead on the held-out half"
    )
    chosen = f"Chosen on the fitting half: {named(best)}, {value}"
    return f"Undecided. {chosen}; {compared}, not significant; {more}."


def _led_by(rows: Sequence[Row], best: Row) -> list[str]:
    leader = max(rows, key=lambda row: row.value)
    if leader is best:
        return []
    gain = difference(leader, best)
    significance = "significant, but it was picked there" if gain[1] > 0 else "not significant"
    ahead = f"{named(leader)} is ahead of it: {_percent(gain, best)}, {significance}"
    return [f"The choice is that of the fitting half; on the held-out half {ahead}."]


def _few_prompts(measured: int, prompts: int) -> list[str]:
    if measured >= FEW_PROMPTS:
        return []
    many = f"Only {measured} of {prompts} prompts measure"
    return [f"{many}: intervals over so few are wide, and may miss the truth."]


def _by_engine(rows: Sequence[Row]) -> list[str]:
    """The best rows of the engines that most servers run, where rules that no engine runs are ranked too."""
    sentences = []
    if all(CANDIDATES[row.rule].engines for row in rows):
        return sentences
    for engine in ("vLLM", "SGLang"):
        runs = [row for row in rows if engine in CANDIDATES[row.rule].engines]
        if runs:
            best = max(runs, key=lambda row: row.fitted)
            ends = f"[{best.low:.2f}, {best.high:.2f}]"
            sentences.append(f"The best of {engine} alone: {named(best)}, {best.value:.2f} {ends}.")
    return sentences


def _headroom(best: Row) -> str:
    most = max(best.optimal, best.proportional, best.ceiling)
    law = f"no law of {_drafts(best.choice.shape[0])} that was fitted here would exceed {100 * most:.1f}%"
    return (
        f"At its first level {100 * best.rate:.1f}% are accepted; the optimum of the same drafts is "
        f"{100 * best.optimal:.1f}%, and {law}."
    )


def _when_it_stops(best: Row, rows: Sequence[Row]) -> str:
    alike = sorted(
        (row for row in rows if row.rule == best.rule), key=lambda row: row.choice.drafts
    )
    for smaller, larger in pairwise(alike):
        gain = difference(larger, smaller)
        if gain[1] <= 0:
            more = f"{_percent(gain, smaller)} with {larger.choice.drafts}"
            return f"No significant gain beyond {_drafts(smaller.choice.drafts)}: {more}."
    most = alike[-1].choice.drafts
    if most < best.most_tried:
        tried = f"Up to {_drafts(best.most_tried)} were tried"
        return f"{tried}; on the fitting half {most} was best."
    if len(alike) == 1:
        return f"More than {_drafts(most)} were not tried."
    return f"More drafts pay up to {most}, the most that was tried for this rule."


def _drafts(count: int) -> str:
    return f"{count} draft{'s' * (count > 1)}"


def temperatures_of(row: Row) -> str:
    """The draft temperatures of a row, as they are shown."""
    return " or ".join(f"{temperature:g}" for temperature in row.draft_temperatures)


def tree_of(choice: Choice) -> str:
    """The tree of a choice as it is shown."""
    return f"chain of {len(choice.shape)}" if max(choice.shape) == 1 else choice.tree


def named(row: Row) -> str:
    """The rule of a row with its tree."""
    choice = row.choice
    tree = tree_of(choice)
    shape = f"a {tree}" if tree.startswith("chain") else f"the tree {tree}"
    details = [part for part in (choice.variant, f"draft T {temperatures_of(row)}") if part]
    return f"{row.rule} with {shape} ({', '.join(details)})"


def _percent(gain: tuple[float, float, float], base: Row) -> str:
    mean, low, high = (100 * part / base.value for part in gain)
    return f"{mean:+.1f}% [{low:+.1f}, {high:+.1f}]"
