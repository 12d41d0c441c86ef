"""``otmd decode``: write texts with draft trees, and measure the cost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from cyclopts.types import NonNegativeFloat

from otmd.cli import UsageError
from otmd.cli import options as o
from otmd.cli.options import NonNegativeInt, PositiveInt
from otmd.registry import TREE_VERIFIERS
from otmd.storage.files import one_line

if TYPE_CHECKING:
    from otmd.models import Decoded, Draft, LanguageModel, Prompt, Speculation
    from otmd.probabilities import Processing
    from otmd.trees import TreeLaw, TreeVerifier

# The default tree: strata, so many drafts at the root and a path below each. At temperature 0 the most likely
# paths, since the target's text is then certain.
DEFAULT_WIDTH = 2
DEFAULT_STRATIFIED_DEPTH = 8
DEFAULT_DEPTH = 4
DEFAULT_MOST_LIKELY = 12
DEFAULT_DRAFT_TOP_K = 1024
# The rule for each kind of tree: the one in closed form that accepts most; target-only for other kinds.
DEFAULT_RULES = {
    "paths": "k-sequential",
    "with-replacement": "k-sequential",
    "without-replacement": "recursive-rejection",
    "greedy": "preference",
    "hub": "spec-hub",
    "stratified": "layer",
    "top-then": "preference",
    "independent": "recursive-rejection",
}
# The rule that decides token by token, where the default looks at the whole tree.
TOKEN_LEVEL_RULES = DEFAULT_RULES | {"stratified": "preference"}
# Before a model is loaded, the rule is tried on a tree over this many tokens.
TOY_TOKENS = 64
# The target alone, and one path.
NUM_BASELINES = 2

EXAMPLES = """
otmd decode
otmd decode --rule subtree --depth 6
otmd decode --quota 4 --draft skip:13,15,17
otmd decode --prompts code --per-domain 2 --temperature 0
otmd decode --prompt "Three primary colours are" --paths 4 --depth 3 --show
otmd decode --branching 3,2,1 --rule traversal --draft skip:13,15,17 --figure decoding.png"""


def decode(
    *,
    target: o.Target = "default",
    draft: o.Draft = "ngram+context",
    prompts: o.Prompts = "code,maths,chat",
    per_domain: o.PerDomain = 2,
    prompt: Annotated[str | None, o.INPUT] = None,
    paths: PositiveInt | None = None,
    branching: str | None = None,
    law: str | None = None,
    top: o.Top = 1,
    most_likely: PositiveInt | None = None,
    quota: PositiveInt | None = None,
    depth: PositiveInt | None = None,
    rule: str | None = None,
    temperature: Annotated[NonNegativeFloat, o.SAMPLING] = 1.0,
    draft_top_k: NonNegativeInt = DEFAULT_DRAFT_TOP_K,
    cuts: o.Cuts = o.NO_CUTS,
    max_new_tokens: o.MaxNewTokens = 96,
    repeats: Annotated[PositiveInt, o.ACCURACY] = 3,
    seed: o.Seed = 0,
    device: o.Device = None,
    model_dtype: o.ModelDtype = None,
    threads: Annotated[PositiveInt | None, o.RUN] = None,
    show: Annotated[bool, o.RUN] = False,
    figure: o.Figure = None,
    json_output: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Write texts with draft trees, with a single draft path, and by the target alone, and compare.

    The default tree has two paths of eight tokens, drafted from strata and verified layer by layer. A rule
    for whole trees is compared with the rule that decides token by token on the same trees.

    All ways decode the same prompts in turn on this machine. Times are wall-clock, and begin when the prompt
    has been read. On a CPU the target's weights are packed first, for all ways.

    Parameters
    ----------
    prompt : str
        One prompt in place of --prompts. Its text is continued without a chat template.
    paths : int
        Tree of this many paths drawn independently, each --depth long.
    branching : str
        Tree with this many drafts at each node, level by level, such as 3,2,1, drawn by --law.
    law : str
        The law of the drafts in a --branching tree, as for otmd measure; without-replacement unless given.
    most_likely : int
        Tree of this many tokens on the draft's most likely paths, at most --depth long. At temperature 0 the
        default, of 12 tokens.
    quota : int
        Adaptive tree with this many drafts from strata on each level, at the nodes of the largest estimated
        acceptance.
    depth : int
        The length of the longest path; 8 for the default tree and for --quota, else 4 unless given.
    rule : str
        layer, subtree, block-verification, traversal or greedy-multi-path for whole trees; token by token:
        recursive-rejection, k-sequential, spec-hub, preference, target-only or optimal; token is the best of
        these in closed form. By default one that serves the tree.
    temperature : float
        The temperature of the target, and of a draft that is sampled from.
    draft_top_k : int
        Sampled drafts come from so many of the draft's most likely tokens, so that verification need not look
        at the others; 0 keeps all.
    repeats : int
        How often everything is decoded. Speeds of single runs differ by the noise of the machine; the
        intervals are over the repeats.
    threads : int
        How many threads torch uses on the CPU.
    show : bool
        Also print the texts of the first repeat.
    """
    from otmd import models
    from otmd.models.progress import progress_bar
    from otmd.models.prompts import prompt_tokens

    processing = cuts.at(temperature)
    figures = o.figures(figure)
    if prompt == "":
        raise UsageError("--prompt: got an empty text, expected one to go on from")
    tree = read_tree(
        paths, branching, law, most_likely, depth, top, sampled=temperature > 0, quota=quota
    )
    named_rules = read_rules(rule, tree)
    # This imports torch, so the options are checked first.
    from otmd.models.collection import held_out_corpus
    from otmd.models.drafts import check_draft

    check_draft(draft)
    progress = not (quiet or json_output)
    if prompt:
        chosen = [models.Prompt("prompt", "prompt", prompt, continuation=True)]
    else:
        names = o.split("--prompts", prompts)
        chosen = models.load_prompts(names, per_domain, seed, progress=progress)
    model = _target(target, device, model_dtype, threads, progress)
    corpus = held_out_corpus(draft, model, chosen, progress)
    drafter = models.load_draft(draft, model, corpus)
    ways = ways_of_decoding(drafter, tree, named_rules, processing, draft_top_k)
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


def _target(
    name: str, device: str | None, dtype: str | None, threads: int | None, progress: bool
) -> "LanguageModel":
    from otmd.models import load_target, pack_weights
    from otmd.models.packing import can_pack

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    model = load_target(name, device, dtype, progress=progress)
    return pack_weights(model) if can_pack(model) else model


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
    # A rule for whole trees comes last, after the rule that decides token by token.
    names = list(texts[0])
    by_token = names[-2] if len(names) > NUM_BASELINES + 1 else None
    costs = decoding_costs(texts, repeats, by_token)
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
            f"\n{len(texts) // repeats} prompts, {repeats} times; times are per token and begin when the "
            f"prompt has been read. {model.backend}"
        )
        if repeats == 1:
            print("One repeat: a difference in speed may be noise; --repeats 5 tells.")
    # The figure comes last: if its file cannot be written, the numbers have been printed.
    written = draw_decoding(costs, figures, source="otmd decode") if figures else []
    for path in () if json_output else written:
        print(f"Figure: {path}")


class Tree(NamedTuple):
    """A draft tree that the options name: its kind, a label for headings, its depth, and its law."""

    kind: str
    label: str
    depth: int
    law: "Callable[[Any], TreeLaw]"


def read_tree(
    paths: int | None,
    branching: str | None,
    law: str | None,
    most_likely: int | None,
    depth: int | None,
    top: int = 1,
    sampled: bool = True,
    quota: int | None = None,
) -> Tree:
    """Read the options of a tree: at most one of ``paths``, ``branching``, ``most_likely`` and ``quota``.

    The default is a tree from strata, or of the most likely tokens where the target is not ``sampled``.
    """
    from otmd.laws import Stratified
    from otmd.trees import AdaptiveTree, IIDPaths, MostLikelyTree, TokenTree

    given = {
        "--paths": paths,
        "--branching": branching,
        "--most-likely": most_likely,
        "--quota": quota,
    }
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)}: got both, expected one shape of tree")
    if law is not None and branching is None:
        raise UsageError(f"--law: got {law!r} without --branching, whose nodes it is for")
    if branching is not None:
        if depth is not None:
            raise UsageError("--depth: got it with --branching, which says how deep it is")
        shape = tuple(o.counts("--branching", branching, ranges=False))
        name = law or "without-replacement"
        _, node_law = o.read_law(name, top)
        label = f"tree {'×'.join(map(str, shape))}, {name}"
        return Tree(name, label, len(shape), lambda model: TokenTree(model, shape, node_law))
    if quota is not None:
        quotas = (quota,) * (depth or DEFAULT_STRATIFIED_DEPTH)
        label = f"adaptive tree, {quota} on each of {len(quotas)} levels, stratified"
        law_of = lambda model: AdaptiveTree(model, quotas)  # noqa: E731
        return Tree("stratified", label, len(quotas), law_of)
    if not named and sampled:
        length = depth or DEFAULT_STRATIFIED_DEPTH
        shape = (DEFAULT_WIDTH, *(1,) * (length - 1))
        label = f"{DEFAULT_WIDTH} paths of {length}, stratified"
        return Tree("stratified", label, length, lambda model: TokenTree(model, shape, Stratified))
    length = depth or DEFAULT_DEPTH
    if paths is not None:
        label = f"{paths} paths of {length}"
        return Tree("paths", label, length, lambda model: IIDPaths(model, paths, length))
    budget = most_likely or DEFAULT_MOST_LIKELY
    label = f"most likely {budget}, depth {length}"
    return Tree("most-likely", label, length, lambda model: MostLikelyTree(model, budget, length))


def read_rule(name: str | None, tree: Tree) -> "tuple[str, TreeVerifier]":
    """Read the name of a rule, by default the one for this kind of tree; UsageError if it does not serve."""
    chosen = name or DEFAULT_RULES.get(tree.kind, "target-only")
    if chosen not in TREE_VERIFIERS:
        raise UsageError(f"--rule: got {chosen!r}, expected one of {', '.join(TREE_VERIFIERS)}")
    rule = TREE_VERIFIERS[chosen].load()()
    toy = np.full(TOY_TOKENS, 1 / TOY_TOKENS)
    try:
        rule.step(lambda _: toy, tree.law(lambda _: toy), rng=0)
    except ValueError as error:
        raise UsageError(f"--rule: {chosen} does not serve this tree: {error}") from error
    return chosen, rule


def read_rules(name: str | None, tree: Tree) -> "dict[str, TreeVerifier]":
    """The rule by its name; before a rule for whole trees, the one that decides token by token."""
    from otmd.trees import TokenLevel

    by_token = TOKEN_LEVEL_RULES.get(tree.kind, "target-only")
    chosen, rule = read_rule(by_token if name == "token" else name, tree)
    before = {} if isinstance(rule, TokenLevel) else dict([read_rule(by_token, tree)])
    return before | {chosen: rule}


def ways_of_decoding(
    draft: "Draft",
    tree: Tree,
    rules: "dict[str, TreeVerifier]",
    processing: "Processing",
    draft_top_k: int | None,
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
    } | {
        f"{tree.label}; {name}": Speculation(draft, tree.law, rule, of_tree)
        for name, rule in rules.items()
    }
