"""Speculative decoding on real models: draft a tree, check it in one call, keep a path of it, repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from otmd.laws.base import RngLike, validate_rng
from otmd.models.continuations import Reader, continuations, read_trees
from otmd.models.drafts import Draft
from otmd.models.language_models import LanguageModel
from otmd.probabilities import Processing, validate_count
from otmd.trees import TreeLaw, TreeVerifier
from otmd.trees.base import Context, Model, Prefix
from otmd.trees.random_choices import Sampled

STAGES: tuple[str, ...] = ("prompt", "draft", "target", "verification", "rest")
WARM_UP_TOKENS = 8
_RAW = Processing()


@dataclass
class Decoded:
    """Decoded tokens, with counters and times.

    Attributes
    ----------
    tokens, steps : list of int, list of tuple of int
        The new tokens, including the one that ended the text; and for each call of the target model, the
        number of tokens that it yielded, and of those that were drafted for it.
    reached, kept : Counter
        For each depth: the number of steps that had drafts there below the path accepted so far, and the
        number of these steps that accepted one of them.
    seconds : dict of str to float
        Wall-clock time by stage: "prompt", which both models read before the first step; then "draft",
        "target", "verification" and "rest".
    """

    tokens: list[int] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    reached: Counter[int] = field(default_factory=Counter)
    kept: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @property
    def tokens_per_step(self) -> float:
        """New tokens per call of the target model."""
        return len(self.tokens) / len(self.steps)


@dataclass(frozen=True)
class Speculation:
    """A way to speculate: draft model, law of its trees, and the rule that verifies them.

    ``law`` makes the law of the trees from the draft model, as in ``lambda model: IIDPaths(model, 4, 3)``.
    ``processing`` goes from the draft model's logits to draft_probs; by default it is the target's. At
    temperature 0, a tree with several drafts at one node needs another, since all mass is then on one token.
    """

    draft: Draft
    law: Callable[[Model], TreeLaw]
    rule: TreeVerifier
    processing: Processing | None = None


def decoding_steps(
    target: Reader,
    draft: tuple[Reader, Callable[[Model], TreeLaw], TreeVerifier] | None,
    rng: np.random.Generator,
    decoded: Decoded,
    keep: Callable[[Prefix], int],
) -> Iterator[Prefix]:
    """Let models write on from the end of a text without end: yield the tokens of each call of the target.

    ``draft`` is the draft model, the law of its trees and their rule; without it the target writes alone. Of
    what a step emits, the first ``keep(emitted)`` tokens are appended to the text. ``decoded`` counts.
    """
    choices = Sampled(rng)
    since = perf_counter()

    def spent(stage: str) -> None:
        nonlocal since
        now = perf_counter()
        decoded.seconds[stage] += now - since
        since = now

    while True:
        drafted = 0
        if draft is None:
            target.read([()])
            spent("target")
            emitted: Prefix = (choices.token(target(())),)
        else:
            reader, law_of, rule = draft
            law = law_of(reader)
            context = Context(target, law)
            tree = law.draft_tree(context, choices)
            read_trees([(tree, target, reader)], spent)
            emitted = rule.emit(context, tree, choices)
            drafted = len(tree.prefixes()) - 1
            for depth in range(1, len(emitted) + 1):
                if tree.node(emitted[: depth - 1]) is not None:
                    decoded.reached[depth] += 1
                    decoded.kept[depth] += depth < len(emitted)
        spent("verification")
        kept = emitted[: keep(emitted)]
        target.extend(kept)
        if draft is not None:
            draft[0].extend(kept)
        spent("rest")
        decoded.tokens += kept
        decoded.steps.append((len(kept), drafted))
        yield kept


def decode(
    target: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    speculation: Speculation | None = None,
    processing: Processing = _RAW,
    *,
    rng: RngLike = None,
) -> Decoded:
    """Continue a prompt.

    Parameters
    ----------
    target, prompt : LanguageModel, sequence of int
        The target model, and token ids, not empty.
    max_new_tokens : int
        After this many new tokens the text ends at the latest.
    speculation : Speculation, optional
        Without it, the target samples token by token.
    processing : Processing
        From logits to probabilities. At temperature 0 the text is the target's own greedy text, except at
        ties within rounding.
    rng : int, sequence of int, numpy.random.Generator or None
        A seed or a generator. Equal seeds give equal texts.

    Returns
    -------
    Decoded
        The new tokens, and the steps and seconds that they took.

    Raises
    ------
    ValueError
        For an empty prompt, ``max_new_tokens`` < 1, or a law that the rule does not serve.
    """
    if len(prompt) == 0:
        raise ValueError("prompt: got no tokens, expected at least one")
    left = validate_count("max_new_tokens", max_new_tokens, minimum=1)
    decoded = Decoded()
    begun = perf_counter()
    # Both models read the prompt, so that no step has to.
    reading = Reader(continuations(target, prompt), processing)
    reading.read([()])
    draft = None
    if speculation is not None:
        after = continuations(speculation.draft, prompt)
        reader = Reader(after, speculation.processing or processing)
        reader.read([()])
        draft = (reader, speculation.law, speculation.rule)
    decoded.seconds["prompt"] = perf_counter() - begun
    stops = target.stop_tokens

    def keep(emitted: Prefix) -> int:
        ends = [i + 1 for i, token in enumerate(emitted) if token in stops]
        return min([left - len(decoded.tokens), *ends])

    for kept in decoding_steps(reading, draft, validate_rng(rng), decoded, keep):
        if kept[-1] in stops or len(decoded.tokens) == left:
            break
    return decoded


def decode_in_turn(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    ways: Mapping[str, Speculation | None],
    max_new_tokens: int,
    processing: Processing,
    seed: int = 0,
) -> Iterator[dict[str, Decoded]]:
    """Continue each prompt in several ways, for a comparison of their times.

    The ways take turns on each prompt, and a different one begins each time, so that other load on the
    machine slows all of them equally. First, each way writes one short text that does not count, to compile.
    Every way starts a prompt with the same random numbers, made from the seed and the prompt's index. The way
    None is the target alone.

    Yields
    ------
    dict of str to Decoded
        For each prompt, the texts by the name of the way.
    """
    names = list(ways)
    for name in names:
        decode(target, prompts[0], WARM_UP_TOKENS, ways[name], processing, rng=seed)
    for number, prompt in enumerate(prompts):
        first = number % len(names)
        texts = {
            name: decode(target, prompt, max_new_tokens, ways[name], processing, rng=[seed, number])
            for name in names[first:] + names[:first]
        }
        yield {name: texts[name] for name in names}
