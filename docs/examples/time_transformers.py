"""Time draft trees inside transformers' `generate` against `generate` alone and assisted generation.

`python time_transformers.py [tokens] [temperature …]`: the default model on one thread, its weights packed
for all ways alike. The ways take turns on each prompt. Times are of the processor, so other load on the
machine changes them little.
"""

import sys
import time

import torch

import otmd
from otmd.models import load_draft, load_prompts, load_target, pack_weights
from otmd.models.collection import held_out_corpus
from otmd.models.prompts import prompt_tokens

PROMPTS = ("code", "maths", "chat")


def ways_of(target, prompts):
    """Settings of `generate`, by the name of the way."""
    counted = load_draft("ngram+context", target, held_out_corpus("ngram+context", target, prompts, False))
    skipping = load_draft("skip:13,15,17", target)
    ours = {"custom_generate": otmd.generate, "return_dict_in_generate": True}
    return {
        "generate alone": {},
        "assisted, skip:13,15,17": {"assistant_model": skipping.model},
        "prompt lookup, 5 tokens": {"prompt_lookup_num_tokens": 5},
        "otmd, n-gram, 2 paths of 3": ours | {"draft": counted, "branching": (2, 1, 1)},
        "otmd, n-gram, 2 paths of 8": ours | {"draft": counted},
        "otmd, skip:13,15,17, 2 paths of 3": ours | {"draft": skipping, "branching": (2, 1, 1)},
    }


def measure(target, prompts, ways, temperature, tokens):
    """Print the tokens per second of each way, and its tokens per step where it says so."""
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
    seconds, written, steps = (dict.fromkeys(ways, 0) for _ in range(3))
    for number, prompt in enumerate([prompts[0], *prompts]):
        ids = torch.tensor([prompt_tokens(target.tokenizer, prompt)])
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            torch.manual_seed(number)
            start = time.process_time()
            # The first round compiles and does not count.
            output = target.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens if number else 4,
                **({"do_sample": False} | sampling | ways[name]),
            )  # fmt: skip
            if number:
                seconds[name] += time.process_time() - start
                text = getattr(output, "sequences", output)
                written[name] += text.shape[1] - ids.shape[1]
                steps[name] += len(getattr(output, "steps", ()))
    alone = written["generate alone"] / seconds["generate alone"]
    for name in ways:
        rate = written[name] / seconds[name]
        per_step = f"{written[name] / steps[name]:.2f}" if steps[name] else ""
        print(
            f"| {temperature:g} | {name} | {per_step} | {rate:.1f} | {rate / alone:.2f} |",
            flush=True,
        )


def main(tokens=32, *temperatures):
    """Measure at each temperature."""
    torch.set_num_threads(1)
    target = pack_weights(load_target(device="cpu", progress=False))
    prompts = load_prompts(PROMPTS, 1, progress=False)
    ways = ways_of(target, prompts)
    for temperature in temperatures or (0.0, 0.7):
        measure(target, prompts, ways, float(temperature), int(tokens))


if __name__ == "__main__":
    main(*sys.argv[1:])
