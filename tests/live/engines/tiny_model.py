"""Writes a tiny random chat model with its tokenizer; run by an engine's interpreter.

`python tiny_model.py FOLDER SEED` needs numpy, safetensors and tokenizers. The tokenizer learns from the
standard library's sources and the weights come from the seed, so the same versions write the same bytes.
"""

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1024
HIDDEN, MLP, LAYERS = 64, 128, 2
HEADS, KV_HEADS, HEAD_DIM = 2, 1, 64
MAX_TOKENS = 8192
# Large enough that the next token depends visibly on the context, small enough for a broad distribution.
WEIGHT_SCALE = 0.25

PAD, START, END = CONTROL = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Added but not special, so that they stay in the text, where the engines' parsers look for them.
MARKUP = "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"

# Far from the policy on purpose: a test sees at once when a server's own defaults get into a request.
OFF_POLICY_DEFAULTS = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}


def write_model(folder: Path, seed: int) -> None:
    """Write the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    pad, end = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END)
    write_json(folder / "tokenizer_config.json", tokenizer_config())
    write_json(folder / "config.json", model_config() | {"eos_token_id": end, "pad_token_id": pad})
    write_json(
        folder / "generation_config.json",
        OFF_POLICY_DEFAULTS | {"eos_token_id": [end, pad], "pad_token_id": pad},
    )
    save_file(dict(weights(seed)), folder / "model.safetensors", metadata={"format": "pt"})


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer whose last ids are the control and markup tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL) - len(MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer.train_from_iterator((source.read_text("utf-8", "ignore") for source in sources), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    return tokenizer


def tokenizer_config() -> dict:
    """How transformers wraps the tokenizer, with the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "bos_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_TOKENS,
        "chat_template": Path(__file__).with_name("tiny_chat_template.jinja").read_text().strip(),
    }


def model_config() -> dict:
    """The architecture: Qwen3, which both engines run unchanged."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "bos_token_id": None,
    }


def weights(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each parameter by name; their order is part of what a seed means."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int, scale: float = WEIGHT_SCALE) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    yield "model.embed_tokens.weight", drawn(VOCAB_SIZE, HIDDEN, scale=1.0)
    yield "lm_head.weight", drawn(VOCAB_SIZE, HIDDEN)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        for name, shape in layer_shapes().items():
            value = drawn(*shape) if len(shape) > 1 else np.ones(shape, np.float32)
            yield f"model.layers.{layer}.{name}.weight", value


def layer_shapes() -> dict[str, tuple[int, ...]]:
    """The parameters of one layer; norms have one dimension."""
    return {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }


def write_json(path: Path, content: dict) -> None:
    """One readable JSON file."""
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), int(sys.argv[2]))
