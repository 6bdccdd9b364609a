#!/usr/bin/env python3
"""Writes tests/golden/rand-qwen3_5-dense/yarn.json: logits of the random dense model with a context stretched by YaRN.

Needs torch and transformers >= 5.2. Arithmetic is float32 on a CPU with eager attention, as in the other goldens.
"""
import json
import pathlib

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/rand-qwen3_5-dense"
# So short a context that the longest prompt leaves it, and the ramp lies inside the 32 pairs.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def main():
    config = json.loads((FOLDER / "config.json").read_text())
    config["rope_parameters"].update(YARN)
    model = Qwen3_5ForCausalLM.from_pretrained(
        FOLDER, config=Qwen3_5TextConfig(**config), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rotary = model.model.rotary_emb
    prompts = [prompt["ids"] for prompt in json.loads((FOLDER / "golden.json").read_text())["prompts"]]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0, -1].tolist() for ids in prompts]
    golden = {
        "rope_parameters": config["rope_parameters"],
        "attention_scaling": rotary.attention_scaling,
        "inv_freq": rotary.inv_freq.double().tolist(),
        "last_logits": logits,
    }
    (FOLDER / "yarn.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
