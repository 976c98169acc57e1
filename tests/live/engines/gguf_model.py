"""Turns a GGUF file into a Hugging Face folder in float32; run by an engine's interpreter.

`python gguf_model.py MODEL.gguf FOLDER` needs torch, transformers, accelerate and gguf.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def convert(gguf: Path, folder: Path) -> None:
    """Read weights and tokenizer out of the one file and save both the usual way."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    save_config(model, folder)
    save_weights(model, folder)


def save_config(model: PreTrainedModel, folder: Path) -> None:
    """Save the configuration as that of a model which never was quantized."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.dtype = "float32"
    config.save_pretrained(folder)


def save_weights(model: PreTrainedModel, folder: Path) -> None:
    """Save the weights ourselves: transformers refuses to save what came from GGUF."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: value.float().contiguous() for name, value in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
