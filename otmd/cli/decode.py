"""``otmd decode``: write texts with draft trees, and see what it took."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveInt

from otmd.cli import UsageError
from otmd.cli.options import Json, split
from otmd.cli.tree_options import read_rule, read_tree, ways_of_decoding

if TYPE_CHECKING:
    from otmd.harness import Decoded, Draft, LanguageModel, Prompt

EXAMPLES = """Examples:

  otmd decode --prompts code --per-domain 2 --temperature 0

  otmd decode --prompt "Three primary colours are" --paths 4 --depth 3 --show

  otmd decode --branching 3,2,1 --rule traversal --draft skip:13,15,17 --figure decoding.png"""


def decode(
    *,
    target: str = "default",
    draft: str = "ngram+context",
    prompts: str = "code,maths,chat",
    per_domain: PositiveInt = 2,
    prompt: str | None = None,
    paths: PositiveInt | None = None,
    branching: str | None = None,
    law: str | None = None,
    likeliest: PositiveInt | None = None,
    depth: PositiveInt | None = None,
    rule: str | None = None,
    temperature: NonNegativeFloat = 1.0,
    top_k: PositiveInt | None = None,
    top_p: float | None = None,
    max_new_tokens: PositiveInt = 96,
    seed: NonNegativeInt = 0,
    device: str | None = None,
    model_dtype: str | None = None,
    threads: PositiveInt | None = None,
    show: bool = False,
    figure: list[Path] | None = None,
    json_output: Json = False,
    quiet: bool = False,
) -> None:
    """Write texts with draft trees, with a single draft path, and by the target alone, and compare.

    Every way gets the same prompts, in turn, on this machine. Times are wall-clock, and begin when the prompt
    has been read. On a CPU the target's weights are packed first, for all ways alike.

    Parameters
    ----------
    target : str
        The target model, as otmd collect takes it.
    draft : str
        The draft, as otmd collect takes it; ngram+context, the default, is an n-gram model that learns from
        the text as it is written.
    prompts : str
        Comma-separated: code, maths, chat, prose, or .jsonl and .txt files of your own.
    per_domain : int
        How many prompts from each of them.
    prompt : str
        One prompt instead, continued as it is.
    paths : int
        Tree: so many paths drawn independently, each --depth long.
    branching : str
        Tree: numbers of drafts level by level, 3,2,1, drawn by --law.
    law : str
        Of the drafts below a node of --branching: without-replacement unless given, with-replacement,
        conditional-poisson, greedy or hub.
    likeliest : int
        Tree: so many tokens on the draft's likeliest paths, at most --depth long. The default, with 12.
    depth : int
        The longest path; 4 unless given.
    rule : str
        recursive-rejection, k-sequential, spec-hub, greedy-coupling, target-only, optimal, maximal-coupling,
        block-verification or traversal; by default one that serves the tree.
    temperature : float
        Of the target, and of a draft that is sampled from.
    top_k : int
        Keep the k likeliest tokens.
    top_p : float
        Keep the likeliest tokens that together have this mass.
    max_new_tokens : int
        How long a text may be.
    seed : int
        Of the choice of prompts and of the sampling.
    device : str
        As torch calls it; cuda where there is one.
    model_dtype : str
        As torch calls it.
    threads : int
        Of torch on the CPU.
    show : bool
        Print the texts too.
    figure : list[Path]
        Draw milliseconds per token by stage into this file, .png, .pdf or .svg; may be given more than once.
    json_output : bool
        Print a JSON object instead of a table.
    quiet : bool
        Show no progress bar.
    """
    from otmd import harness
    from otmd.harness.progress import progress_bar
    from otmd.harness.sequences import prompt_tokens
    from otmd.measurement.style import figure_paths
    from otmd.probabilities import Processing

    try:
        processing = Processing(temperature, top_k, top_p)
        figures = figure_paths(figure or [], "--figure")
    except ValueError as error:
        raise UsageError(str(error)) from error
    tree = read_tree(paths, branching, law, likeliest, depth)
    named_rule = read_rule(rule, tree)
    progress = not (quiet or json_output)
    chosen = _prompts(prompt, prompts, per_domain, seed, progress)
    model = _target(target, device, model_dtype, threads, progress)
    ways = ways_of_decoding(_draft(draft, model, chosen, progress), tree, *named_rule, processing)
    texts: list[dict[str, Decoded]] = []
    report = partial(_report, model, chosen, texts, show, figures, json_output)
    try:
        tokens = [prompt_tokens(model.tokenizer, one) for one in chosen]
        finished = harness.decode_in_turn(model, tokens, ways, max_new_tokens, processing, seed)
        with progress_bar("decoding", len(chosen), progress) as update:
            for text in finished:
                texts.append(text)
                update(len(texts), "")
    except KeyboardInterrupt as stop:
        stop.add_note(f"{len(texts)} of {len(chosen)} prompts were finished")
        if texts:
            report()
            stop.add_note("and are what is printed.")
        raise
    report()


def _prompts(
    prompt: str | None, sources: str, per_domain: int, seed: int, progress: bool
) -> "list[Prompt]":
    from otmd.harness import Prompt, load_prompts

    if prompt is None:
        return load_prompts(split("--prompts", sources), per_domain, seed, progress=progress)
    if not prompt:
        raise UsageError("--prompt: got an empty text, wanted one to go on from")
    return [Prompt("prompt", "prompt", prompt, continuation=True)]


def _target(
    name: str, device: str | None, dtype: str | None, threads: int | None, progress: bool
) -> "LanguageModel":
    from otmd.harness import load_target, pack_weights
    from otmd.harness.variants import can_pack

    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    model = load_target(name, device, dtype, progress=progress)
    return pack_weights(model) if can_pack(model) else model


def _draft(spec: str, model: "LanguageModel", prompts: "list[Prompt]", progress: bool) -> "Draft":
    from otmd.harness import load_draft
    from otmd.harness.collection import held_out_corpus

    return load_draft(spec, model, held_out_corpus(spec, model, prompts, progress))


def _report(
    model: "LanguageModel",
    prompts: "list[Prompt]",
    texts: "list[dict[str, Decoded]]",
    show: bool,
    figures: list[Path],
    json_output: bool,
) -> None:
    from otmd.measurement import decoding_costs, decoding_json, draw_decoding, print_decoding

    costs = decoding_costs(texts)
    shown = []
    for one, text in zip(prompts, texts, strict=False) if show else ():
        spoken = {name: model.tokenizer.decode(found.tokens) for name, found in text.items()}
        shown.append({"prompt": one.id, "texts": spoken})
    if json_output:
        answer = {"target": model.backend, "ways": decoding_json(costs)}
        answer |= {"texts": shown} if show else {}
        print(json.dumps(answer | {"figures": [str(path) for path in figures]}, indent=1))
    else:
        for one in shown:
            for name, text in one["texts"].items():
                print(f"--- {one['prompt']}, {name}\n{text}\n")
        print_decoding(costs)
        print(
            f"\n{len(texts)} prompts; times are per token and begin when the prompt has been read. "
            f"{model.backend}"
        )
    # Last: where it cannot be written, what was measured has been printed.
    written = draw_decoding(costs, figures, source="otmd decode") if figures else []
    for path in () if json_output else written:
        print(f"Figure: {path}")
