"""Prompts: what the target model is asked, by domain."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from otmd.harness.prompt_sources import READERS, read_user_file

DOMAINS = tuple(READERS)


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes
    ----------
    id : str
        Unique among the prompts used together.
    domain : str
        Group that results are split by: "code", "maths", "chat", "prose" or one's own.
    text : str
        What the model is given.
    answer : str or None
        What follows the text, for teacher forcing.
    continuation : bool
        The answer goes on with the text itself: no chat template is put around it.
    """

    id: str
    domain: str
    text: str
    answer: str | None = None
    continuation: bool = False


def load_prompts(
    sources: Iterable[str | Path] = DOMAINS,
    per_domain: int | None = 16,
    seed: int = 0,
    progress: bool = True,
) -> list[Prompt]:
    """Load prompts, a chosen number from each source.

    Parameters
    ----------
    sources : iterable of str or Path
        Each is "code" (HumanEval), "maths" (GSM8K), "chat" (first turns of MT-bench), "prose" (a
        Project Gutenberg text in passages), or a file of one's own: ``.jsonl`` with ``text`` (or
        ``prompt``) and optionally ``id``, ``domain``, ``answer``, ``continuation``; or ``.txt``,
        cut into passages that are continued. The built-in ones are fetched into the cache once.
    per_domain : int or None
        How many to choose from each source (all of it where it has fewer); None takes all.
    seed : int
        Of the choice. For one seed a smaller choice is part of a larger one.
    progress : bool
        Show a bar while fetching.

    Returns
    -------
    list of Prompt
        In the order of the sources, within each in its own order.

    Raises
    ------
    ValueError
        If a source is neither built in nor a readable file, or two prompts share an id.
    FetchError
        If a built-in source cannot be fetched.
    """
    if per_domain is not None and per_domain < 1:
        raise ValueError(f"per_domain must be at least 1 or None, got {per_domain}")
    chosen: list[Prompt] = []
    for source in sources:
        if source in READERS:
            records = READERS[str(source)](progress)
        elif Path(source).is_file():
            records = read_user_file(Path(source))
        else:
            raise ValueError(
                f"sources: {str(source)!r} is neither a file nor one of {', '.join(DOMAINS)}"
            )
        prompts = [Prompt(**record) for record in records]
        chosen += _choose(prompts, per_domain, seed, name=Path(source).name)
    check_unique(chosen)
    return chosen


def check_unique(prompts: Sequence[Prompt]) -> None:
    """Raise ValueError where two prompts share an id."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ValueError(f"prompts: the id {prompt.id!r} occurs twice, ids must be unique")
        seen.add(prompt.id)


def _choose(prompts: list[Prompt], count: int | None, seed: int, name: str) -> list[Prompt]:
    if count is None or count >= len(prompts):
        return prompts
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return [prompts[i] for i in sorted(rng.permutation(len(prompts))[:count])]
