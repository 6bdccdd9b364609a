#!/usr/bin/env python3
"""Writes tests/golden/drafters: small random block drafters in every container and with every option, and what the
reference makes of them. training/make_drafter_goldens.py [FOLDER]; needs torch and safetensors, any CPU build.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

from block_drafters import BlockDrafter, Config, Yarn, shapes

TARGET_LAYERS, HIDDEN, VOCAB = 6, 32, 96
PLAIN = {"hidden_size": HIDDEN, "intermediate_size": 32, "vocab_size": VOCAB, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "num_hidden_layers": 2}
LAYER = PLAIN | {"rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False}
FULL, SLIDING = "full_attention", "sliding_attention"


def layer(**more):
    """The fields of a Qwen3 layer as all three containers have them."""
    return LAYER | {"layer_types": [FULL, FULL], "num_target_layers": TARGET_LAYERS} | more


# Name: config.json as published, and the same as the reference takes it.
INSTANCES = {
    # z-lab, the simplest form.
    "dflash": (
        layer(architectures=["DFlashDraftModel"], block_size=8,
              dflash_config={"mask_token_id": 95, "target_layer_ids": [0, 2, 4]}),
        {"taps": (0, 2, 4)},
    ),
    # Sliding layers are causal in the block by default, taps are spread by default, all scales at once.
    "dflash-swa": (
        layer(architectures=["DFlashDraftModel"], layer_types=[SLIDING, FULL], sliding_window=12,
              dflash_config={"mask_token_id": 94, "block_size": 6, "attention_sink_bias": True,
                             "attention_value_scale": 0.7, "input_embedding_scale": 1.5, "output_multiplier": 0.5,
                             "final_logit_softcapping": 5.0}),
        {"taps": (1, 3), "windows": (12, 0), "causal": (True, False), "block_size": 6, "mask_token_id": 94,
         "sinks": True, "value_scale": 0.7, "input_embedding_scale": 1.5, "output_multiplier": 0.5,
         "final_logit_softcapping": 5.0},
    ),
    # No layer_types: use_swa, which is not causal.
    "dflash-use-swa": (
        {key: value for key, value in layer(
            block_size=8, dflash_config={"mask_token_id": 95, "target_layer_ids": [2], "use_swa": True,
                                         "swa_window_size": 4}).items() if key != "layer_types"},
        {"taps": (2,), "windows": (4, 4)},
    ),
    # A vocabulary of its own, taps counted from the embedding, sliding layers not causal.
    "dflash-speculators": (
        {"speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"], "block_size": 7,
         "draft_vocab_size": 64, "aux_hidden_state_layer_ids": [0, 3], "mask_token_id": 95,
         "sliding_window_non_causal": True,
         "transformer_layer_config": LAYER | {"layer_types": [SLIDING, FULL], "sliding_window": 9}},
        {"taps": (-1, 2), "windows": (9, 0), "block_size": 7, "draft_vocab_size": 64},
    ),
    # DeepSpec's own DFlash: no Markov head, but its row convention.
    "dflash-deepspec": (
        layer(architectures=["Qwen3DSparkModel"], block_size=5, mask_token_id=95, target_layer_ids=[1, 4],
              num_anchors=16, markov_rank=0, is_causal=True),
        {"taps": (1, 4), "block_size": 5, "first_row_predicts": True, "causal": (True, True)},
    ),
    "dspark-vanilla": (
        layer(architectures=["Qwen3DSparkModel"], block_size=7, mask_token_id=95, target_layer_ids=[0, 3],
              num_anchors=16, markov_rank=8, markov_head_type="vanilla", enable_confidence_head=True,
              confidence_head_with_markov=True),
        {"taps": (0, 3), "block_size": 7, "first_row_predicts": True, "markov_rank": 8,
         "enable_confidence_head": True, "confidence_head_with_markov": True},
    ),
    # One more row than drafts, and a vocabulary of its own under a Markov head.
    "dspark-gated-speculators": (
        {"speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"], "block_size": 6,
         "sample_from_anchor": False, "draft_vocab_size": 64, "aux_hidden_state_layer_ids": [2, 4],
         "mask_token_id": 95, "markov_rank": 12, "markov_head_type": "gated", "enable_confidence_head": True,
         "confidence_head_with_markov": False,
         "transformer_layer_config": PLAIN | {
             "layer_types": [SLIDING, FULL], "sliding_window": 16,
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}},
        {"taps": (1, 3), "windows": (16, 0), "causal": (True, False), "block_size": 6, "draft_vocab_size": 64,
         "markov_rank": 12, "markov_head_type": "gated", "enable_confidence_head": True},
    ),
    # Fields at the top and nested, the architecture's name that others take for another model.
    "dspark-rnn": (
        layer(architectures=["DSparkDraftModel"], block_size=4, training_block_size=16, markov_rank=8,
              markov_head_type="rnn", enable_confidence_head=True, confidence_head_with_markov=True,
              dflash_config={"mask_token_id": 95, "target_layer_ids": [1, 2, 4], "projector_type": "dspark"}),
        {"taps": (1, 2, 4), "block_size": 4, "first_row_predicts": True, "markov_rank": 8, "markov_head_type": "rnn",
         "enable_confidence_head": True, "confidence_head_with_markov": True},
    ),
    "dflash2": (
        layer(architectures=["DFlash2DraftModel"], layer_types=[SLIDING, SLIDING], sliding_window=16, is_causal=False,
              dflash_config={"block_size": 8, "conv_group_size": 8, "conv_kernel_size": 2, "mask_token_id": 95,
                             "selector_rank": 8, "selector_top_k": 16, "target_layer_ids": [1, 2, 4]}),
        {"taps": (1, 2, 4), "windows": (16, 16), "conv_group_size": 8, "conv_kernel_size": 2, "selector_rank": 8,
         "selector_top_k": 16},
    ),
    "dflash2-speculators": (
        {"speculators_model_type": "dflash2", "architectures": ["DFlash2DraftModel"], "block_size": 5,
         "draft_vocab_size": VOCAB, "aux_hidden_state_layer_ids": [3], "mask_token_id": 95, "conv_kernel_size": 3,
         "conv_group_size": 16, "selector_rank": 4, "selector_top_k": 4, "output_multiplier": 0.25,
         "final_logit_softcapping": 8.0, "transformer_layer_config": LAYER | {"layer_types": [SLIDING, FULL],
                                                                             "sliding_window": 8}},
        {"taps": (2,), "windows": (8, 0), "block_size": 5, "conv_kernel_size": 3, "conv_group_size": 16,
         "selector_rank": 4, "selector_top_k": 4, "output_multiplier": 0.25, "final_logit_softcapping": 8.0},
    ),
    # A context stretched with YaRN; the ramp lies inside the eight pairs.
    "dspark-yarn": (
        layer(architectures=["DSparkDraftModel"], block_size=7, markov_rank=8, enable_confidence_head=True,
              confidence_head_with_markov=True, max_position_embeddings=262144,
              rope_scaling={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 8192},
              dflash_config={"mask_token_id": 95, "target_layer_ids": [1, 4], "projector_type": "dspark"}),
        {"taps": (1, 4), "block_size": 7, "first_row_predicts": True, "markov_rank": 8,
         "enable_confidence_head": True, "confidence_head_with_markov": True,
         "yarn": Yarn(factor=32.0, original_max_position_embeddings=8192)},
    ),
}


def random_tensor(name, shape, generator):
    """Magnitudes that keep every part visible in the output."""
    x = torch.randn(shape, generator=generator)
    if name == "d2t":  # ascending ids of the target, none of them padding or the mask
        return (torch.randperm(90, generator=generator)[: shape[0]].sort().values - torch.arange(shape[0]))
    if name.endswith("base_kernel"):
        x *= 0.3
        x[:, 0] += 1
    elif name.endswith("norm.weight"):
        x = 1 + 0.3 * x
    elif name.endswith(("lm_head.weight", "markov_w2.weight")):
        x *= 3 / shape[-1] ** 0.5
    elif len(shape) == 2 and not name.endswith(("codebook", "markov_w1.weight")):
        x *= shape[-1] ** -0.5
    return x.to(torch.bfloat16)


def write_instance(folder, published, config, target, generator):
    weights = {name: random_tensor(name, shape, generator) for name, shape in shapes(config).items()}
    extra = {}
    if "speculators_model_type" in published:  # what such files carry besides
        extra = {"embed_tokens.weight": target["embed_tokens.weight"].to(torch.bfloat16),
                 "t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(published, indent=1) + "\n")
    prefix = "model." if config.markov_rank and not extra else ""
    named = {(prefix if name.startswith(("layers", "fc", "norm", "hidden")) else "") + name: x
             for name, x in weights.items()}
    save_file(named | extra, folder / "model.safetensors")
    as_float = {name: x if name == "d2t" else x.float() for name, x in weights.items()}
    drafter = BlockDrafter(config, as_float, target["embed_tokens.weight"], target["lm_head.weight"])
    cases, tensors = [], {}
    for i, (tokens, drafts) in enumerate([(37, config.drafts), (5, min(3, config.drafts))]):
        taps = torch.randn(tokens, len(config.taps) * HIDDEN, generator=generator)
        anchor = int(torch.randint(90, (), generator=generator))
        out = drafter.draft(taps, anchor, drafts)
        cases.append({"anchor": anchor, "drafts": out.pop("drafts"), "gaps": out.pop("gaps")})
        tensors[f"{i}.taps"] = taps
        for name, x in out.items():
            tensors[f"{i}.{name}"] = x.contiguous().int() if name == "candidates" else x.contiguous()
    (folder / "golden.json").write_text(json.dumps({"cases": cases}) + "\n")
    save_file(tensors, folder / "golden.safetensors")
    return min(gap for case in cases for gap in case["gaps"])


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/drafters"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    generator = torch.Generator().manual_seed(5)
    target = {name: torch.randn(VOCAB, HIDDEN, generator=generator) * scale
              for name, scale in (("embed_tokens.weight", 1.0), ("lm_head.weight", 3 / HIDDEN**0.5))}
    root.mkdir(parents=True, exist_ok=True)
    save_file(target, root / "target.safetensors")
    for seed, (name, (published, fields)) in enumerate(INSTANCES.items()):
        config = Config(**{"hidden_size": HIDDEN, "intermediate_size": PLAIN["intermediate_size"], "vocab_size": VOCAB,
                           **fields})
        with torch.no_grad():
            gap = write_instance(root / name, published, config, target, torch.Generator().manual_seed(100 + seed))
        print(f"{name}: {config.drafts} drafts, least gap between a draft and the next best {gap:.3f}")


if __name__ == "__main__":
    main()
