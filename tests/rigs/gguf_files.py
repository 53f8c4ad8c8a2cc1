"""A GGUF file of one small random layer, as llama.cpp's tools write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TURN = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
TEMPLATE = (
    "{% for m in messages %}" + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WIDTH, CONTEXT = 32, 64


def write_gguf(path: Path, architecture: str = "llama") -> dict[str, np.ndarray]:
    """Write the file -> its tensors."""
    import gguf

    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_license("apache-2.0")
    tokens = [*SPECIAL, *(_letter(byte) for byte in range(256)), "th"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    shapes = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH),
        "attn_output": (WIDTH, WIDTH), "ffn_gate": (2 * WIDTH, WIDTH), "ffn_up": (2 * WIDTH, WIDTH),
        "ffn_down": (WIDTH, 2 * WIDTH),
    }  # fmt: skip
    made = {f"blk.0.{name}": rng.normal(0, 0.05, shape) for name, shape in shapes.items()}
    made["token_embd"] = rng.normal(0, 0.05, (len(tokens), WIDTH))
    made |= dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), np.ones(WIDTH))
    tensors = {f"{name}.weight": value.astype(np.float32) for name, value in made.items()}
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _letter(byte: int) -> str:
    """The character by which byte-level BPE writes a byte (GPT-2's released encoder)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [other for other in range(256) if other not in shown]
    return chr(byte if byte in shown else 256 + hidden.index(byte))
