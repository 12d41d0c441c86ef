"""vLLM on a CPU: ``python vllm_engine.py SCENARIO FOLDER``, where the folder has the models.

A process of its own, for vLLM 0.32.0 does not start on a CPU in one that has loaded Numba.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

SETTINGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 64,
    "max_num_seqs": 16,
    "dtype": "float32",
    "disable_log_stats": True,
}


def drafts(folder: Path, **more: str) -> dict:
    """Speculation with the draft model, and further settings."""
    model = {"method": "draft_model", "model": str(folder / "draft")}
    return model | {"num_speculative_tokens": 3} | more


def repair() -> None:
    """Replace the function of vLLM 0.32.0 that leaves its result unwritten on a CPU."""
    import torch
    import vllm.v1.sample.rejection_sampler as sampler

    def expand(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
        return torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts)

    sampler.expand_batch_to_tokens = expand


def write_texts(engine, path: Path, number: int, **settings) -> None:
    """Let the engine write texts of 40 tokens, and keep them for the audit of texts."""
    import vllm

    rng = random.Random(0)
    vocab_size = engine.model_config.get_vocab_size()
    prompts = [[rng.randrange(vocab_size) for _ in range(8)] for _ in range(number)]
    params = vllm.SamplingParams(max_tokens=40, ignore_eos=True, detokenize=False, **settings)
    outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    with path.open("w") as file:
        for prompt, output in zip(prompts, outputs, strict=True):
            row = {"prompt_tokens": prompt, "output_tokens": list(output.outputs[0].token_ids)}
            file.write(json.dumps(row) + "\n")


def in_process(folder: Path) -> None:
    """The draft model's sampled drafts, by vLLM's own code and by the class of the documentation; n-grams."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["OTMD_DRAFT"] = str(folder / "draft")
    import vllm

    from otmd.models.vllm_recorder import recorded

    def start(target: str = "target", **speculative):
        return vllm.LLM(str(folder / target), speculative_config=speculative, **SETTINGS)

    def record(engine, name: str, number: int, **settings) -> None:
        with recorded(folder / name):
            write_texts(engine, folder / f"{name}.jsonl", number, **settings)

    sampled = drafts(folder, draft_sample_method="probabilistic")
    # All start before the first token is recorded, which loads Numba.
    standard = start(**sampled)
    block = start(**sampled, rejection_sample_method="block")
    custom = start(method="custom_class", model="vllm_proposer.SampledDrafts", num_speculative_tokens=3)
    # The last one, for its drafter loads Numba too. In a small vocabulary, texts repeat themselves.
    lookup = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    ngram = start("small", **lookup, num_speculative_tokens=3)
    record(standard, "shipped", 8, temperature=0.8)
    record(ngram, "ngram_shipped", 40, temperature=0.8)
    record(standard, "greedy", 8, temperature=0.0)
    record(block, "block", 8, temperature=0.8)
    repair()
    record(standard, "repaired", 40, temperature=0.8)
    record(standard, "cuts", 40, temperature=0.8, top_k=50, top_p=0.9)
    record(custom, "custom", 40, temperature=0.8)
    record(ngram, "ngram", 80, temperature=0.8)


def interpret() -> None:
    """Let the V2 runner sample on a CPU: Triton's interpreter runs its kernels.

    vLLM takes Triton on a CPU only with a backend for it, which the published Triton lacks. The interpreter
    has no log1p, and reads masks in their own type.
    """
    import triton.backends
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver)
    libdevice.log1p = lambda x: tl.log(1.0 + x)
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def as_bool(mask):
        return TensorHandle(mask.data.astype(bool), mask.dtype)

    InterpreterBuilder.create_masked_load = lambda self, pointers, mask, *rest: load(
        self, pointers, as_bool(mask), *rest
    )
    InterpreterBuilder.create_masked_store = lambda self, pointers, value, mask, *rest: store(
        self, pointers, value, as_bool(mask), *rest
    )


def v2_runner(folder: Path) -> None:
    """The V2 model runner, by the interpreter: drafts that are sampled, and drafts that are not."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    interpret()
    import vllm
    import vllm.v1.sample.ops.topk_topp_sampler as cuts

    from otmd.models.vllm_recorder import recorded

    # Cuts by PyTorch: the interpreter cannot read the kernel.
    cuts.HAS_TRITON = False
    sampled = {"draft_sample_method": "probabilistic"}
    # The settings of each engine's drafts and requests, and the number of its texts.
    scenarios = {
        "standard": (sampled, {"temperature": 0.8, "top_k": 50, "top_p": 0.9}, 16),
        "block": (sampled | {"rejection_sample_method": "block"}, {"temperature": 0.8}, 16),
        "argmax": ({}, {"temperature": 0.8}, 8),
    }
    # All start before the first token is recorded, which loads Numba.
    engines = {
        name: vllm.LLM(str(folder / "target"), speculative_config=drafts(folder, **speculative), **SETTINGS)
        for name, (speculative, *_) in scenarios.items()
    }
    for name, (_, settings, number) in scenarios.items():
        with recorded(folder / f"v2_{name}"):
            write_texts(engines[name], folder / f"v2_{name}.jsonl", number, **settings)


def by_plugin(folder: Path) -> None:
    """The draft model's most likely tokens, by an engine in processes of its own."""
    import vllm

    engine = vllm.LLM(str(folder / "target"), speculative_config=drafts(folder), **SETTINGS)
    write_texts(engine, folder / "argmax.jsonl", 40, temperature=0.8)


if __name__ == "__main__":
    scenarios = {"in_process": in_process, "v2_runner": v2_runner, "by_plugin": by_plugin}
    scenarios[sys.argv[1]](Path(sys.argv[2]))
