"""Acceptance of block drafters on held-out prompts, greedy and at temperature 1, in two ways.

`along_output` decodes the prompts once, plainly, drafts at every place of that output at once, and walks: a step keeps
drafts as long as they are the output's own tokens; at temperature 1 a place is kept with probability
min(1, q(x) / p(x)), which for a token x that the target drew is the chance that it came as an accepted draft. Lengths
of steps have exactly the law of draft, verify and reject, for the price of one decoding. `draft_and_verify` is that loop
itself, every step with a whole forward: slow, and how the first is checked.
"""

import math

import torch

from drafters import Blocks, selected
from rollout import Roller
from target import Target

TOKENS = 128  # of each prompt, the prefill's included


def laws(blocks, hidden, before, top_k, valid_ids):
    """Logits that a row of any drafter draws from: hidden [N, m, H], before [N, m] -> [N, m, V] float32."""
    base = torch.nn.functional.linear(hidden, blocks.lm_head).float()
    base[..., valid_ids:] = float("-inf")
    more = blocks.correction(hidden, before)
    scores = base if more is None else base + more.float()
    return selected(base, scores, top_k) if top_k else scores


def walk(kept, lengths, drafts):
    """Steps of one output: kept [P] of bool rows [m]; yields the tokens of each step. The last are cut by the end."""
    place, left = 0, lengths - 1
    while left > 0:
        window = min(drafts, left - 1)
        a = 0
        while a < window and kept[place][a]:
            a += 1
        yield a + 1, window
        place, left = place + a + 1, left - a - 1


class Tally:
    """Lengths of steps by prompt and acceptance by draft position."""

    def __init__(self, categories, drafts):
        self.steps, self.drafts, self.categories = {}, drafts, categories
        self.offered, self.taken = [0] * drafts, [0] * drafts

    def add(self, prompt, tokens, window):
        self.steps.setdefault(prompt, []).append(tokens)
        for j in range(min(tokens, window)):  # a step stops at the first draft that does not stay
            self.offered[j] += 1
            self.taken[j] += tokens > j + 1

    def summary(self):
        means = {i: sum(s) / len(s) for i, s in self.steps.items()}
        every = [t for s in self.steps.values() for t in s]
        by = {}
        for category in dict.fromkeys(self.categories):
            chosen = [t for i, s in self.steps.items() if self.categories[i % len(self.categories)] == category for t in s]
            by[category] = round(sum(chosen) / len(chosen), 3)
        return {"length": round(sum(every) / len(every), 3), "request_mean": round(sum(means.values()) / len(means), 3),
                "categories": by, "steps": len(every),
                "conditional": [round(t / max(1, o), 3) for t, o in zip(self.taken, self.offered)]}


@torch.no_grad()
def bits_per_byte(target, tokenizer, texts, length=2048):
    """How well the target predicts texts, each cut into pieces of `length` tokens of which the first is given."""
    device, nats, size = target.w["model.norm.weight"].device, 0.0, 0
    for text in texts:
        for ids in torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids).split(length):
            if len(ids) < 2:
                continue
            logits = target.head(target.forward(ids[None, :-1].to(device))[0])[0, :, : target.valid_ids].float()
            nats += float(torch.nn.functional.cross_entropy(logits, ids[1:].to(device), reduction="sum"))
            size += len(tokenizer.decode(ids[1:].tolist()).encode())
    return nats / math.log(2) / size


@torch.no_grad()
def decode(target, prompts, taps, temperature, tokens, margin, seed):
    """Plain decoding of all prompts at once: a Roller behind its run."""
    torch.manual_seed(seed)
    longest = max(len(p["ids"]) for p in prompts)
    roller = Roller(target, len(prompts), longest + tokens + margin, taps)
    roller.run([p["ids"] for p in prompts], torch.full((len(prompts),), float(temperature)))
    return roller


@torch.no_grad()
def along_output(roller, target, config, weights, prompts, temperature, tokens=TOKENS, rounds=8, seed=0):
    """Acceptance of one drafter on an output of `decode`; at temperature 1 the mean over `rounds` draws of coins."""
    device, m, dtype = roller.tokens.device, config.drafts, target.dtype
    blocks = Blocks(config, {k: w.to(device, dtype) for k, w in weights.items()}, *[target.w["model.embed_tokens.weight"]] * 2)
    tally = Tally([p["category"] for p in prompts], m)
    generator = torch.Generator().manual_seed(seed)
    for i, prompt in enumerate(prompts):
        anchors = len(prompt["ids"]) + torch.arange(tokens, device=device)
        end = int(anchors[-1]) + m + 1
        ids = roller.tokens[i: i + 1, :end]
        hidden = blocks.hidden(ids, roller.tapped[i: i + 1, :end], anchors[None])[0]
        behind = anchors[:, None] + torch.arange(1, m + 1, device=device)
        labels, before = ids[0][behind], ids[0][behind - 1]
        q = laws(blocks, hidden, before, config.selector_top_k, target.valid_ids)
        if temperature == 0:
            kept = [(q.argmax(-1) == labels).tolist()]
        else:
            p = target.head(roller.hidden[i][behind - 1]).float()
            p[..., target.valid_ids:] = float("-inf")
            qx, px = ((z / temperature).softmax(-1).gather(-1, labels[..., None])[..., 0] for z in (q, p))
            chance = (qx / px.clamp(min=1e-20)).cpu()
            kept = [(torch.rand(chance.shape, generator=generator) < chance).tolist() for _ in range(rounds)]
        for r, coins in enumerate(kept):
            for length, window in walk(coins, tokens, m):
                tally.add(i + r * len(prompts), length, window)
    return tally.summary()


def draft(blocks, target, tokens, taps, place, temperature):
    """Drafts [B, m] behind the anchors at place [B], and their laws [B, m, V], drawn one row behind the other."""
    c = blocks.c
    hidden = blocks.hidden(tokens, taps, place[:, None])[:, 0]
    before, drafts, drawn_from = tokens.gather(1, place[:, None])[:, 0], [], []
    for j in range(c.drafts):
        z = laws(blocks, hidden[:, j: j + 1], before[:, None], c.selector_top_k, target.valid_ids)[:, 0]
        q = (z / temperature).softmax(-1) if temperature else None
        before = torch.multinomial(q, 1)[:, 0] if temperature else z.argmax(-1)
        drafts.append(before)
        drawn_from.append(q)
    return torch.stack(drafts, 1), drawn_from


@torch.no_grad()
def draft_and_verify(target: Target, config, weights, prompts, temperature, tokens=TOKENS, seed=0):
    """The loop with rejection sampling, all prompts side by side. Returns (summary, outputs [B][tokens])."""
    torch.manual_seed(seed)
    device, m, dtype = next(iter(target.w.values())).device, config.drafts, target.dtype
    blocks = Blocks(config, {k: w.to(device, dtype) for k, w in weights.items()}, *[target.w["model.embed_tokens.weight"]] * 2)
    lengths = torch.tensor([len(p["ids"]) for p in prompts], device=device)
    ids = torch.zeros(len(prompts), int(lengths.max()) + tokens + m + 1, dtype=torch.long, device=device)
    for i, prompt in enumerate(prompts):
        ids[i, : len(prompt["ids"])] = torch.tensor(prompt["ids"], device=device)

    def law_of(hidden):
        z = target.head(hidden).float()
        z[..., target.valid_ids:] = float("-inf")
        return (z / temperature).softmax(-1) if temperature else z.softmax(-1)

    def choose(p):
        return torch.multinomial(p, 1)[:, 0] if temperature else p.argmax(-1)

    tally, everyone = Tally([p["category"] for p in prompts], m), torch.arange(len(prompts), device=device)
    hidden, taps = target.forward(ids, config.taps)
    place = lengths.clone()  # of the anchor
    ids[everyone, place] = choose(law_of(hidden[everyone, place - 1]))
    while True:
        left = tokens - 1 - (place - lengths)
        if int(left.max()) <= 0:
            break
        drafts, q = draft(blocks, target, ids, taps, place, temperature)
        window = place[:, None] + torch.arange(1, m + 1, device=device)
        live = left > 0
        ids[live] = ids[live].scatter(1, window[live], drafts[live])
        hidden, taps = target.forward(ids, config.taps)
        room = (left - 1).clamp(0, m)
        kept, going, bonus = torch.zeros_like(place), live.clone(), None
        for j in range(m + 1):
            p = law_of(hidden[everyone, (place + j).clamp(max=ids.shape[1] - 1)])
            own = choose(p)
            bonus = own if bonus is None else torch.where(going, own, bonus)  # of the row that ends the step
            if j == m:
                break
            d = drafts[:, j]
            if temperature:
                px, qx = p.gather(1, d[:, None])[:, 0], q[j].gather(1, d[:, None])[:, 0]
                stays = torch.rand(len(prompts), device=device) * qx < px
                residual = (p - q[j]).clamp(min=0)
                total = residual.sum(-1, keepdim=True)
                instead = torch.multinomial(torch.where(total > 0, residual, p), 1)[:, 0]
                bonus = torch.where(going & (j < room) & ~stays, instead, bonus)
            else:
                stays = d == own
            going = going & (j < room) & stays
            kept += going
        for i in torch.nonzero(live)[:, 0].tolist():
            tally.add(i, int(kept[i]) + 1, int(room[i]))
        place = torch.where(live, place + kept + 1, place)
        ids[live] = ids[live].scatter(1, place[live][:, None], bonus[live][:, None])
    outputs = [ids[i, n: n + tokens].tolist() for i, n in enumerate(lengths.tolist())]
    return tally.summary(), outputs


def table(results):
    """Markdown of {drafter: {temperature: summary}}."""
    lines = ["| drafter | T | tokens a step, pooled | mean of requests | by category | conditional acceptance by position |",
             "|---|--:|--:|--:|---|---|"]
    for name, by_temperature in results.items():
        for temperature, r in by_temperature.items():
            categories = ", ".join(f"{k} {v:.2f}" for k, v in r["categories"].items())
            chain = " ".join(f"{v:.2f}"[1:] if v < 1 else "1" for v in r["conditional"])
            lines.append(f"| {name} | {temperature} | {r['length']:.3f} | {r['request_mean']:.3f} | {categories} | {chain} |")
    return "\n".join(lines)
