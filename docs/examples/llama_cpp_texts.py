"""Let llama.cpp's server write texts with a draft model, for `otmd audit --oracle`.

    python llama_cpp_texts.py target.gguf draft.gguf texts.jsonl

Run by the tests with xllamacpp 2026.10.11549, which has the server in a Python package.
"""

import json
import sys

import xllamacpp

# No cut but the temperature, and the ids of the tokens in the answer.
SETTINGS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"], "n_probs": 1}


def serve(target, draft=None, *, probabilistic=False):
    """A server with one thread for each model: threads that spin slow each other down."""
    params = xllamacpp.CommonParams()
    params.model.path = str(target)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    exact = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_k = params.cache_type_v = exact
    threads = [params.cpuparams, params.cpuparams_batch]
    if draft is not None:
        kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        params.speculative.types = [kind]
        drafting = params.speculative.draft
        drafting.mparams.path = str(draft)
        drafting.n_max, drafting.n_min, drafting.p_min = 3, 0, 0.0
        drafting.cache_type_k = drafting.cache_type_v = exact
        drafting.probabilistic = probabilistic
        threads += [drafting.cpuparams, drafting.cpuparams_batch]
    for settings in threads:
        settings.n_threads = 1
    return xllamacpp.Server(params)


def answers(server, prompt, count, temperature=0.8):
    """Completions of a prompt of token ids, each with a seed of its own."""
    request = {"prompt": prompt, "n_predict": 12, "temperature": temperature} | SETTINGS
    return [server.handle_completions(request | {"seed": 1000 + i}) for i in range(count)]


def tokens_of(answer):
    """The tokens of an answer: ``id`` and ``logprob`` of each."""
    return answer["choices"][0]["logprobs"]["content"]


def as_texts(prompt, listed):
    """What `otmd audit --oracle` reads: the ids of the prompt and of each output."""
    return [
        {"prompt_tokens": prompt, "output_tokens": [token["id"] for token in tokens_of(answer)]}
        for answer in listed
    ]


if __name__ == "__main__":
    target, draft, path = sys.argv[1:]
    written = as_texts([1, 5, 6], answers(serve(target, draft, probabilistic=True), [1, 5, 6], 1500))
    with open(path, "w") as file:
        file.writelines(json.dumps(text) + "\n" for text in written)
