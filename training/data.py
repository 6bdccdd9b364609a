"""Encoded corpora, and the target's own sequences that drafters learn from."""

import dataclasses
import itertools

import torch
from tokenizers import Tokenizer

import corpus
from rollout import Roller, sample_prompts

ANSWER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def documents(path, tokenizer_file, split="train"):
    """What sample_prompts takes: ids of each text by kind; of a chat also where its answer begins."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    found = {"code": [], "doc": [], "chat": []}
    rows = corpus.load(path, split)
    encoded = [one.ids for one in tokenizer.encode_batch([row["text"] for row in rows], add_special_tokens=False)]
    answer = tokenizer.encode(ANSWER, add_special_tokens=False).ids
    for row, ids in zip(rows, encoded):
        if row["kind"] != "chat":
            found[row["kind"]].append(ids)
            continue
        for i in range(len(ids) - len(answer)):
            if ids[i: i + len(answer)] == answer:
                found["chat"].append((ids, i + len(answer)))
                break
    return found, tokenizer


def stream(found, separator, seed, device):
    """One shuffled stream of all texts with `separator` between them, for training a target."""
    texts = found["code"] + found["doc"] + [ids for ids, _ in found["chat"]]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    ids = list(itertools.chain.from_iterable(texts[i] + [separator] for i in order))
    return torch.tensor(ids, device=device)


@dataclasses.dataclass
class Rollouts:
    tokens: torch.Tensor  # [N, L]
    taps: torch.Tensor  # [N, L, n * H]
    hidden: torch.Tensor  # [N, L, H], final; of the last position zero
    start: torch.Tensor  # [N]: where the target's own tokens begin
    greedy: torch.Tensor  # [N] bool; the others were drawn at temperature 1


def roll_out(target, found, taps, rows, times, length, prompt_lengths, seed):
    """`times` * rows sequences of `length` tokens, a third of them greedy: those are easier and loop."""
    parts = []
    torch.manual_seed(seed)
    roller = Roller(target, rows, length, taps)
    temperature = (torch.arange(rows) % 3 > 0).float()
    for i in range(times):
        prompts = sample_prompts(found, rows, prompt_lengths, seed + i)
        roller.run(prompts, temperature)
        tensors = (roller.tokens, roller.tapped, roller.hidden, roller.prompt, roller.temperature == 0)
        parts.append(tensors if times == 1 else tuple(x.clone() for x in tensors))
    return Rollouts(*(torch.cat(column) if times > 1 else column[0] for column in zip(*parts)))
