"""Draft trees and layer verification on libllama's sequences, with texts for `otmd audit --oracle`.

    python llama_cpp_trees.py target.gguf draft.gguf texts.jsonl

Run by the tests with cyllama 0.2.18, a Python binding of llama.cpp b9190.
"""

import json
import sys

import cyllama.llama.llama_cpp as llama
import numpy as np
from scipy.special import softmax

import otmd
from otmd import trees
from otmd.trees.base import Context
from otmd.trees.random_choices import Sampled

PATHS, DEPTH, TEMPERATURE = 4, 3, 0.8


class Model(llama.LlamaModel):
    """A model whose logits can be read: cyllama's ``get_logits_ith`` asks for this name."""

    @property
    def n_vocab(self):
        """Size of the vocabulary."""
        return self.get_vocab().n_vocab


class Reader:
    """A model with its KV cache: it evaluates a text and the nodes of a draft tree."""

    def __init__(self, path, paths=PATHS):
        self.paths = paths
        self.model = Model(str(path), llama.LlamaModelParams())
        params = llama.LlamaContextParams()
        params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
        # A token may belong to several sequences only if all share one KV cache.
        params.n_seq_max, params.kv_unified = paths, True
        params.type_k = params.type_v = 0  # GGML_TYPE_F32: probabilities as exact as the oracle's
        self.context = llama.LlamaContext(self.model, params)

    def begin(self, prompt):
        """Forget the last text."""
        self.context.kv_cache_clear()
        self.text, self.num_read, self.probs = list(prompt), 0, {}

    def read(self, nodes, sequences):
        """One call of the model: the distributions after the nodes, of which the root is the text's end."""
        batch = llama.LlamaBatch(n_tokens=256, embd=0, n_seq_max=self.paths)
        rows = {}
        for node in nodes:
            if not node:
                for position in range(self.num_read, len(self.text) - 1):
                    batch.add(self.text[position], position, sequences(()), False)
            rows[node] = batch.n_tokens
            token = node[-1] if node else self.text[-1]
            batch.add(token, len(self.text) - 1 + len(node), sequences(node), True)
        self.context.decode(batch)
        for node, row in rows.items():
            logits = np.array(self.context.get_logits_ith(row), dtype=np.float64)
            self.probs[node] = softmax(logits / TEMPERATURE)

    def extend(self, emitted, sequence):
        """Append a step's tokens to the text, and copy the accepted path's sequence to all others."""
        self.text += emitted
        context = self.context
        self.num_read = min(len(self.text) - 1, context.memory_seq_pos_max(sequence) + 1)
        context.memory_seq_keep(sequence)
        context.memory_seq_rm(sequence, self.num_read, -1)
        for other in set(range(self.paths)) - {sequence}:
            context.memory_seq_cp(sequence, other, -1, -1)
        self.probs = {}


def write(target, draft, prompt, length, rng):
    """Continue a prompt by ``length`` tokens: the tokens, and how many calls of the target they took."""
    for model in (target, draft):
        model.begin(prompt)
    choices = Sampled(rng)
    calls = 0
    while len(target.text) < len(prompt) + length:
        emitted, sequence = step(target, draft, choices)
        for model in (target, draft):
            model.extend(emitted, sequence)
        calls += 1
    return target.text[len(prompt) :][:length], calls


def step(target, draft, choices):
    """Draw paths with different first tokens, evaluate them in one call, and verify the tree."""
    law = trees.TokenTree(draft.probs.__getitem__, (PATHS, *[1] * (DEPTH - 1)), otmd.Stratified)
    context = Context(target.probs.__getitem__, law)
    tree = law.draft_tree(context, choices)

    def sequences(node):
        """The path that a node is on; the text is on all of them."""
        return [tree.node(()).tokens.tolist().index(node[0])] if node else list(range(PATHS))

    for nodes in tree.grow():
        draft.read(nodes, sequences)
    target.read(tree.prefixes(), sequences)
    emitted = trees.LayerVerification().emit(context, tree, choices)
    return emitted, sequences(emitted[:-1])[0]


if __name__ == "__main__":
    paths, output = sys.argv[1:3], sys.argv[3]
    target, draft = map(Reader, paths)
    rng = np.random.default_rng(0)
    calls = 0
    with open(output, "w") as file:
        for _ in range(1500):
            tokens, needed = write(target, draft, [1, 5, 6], 12, rng)
            file.write(json.dumps({"prompt_tokens": [1, 5, 6], "output_tokens": tokens}) + "\n")
            calls += needed
    print(f"{1500 * 12 / calls:.2f} tokens per call of the target")
