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


class Decoder:
    """Both models at the end of a text that they write, with counters and times.

    ``draft`` is the draft model, the law of its trees and their rule; without it the target writes alone.
    """

    def __init__(
        self,
        target: Reader,
        draft: tuple[Reader, Callable[[Model], TreeLaw], TreeVerifier] | None,
        rng: np.random.Generator,
    ) -> None:
        self.decoded = Decoded()
        self._target = target
        self._draft = draft
        self._choices = Sampled(rng)
        self._since = perf_counter()

    def read_text(self) -> None:
        """Let both models read the text, so that no step has to."""
        for reader in (self._target, *(self._draft or ())[:1]):
            reader.read([()])
        self._spent("prompt")

    def step(self, keep: Callable[[Prefix], int]) -> Prefix:
        """Make one call of the target, and append the first ``keep(emitted)`` tokens of what it emits."""
        if self._draft is None:
            self._target.read([()])
            self._spent("target")
            emitted: Prefix = (self._choices.token(self._target(())),)
            drafted = 0
        else:
            reader, law_of, rule = self._draft
            law = law_of(reader)
            context = Context(self._target, law)
            tree = law.draft_tree(context, self._choices)
            read_trees([(tree, self._target, reader)], self._spent)
            emitted = rule.emit(context, tree, self._choices)
            drafted = len(tree.prefixes()) - 1
            for depth in range(1, len(emitted) + 1):
                if tree.node(emitted[: depth - 1]) is not None:
                    self.decoded.reached[depth] += 1
                    self.decoded.kept[depth] += depth < len(emitted)
        self._spent("verification")
        kept = emitted[: keep(emitted)]
        self._target.extend(kept)
        if self._draft is not None:
            self._draft[0].extend(kept)
        self._spent("rest")
        self.decoded.tokens += kept
        self.decoded.steps.append((len(kept), drafted))
        return kept

    def _spent(self, stage: str) -> None:
        """Add the time since the last stage ended to a stage."""
        now = perf_counter()
        self.decoded.seconds[stage] += now - self._since
        self._since = now


def decode(
    target: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int,
    speculation: Speculation | None = None,
    processing: Processing = _RAW,
    *,
    rng: RngLike,
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
    draft = None
    if speculation is not None:
        after = continuations(speculation.draft, prompt)
        reader = Reader(after, speculation.processing or processing)
        draft = (reader, speculation.law, speculation.rule)
    reading = Reader(continuations(target, prompt), processing)
    decoder = Decoder(reading, draft, validate_rng(rng))
    decoder.read_text()
    stops = target.stop_tokens
    tokens = decoder.decoded.tokens

    def keep(emitted: Prefix) -> int:
        ends = [i + 1 for i, token in enumerate(emitted) if token in stops]
        return min([left - len(tokens), *ends])

    while len(tokens) < left and not stops & {*tokens[-1:]}:
        decoder.step(keep)
    return decoder.decoded


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
