#!/usr/bin/env python3
"""Writes what the MTP head of models/tiny-py drafts behind the prompts of tests/golden/tiny-py, anew where the head is new;
the target's goldens, made by transformers, stay. Prints how far the logits are from those that were there.

The head runs over the whole sequence at once for each draft, without a cache, in float32 on a CPU. Norm, rotation and
attention are those of training/target.py, by which the target agrees with transformers.
"""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from target import norm, rope_table
from train_drafters import load_target

ROOT = pathlib.Path(__file__).resolve().parent.parent
DRAFTS = 3


def head_states(target, tokens, states):
    """States behind the head's rows: row r reads token r + 1 and the state behind token r, at place r; [rows, H]."""
    s, w, at = target.s, target.w, "mtp.layers.0."
    word = norm(target.embed(tokens[1:]), w["mtp.pre_fc_norm_embedding.weight"], s.eps)
    x = target.linear("mtp.fc", torch.cat([word, norm(states, w["mtp.pre_fc_norm_hidden.weight"], s.eps)], -1))[None]
    places = torch.arange(x.shape[1])
    cos, sin = rope_table(places[:, None], s.rotary, s.theta, target.dtype)
    causal = places[:, None] >= places
    x = target.sublayers(at, x, lambda u: target.attention(at + "self_attn.", u, causal, cos, sin))
    return norm(x[0], w["mtp.norm.weight"], s.eps)


def draft(target, ids, anchor):
    """Logits [DRAFTS, V] of greedy drafts behind ids and the token `anchor`."""
    states = target.forward(torch.tensor([ids]))[0][0]
    tokens, logits = [*ids, anchor], []
    for _ in range(DRAFTS):
        last = head_states(target, torch.tensor(tokens), states)[-1]
        logits.append(target.head(last)[: target.valid_ids])
        states, tokens = torch.cat([states, last[None]]), [*tokens, int(logits[-1].argmax())]
    return torch.stack(logits)


@torch.no_grad()
def main():
    model, folder = ROOT / "models/tiny-py", ROOT / "tests/golden/tiny-py"
    target = load_target(model, torch.device("cpu"))
    golden, tensors = json.loads((folder / "golden.json").read_text()), load_file(folder / "golden.safetensors")
    for i, prompt in enumerate(golden["prompts"]):
        logits = draft(target, prompt["ids"], prompt["anchor"])
        top, name = logits.topk(20), f"p{i}.mtp.top20_"
        drafts = top.indices[:, 0].tolist()
        agree = [a == b for a, b in zip(drafts, prompt["greedy"][1:])]
        prompt["drafts"]["mtp"] = {"drafts": drafts, "min_gap": float((top.values[:, 0] - top.values[:, 1]).min()),
                                   "accepted_greedy": (agree + [False]).index(False)}
        print(f"prompt {i}: {prompt['drafts']['mtp']}, off by {float((top.values - tensors[name + 'values']).abs().max()):.1e}")
        tensors[name + "ids"], tensors[name + "values"] = top.indices.int(), top.values.contiguous()
    save_file(tensors, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
