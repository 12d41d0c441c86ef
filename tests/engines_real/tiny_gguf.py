"""A tiny random Llama as a GGUF file, with float32 weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

VOCAB, WIDTH, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 32, 2, 4, 64, 256
BOS, EOS = 1, 2


def write_tiny_llama(path: Path, seed: int) -> Path:
    """Write a model of 64 tokens; its tokens say nothing, so prompts are given by their ids."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_settings(writer)

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        weights = rng.normal(size=shape) * scale / np.sqrt(shape[-1])
        writer.add_tensor(name, weights.astype(np.float32))

    add("token_embd.weight", VOCAB, WIDTH, scale=np.sqrt(WIDTH))
    ones = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", ones)
        writer.add_tensor(f"{block}.ffn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}.weight", WIDTH, WIDTH)
        add(f"{block}.ffn_gate.weight", FEED_FORWARD, WIDTH)
        add(f"{block}.ffn_up.weight", FEED_FORWARD, WIDTH)
        add(f"{block}.ffn_down.weight", WIDTH, FEED_FORWARD)
    writer.add_tensor("output_norm.weight", ones)
    add("output.weight", VOCAB, WIDTH, scale=2.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_settings(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    special = ["<unk>", "<s>", "</s>", "<0x0A>"]
    writer.add_token_list(special + [f"▁t{i}" for i in range(VOCAB - len(special))])
    writer.add_token_scores([0.0] * VOCAB)
    kinds = [
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.BYTE,
    ]
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (VOCAB - len(kinds)))
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
