"""``otmd decode``: write texts with draft trees, and measure the cost."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import NonNegativeInt, PositiveInt, about
from otmd.registry import TREE_VERIFIERS
from otmd.storage.files import one_line

if TYPE_CHECKING:
    from otmd.models import Decoded, Draft, LanguageModel, Prompt, Speculation
    from otmd.probabilities import Processing
    from otmd.trees import TreeLaw, TreeVerifier

# The rule at each node of a kind of tree: the one in closed form that accepts most; target-only for others.
TOKEN_LEVEL_RULES = {
    "paths": "k-sequential",
    "with-replacement": "k-sequential",
    "without-replacement": "recursive-rejection",
    "greedy": "preference",
    "hub": "spec-hub",
    "stratified": "preference",
    "top-then": "preference",
    "independent": "recursive-rejection",
}
# Before a model is loaded, the rule is tried on a tree over this many tokens.
TOY_TOKENS = 64
# The target alone, and one path.
NUM_BASELINES = 2

EXAMPLES = """
otmd decode
otmd decode --prompts code --per-domain 2 --temperature 0
otmd decode --prompt "Three primary colours are" --paths 4 --depth 3 --show
otmd decode --branching 3,2,1 --rule traversal --draft skip:13,15,17 --figure decoding.png"""


class Tree(NamedTuple):
    """A draft tree that the options name: its kind, a label for headings, its depth, and its law."""

    kind: str
    label: str
    depth: int
    law: "Callable[[Any], TreeLaw]"


@Parameter(name="*")
@dataclass(frozen=True)
class TreeOptions:
    """The options of a tree and of the rule that verifies it."""

    paths: Annotated[PositiveInt | None, about("Tree of so many sampled paths, 4 deep by default.")] = None
    branching: Annotated[str | None, about("Drafts at each node by level, such as 3,2,1.")] = None
    law: Annotated[str | None, about("Law of --branching; without-replacement unless given.")] = None
    top: o.Top = 1
    most_likely: Annotated[PositiveInt | None, about("Tree of so many most likely tokens.")] = None
    quota: Annotated[PositiveInt | None, about("Adaptive tree: drafts on each level.")] = None
    depth: Annotated[PositiveInt | None, about("Length of paths; 8 by default.")] = None
    rule: Annotated[str | None, about(f"token, {', '.join(TREE_VERIFIERS)}.")] = None

    def tree(self, sampled: bool = True) -> Tree:
        """The tree. By default it is of strata, or of the most likely tokens if the target is not sampled."""
        from otmd.laws import Stratified
        from otmd.study.rows import uniform_law
        from otmd.trees import AdaptiveTree, IIDPaths, MostLikelyTree, TokenTree

        shapes = ("paths", "branching", "most_likely", "quota")
        named = [o.option_of(name) for name in shapes if getattr(self, name) is not None]
        if len(named) > 1:
            raise UsageError(f"{' and '.join(named)}: got both, expected one shape of tree")
        if self.law is not None and self.branching is None:
            raise UsageError(f"--law: got {self.law!r} without --branching, whose nodes it is for")
        if self.branching is not None:
            if self.depth is not None:
                raise UsageError("--depth: got it with --branching, which says how deep it is")
            shape = tuple(o.counts("--branching", self.branching, ranges=False))
            name = self.law or "without-replacement"
            _, law = o.read_law(name, self.top)
            try:
                for count in shape:
                    uniform_law(law, count)
            except ValueError as error:
                raise UsageError(f"--law: {name} has no such drafts: {error}") from error
            label = f"tree {'×'.join(map(str, shape))}, {name}"
            return Tree(name, label, len(shape), lambda model: TokenTree(model, shape, law))
        depth = self.depth or (4 if self.paths or self.most_likely or not (sampled or named) else 8)
        if self.paths is not None:
            count = self.paths
            return Tree(
                "paths",
                f"{count} paths of {depth}",
                depth,
                lambda model: IIDPaths(model, count, depth),
            )
        if self.quota is not None:
            quotas = (self.quota,) * depth
            label = f"adaptive tree, {self.quota} on each of {depth} levels, stratified"
            return Tree("stratified", label, depth, lambda model: AdaptiveTree(model, quotas))
        if named or not sampled:
            budget = self.most_likely or 12
            label = f"most likely {budget}, depth {depth}"
            return Tree("most-likely", label, depth, lambda model: MostLikelyTree(model, budget, depth))
        # Many drafts at the root and a path below each.
        shape = (2, *(1,) * (depth - 1))
        label = f"2 paths of {depth}, stratified"
        return Tree("stratified", label, depth, lambda model: TokenTree(model, shape, Stratified))

    def rules(self, tree: Tree) -> "dict[str, TreeVerifier]":
        """The rule by its name; before a rule for whole trees, the one that decides position by position."""
        from otmd.trees import TokenLevel

        by_token = TOKEN_LEVEL_RULES.get(tree.kind, "target-only")
        default = "layer" if tree.kind == "stratified" else by_token
        chosen = by_token if self.rule == "token" else self.rule or default
        if chosen not in TREE_VERIFIERS:
            raise UsageError(f"--rule: got {chosen!r}, expected one of {', '.join(TREE_VERIFIERS)}")
        rule = TREE_VERIFIERS[chosen].load()()
        toy = np.full(TOY_TOKENS, 1 / TOY_TOKENS)
        try:
            rule.step(lambda _: toy, tree.law(lambda _: toy), rng=0)
        except ValueError as error:
            raise UsageError(f"--rule: {chosen} does not serve this tree: {error}") from error
        if isinstance(rule, TokenLevel):
            return {chosen: rule}
        return {by_token: TREE_VERIFIERS[by_token].load()(), chosen: rule}


def decode(
    *,
    target: o.Target = "default",
    draft: o.Draft = "ngram+context",
    prompts: o.Prompts = "code,maths,chat",
    per_domain: o.PerDomain = 2,
    prompt: Annotated[str | None, o.INPUT, about("A text to continue, as it is.")] = None,
    shape: TreeOptions = TreeOptions(),
    temperature: Annotated[NonNegativeFloat, o.INPUT, about("Of target and draft.")] = 1.0,
    draft_top_k: Annotated[NonNegativeInt, o.RARE, about("As --top-k, for drafts.")] = 1024,
    cuts: o.Cuts = o.NO_CUTS,
    max_new_tokens: o.MaxNewTokens = 96,
    repeats: Annotated[PositiveInt, o.INPUT, about("Repetitions, for intervals.")] = 3,
    seed: o.Seed = 0,
    device: o.Device = None,
    model_dtype: o.ModelDtype = None,
    show: Annotated[bool, o.RUN, about("Also print the texts of the first repeat.")] = False,
    figure: o.Figure = None,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write texts with draft trees, with one draft path, and by the target alone, and compare."""
    from otmd.study.style import figure_paths

    processing = cuts.at(temperature)
    figures = figure_paths(figure or [], "figure")
    if prompt == "":
        raise UsageError("--prompt: got an empty text, expected one to go on from")
    tree = shape.tree(sampled=temperature > 0)
    rules = shape.rules(tree)
    # This imports torch, so the options are checked first.
    from otmd import models
    from otmd.models.collection import held_out_corpus
    from otmd.models.drafts import check_draft
    from otmd.models.packing import can_pack
    from otmd.models.progress import progress_bar
    from otmd.models.prompts import prompt_tokens

    check_draft(draft)
    progress = not (quiet or json_output)
    if prompt:
        chosen = [models.Prompt("prompt", "prompt", prompt, continuation=True)]
    else:
        chosen = models.load_prompts(o.split("--prompts", prompts), per_domain, seed, progress=progress)
    model = models.load_target(target, device, model_dtype, progress=progress)
    model = models.pack_weights(model) if can_pack(model) else model
    corpus = held_out_corpus(draft, model, chosen, progress)
    ways = ways_of_decoding(models.load_draft(draft, model, corpus), tree, rules, processing, draft_top_k)
    texts: list[dict[str, Decoded]] = []
    total = len(chosen) * repeats
    try:
        tokens = [prompt_tokens(model.tokenizer, item) for item in chosen]
        with progress_bar("decoding", total, progress) as update:
            for repeat in range(repeats):
                for text in models.decode_in_turn(
                    model, tokens, ways, max_new_tokens, processing, seed + repeat
                ):
                    texts.append(text)
                    update(len(texts), "")
    except KeyboardInterrupt as stop:
        printed = "; what is printed is of whole repeats" if texts else ""
        stop.add_note(f"{len(texts)} of {total} texts in each way were finished{printed}.")
        raise
    finally:
        if texts:
            _report(model, chosen, texts, show, figures, json_output)


def ways_of_decoding(
    draft: "Draft",
    tree: Tree,
    rules: "dict[str, TreeVerifier]",
    processing: "Processing",
    draft_top_k: int,
) -> "dict[str, Speculation | None]":
    """The ways by their names in tables: the target alone, one path of the tree's depth, and the tree."""
    from otmd.models import Speculation
    from otmd.probabilities import Processing
    from otmd.trees import IIDPaths, TokenLevel
    from otmd.verifiers import Preference

    path = lambda model: IIDPaths(model, 1, tree.depth)  # noqa: E731
    drafting = processing.cut_to(draft_top_k)
    # The most likely paths are those of the raw draft. At temperature 0, a node would have a single draft.
    of_tree = drafting
    if tree.kind == "most-likely":
        of_tree = Processing()
    elif processing.temperature == 0:
        of_tree = Processing(top_k=draft_top_k or None)
    return {
        "target alone": None,
        f"one path of {tree.depth}": Speculation(draft, path, TokenLevel(Preference()), drafting),
    } | {f"{tree.label}; {name}": Speculation(draft, tree.law, rule, of_tree) for name, rule in rules.items()}


def _report(
    model: "LanguageModel",
    prompts: "list[Prompt]",
    texts: "list[dict[str, Decoded]]",
    show: bool,
    figures: list[Path],
    json_output: bool,
) -> None:
    from otmd.study import decoding_costs, decoding_json, draw_decoding, print_decoding

    # The unfinished last repeat of an interrupted run is left out.
    repeats = max(1, len(texts) // len(prompts))
    texts = texts[: repeats * len(prompts)]
    # A rule for whole trees comes last, after the rule that decides position by position.
    names = list(texts[0])
    costs = decoding_costs(texts, repeats, names[-2] if len(names) > NUM_BASELINES + 1 else None)
    shown = [
        {"prompt": item.id, "texts": {k: model.tokenizer.decode(v.tokens) for k, v in text.items()}}
        for item, text in zip(prompts, texts if show else (), strict=False)
    ]
    if json_output:
        answer = {"target": model.backend, "repeats": repeats, "ways": decoding_json(costs)}
        answer |= {"texts": shown} if show else {}
        print(json.dumps(answer | {"figures": [str(path) for path in figures]}, indent=1))
    else:
        for item in shown:
            for name, text in item["texts"].items():
                # Control characters could change the terminal's state.
                safe = "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
                print(f"--- {one_line(item['prompt'])}, {name}\n{safe}\n")
        print_decoding(costs)
        print(
            f"\n{len(texts) // repeats} prompts, repeats: {repeats}; times are per token and begin when the "
            f"prompt has been read. {model.backend}"
        )
        if repeats == 1:
            print("One repeat: a difference in speed may be noise; --repeats 5 tells.")
    # The figure comes last: if its file cannot be written, the numbers have been printed.
    if figures:
        o.say_written(draw_decoding(costs, figures, source="otmd decode"))
