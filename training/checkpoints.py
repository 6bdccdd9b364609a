"""Hugging Face folders: config.json beside model.safetensors."""

import json
import os
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def read(folder, device="cpu"):
    """(config, weights in float32) of a model folder."""
    folder = pathlib.Path(folder)
    weights = load_file(str(folder / "model.safetensors"))
    return json.loads((folder / "config.json").read_text()), {k: v.float().to(device) for k, v in weights.items()}


def write(folder, config, weights, tokenizer_from=None, float32=("A_log",)):
    """Writes bfloat16, but for the tensors whose names end in one of `float32`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer_from and pathlib.Path(tokenizer_from).resolve() != folder.resolve():
        for name in TOKENIZER_FILES:
            if (pathlib.Path(tokenizer_from) / name).exists():
                shutil.copy(pathlib.Path(tokenizer_from) / name, folder / name)
    stored = {}
    for name, tensor in weights.items():
        dtype = torch.float32 if name.endswith(float32) else torch.bfloat16
        stored[name] = tensor.detach().to("cpu", dtype).contiguous()
    # Renamed into place: weights that were read from the same file may still lie in it.
    save_file(stored, str(folder / "model.safetensors.new"), metadata={"format": "pt"})
    os.replace(folder / "model.safetensors.new", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
