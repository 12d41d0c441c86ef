"""Speculative decoding on real models: draft a tree, check it in one call, keep a path of it, repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from otmd.laws.base import RngLike, validate_rng
from otmd.models.continuations import continuations
from otmd.models.draft_models import Draft
from otmd.models.language_models import LanguageModel
from otmd.models.tree_reading import read_trees
from otmd.probabilities import Processing, validate_count
from otmd.trees import TreeLaw, TreeVerifier
from otmd.trees.base import Context, Model, Prefix
from otmd.trees.random_choices import Sampled

STAGES: tuple[str, ...] = ("prompt", "draft", "target", "verification", "rest")
WARM_UP_TOKENS = 8
_RAW = Processing()


@dataclass
class Decoded:
    """A text that was decoded, and what it took.

    Attributes
    ----------
    tokens, steps : list of int, list of tuple of int
        The new tokens, including the one that ended the text; and for each call of the target model, the
        number of tokens that it yielded, and of those that were drafted for it.
    reached, kept : Counter
        For each depth: the number of steps that had drafts there below the path accepted so far, and the
        number of these steps that accepted one of them.
    seconds : dict of str to float
        Wall-clock time by stage: "prompt", in which both models read the prompt before the first step;
        then "draft", "target", "verification" and "rest".
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

    Attributes
    ----------
    draft, rule : Draft, TreeVerifier
        The draft model, over the target's tokens, and the rule that verifies its trees.
    law : callable
        Makes the law of the draft trees from the draft model, which is given as a callable, as in
        ``lambda model: IIDPaths(model, 4, 3)``.
    processing : Processing, optional
        From the draft model's logits to draft_probs; by default the same as for the target. At temperature 0,
        a tree with several drafts at one place needs another, since all mass is then on one token.
    """

    draft: Draft
    law: Callable[[Model], TreeLaw]
    rule: TreeVerifier
    processing: Processing | None = None


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
    target : LanguageModel
        The target model.
    prompt : sequence of int
        Token ids, not empty.
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
    decoder = _Decoder(target, prompt, speculation, processing, validate_rng(rng))
    left = validate_count("max_new_tokens", max_new_tokens, minimum=1)
    while left > 0:
        emitted = decoder.step(left)
        left -= len(emitted)
        if emitted[-1] in target.stop_tokens:
            break
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

    Parameters
    ----------
    target : LanguageModel
        The target.
    prompts : sequence of sequences of int
        Token ids, none empty.
    ways : mapping of str to Speculation or None
        How to speculate, by name; None is the target alone.
    max_new_tokens, processing
        As for :func:`otmd.models.decode`, which raises the same errors.
    seed : int
        Every way starts a prompt with the same random numbers, made from this and the prompt's index.

    Yields
    ------
    dict of str to Decoded
        For each prompt, the texts by the name of the way.
    """
    names = list(ways)
    for name in names:
        rng = np.random.default_rng(seed)
        decode(target, prompts[0], WARM_UP_TOKENS, ways[name], processing, rng=rng)
    for number, prompt in enumerate(prompts):
        texts = {}
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rng = np.random.default_rng([seed, number])
            texts[name] = decode(target, prompt, max_new_tokens, ways[name], processing, rng=rng)
        yield {name: texts[name] for name in names}


class _Decoder:
    """The target model and, if there is one, the draft model at the end of a text."""

    def __init__(
        self,
        target: LanguageModel,
        prompt: Sequence[int],
        speculation: Speculation | None,
        processing: Processing,
        rng: np.random.Generator,
    ) -> None:
        self.speculation = speculation
        self.processing = processing
        self.choices = Sampled(rng)
        self.stop_tokens = target.stop_tokens
        self.decoded = Decoded()
        self._since = perf_counter()
        self.target = continuations(target, prompt)
        self.target.logits([()])
        self.draft = continuations(speculation.draft, prompt) if speculation else None
        if self.draft is not None:
            self.draft.logits([()])
        self._spent("prompt")

    def step(self, left: int) -> Prefix:
        """Make one call of the target model: at most ``left`` tokens, none after a stop token."""
        self._since = perf_counter()
        emitted, drafted = self._emit()
        ends = [i + 1 for i, token in enumerate(emitted) if token in self.stop_tokens]
        emitted = emitted[: min([left, *ends])]
        self.target.extend(emitted)
        if self.draft is not None:
            self.draft.extend(emitted)
        self._spent("rest")
        self.decoded.tokens += emitted
        self.decoded.steps.append((len(emitted), drafted))
        return emitted

    def _emit(self) -> tuple[Prefix, int]:
        """The tokens of a step, and how many were drafted for it."""
        target, draft, speculation = self.target, self.draft, self.speculation
        if speculation is None or draft is None:
            target.logits([()])
            self._spent("target")
            token = self.choices.token(target.probs((), self.processing))
            self._spent("verification")
            return (token,), 0
        drafting = speculation.processing or self.processing
        law = speculation.law(lambda prefix: draft.probs(prefix, drafting))
        context = Context(lambda prefix: target.probs(prefix, self.processing), law)
        tree = law.draft_tree(context, self.choices)
        read_trees([(tree, target, draft)], self._spent)
        emitted = speculation.rule.emit(context, tree, self.choices)
        self._spent("verification")
        for depth in range(1, len(emitted) + 1):
            if tree.node(emitted[: depth - 1]) is not None:
                self.decoded.reached[depth] += 1
                self.decoded.kept[depth] += depth < len(emitted)
        return emitted, len(tree.prefixes()) - 1

    def _spent(self, stage: str) -> None:
        """Add the time since the last call, or since the step began, to a stage."""
        now = perf_counter()
        self.decoded.seconds[stage] += now - self._since
        self._since = now
