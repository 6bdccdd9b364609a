"""The target's own continuations with what drafters learn from: taps and final hidden states of every position.

All rows go through the recurrent form one token at a time, in place, so that a step is one CUDA graph; prompts are fed
through the same step. That is a few passes over the states a token, and nothing else: no prefill, no second forward.
"""

import torch
import torch.nn.functional as F

from target import attend, norm, rope_table, rotate


def recur(state, q, k, v, decay, beta):
    """One token of the gated delta rule, in place: state [B, h, V, K], q, k [B, h, K], v [B, h, V], decay, beta [B, h]
    -> o [B, h, V]. The state is read for what it says about k and q, and once more to be renewed."""
    about_k = (state * k[..., None, :]).sum(-1) * decay[..., None]
    about_q = (state * q[..., None, :]).sum(-1) * decay[..., None]
    residual = beta[..., None] * (v - about_k)
    state.copy_(state * decay[..., None, None] + residual[..., None] * k[..., None, :])
    return about_q + residual * (k * q).sum(-1, keepdim=True)


class Roller:
    """State of `rows` rows of at most `length` tokens, and the step that takes all of them one position on."""

    def __init__(self, target, rows, length, taps):
        self.target, self.taps, s = target, taps, target.s
        self.device = next(iter(target.w.values())).device
        def zeros(*shape, dtype=target.dtype):
            return torch.zeros(*shape, dtype=dtype, device=self.device)
        deltas, fulls = s.full.count(False), s.full.count(True)
        self.state = [zeros(rows, s.Hv, s.Vd, s.K, dtype=torch.float32) for _ in range(deltas)]
        self.conv = [zeros(rows, s.taps, s.channels) for _ in range(deltas)]
        self.kv = [[zeros(rows, s.Hkv, length, s.D) for _ in range(2)] for _ in range(fulls)]
        self.tokens, self.at = zeros(rows, length, dtype=torch.long), zeros(1, dtype=torch.long)
        self.hidden, self.tapped = zeros(rows, length, s.H), zeros(rows, length, len(taps) * s.H)
        self.prompt, self.temperature = zeros(rows, dtype=torch.long), zeros(rows, dtype=torch.float32)
        self.places = torch.arange(length, device=self.device)
        self.recur = torch.compile(recur) if self.device.type == "cuda" else recur

    def delta(self, at, u, i):
        """u [B, 1, H] -> the mixer's output; the layer's i-th state and conv rows go one token on."""
        t = self.target
        rows = self.conv[i]
        rows.copy_(torch.cat([rows[:, 1:], t.linear(at + "in_proj_qkv", u)], 1))
        kernel = t.w[at + "conv1d.weight"].float()[:, 0].T  # [taps, channels]
        mixed = F.silu((rows.float() * kernel).sum(1, keepdim=True))
        q, k, v, g, beta = (x[:, 0] for x in t.delta_inputs(at, mixed, u))
        o = self.recur(self.state[i], q, k, v, g.exp(), beta)
        return t.delta_output(at, o[:, None], u)

    def attention(self, at, u, i, cos, sin, seen):
        t, s = self.target, self.target.s
        q, k, v, gate = t.attention_inputs(at, u, cos, sin)
        for cache, new in zip(self.kv[i], (k, v)):
            cache.index_copy_(2, self.at, new.transpose(1, 2))
        q = q.unflatten(2, (s.Hkv, -1))[:, 0]  # the heads of a group are the queries of one key head
        o = attend(q, self.kv[i][0], self.kv[i][1], seen).flatten(1)[:, None]
        return t.linear(at + "o_proj", o * gate.sigmoid())

    def step(self):
        """Position `at` of every row: its tap and hidden state are kept, the next token is written, `at` moves on."""
        t, s = self.target, self.target.s
        x = t.embed(self.tokens.index_select(1, self.at))
        cos, sin = rope_table(self.at[:, None, None], s.rotary, s.theta, t.dtype)
        seen, kept, deltas, fulls = (self.places <= self.at)[None, None, None], {-1: x}, 0, 0
        for layer in range(s.L):
            at = f"{t.prefix}layers.{layer}."
            if s.full[layer]:
                x = t.sublayers(at, x, lambda u: self.attention(at + "self_attn.", u, fulls, cos, sin, seen))
                fulls += 1
            else:
                x = t.sublayers(at, x, lambda u: self.delta(at + "linear_attn.", u, deltas))
                deltas += 1
            kept[layer] = x
        hidden = norm(x, t.w[t.prefix + "norm.weight"], s.eps)
        self.hidden.index_copy_(1, self.at, hidden)
        if self.taps:
            self.tapped.index_copy_(1, self.at, torch.cat([kept[i] for i in self.taps], -1))
        logits = t.head(hidden[:, 0]).float()
        logits[:, t.valid_ids:] = float("-inf")
        noise = -torch.empty_like(logits).exponential_().log()
        chosen = (logits + self.temperature[:, None] * noise).argmax(-1)
        after = (self.at + 1).clamp(max=self.tokens.shape[1] - 1)
        given = self.tokens.index_select(1, after)[:, 0]
        self.tokens.index_copy_(1, after, torch.where(after >= self.prompt, chosen, given)[:, None])
        self.at += 1

    @torch.no_grad()
    def run(self, prompts, temperature):
        """prompts: lists of ids; temperature [rows]. Fills tokens, hidden and tapped of all rows."""
        length = self.tokens.shape[1]
        if max(map(len, prompts)) >= length:
            raise ValueError(f"a prompt has {max(map(len, prompts))} tokens, a row {length}; a longer row works")
        for one in [*self.state, *self.conv, *sum(self.kv, [])]:
            one.zero_()
        self.tokens.copy_(torch.tensor([list(p) + [0] * (length - len(p)) for p in prompts]))
        self.prompt.copy_(torch.tensor([len(p) for p in prompts]))
        self.temperature.copy_(temperature)
        self.at.zero_()
        # The last position has no next token to choose, so it takes no step: its hidden state stays zero.
        if self.device.type != "cuda":
            for _ in range(length - 1):
                self.step()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # real steps, which also warm up
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        for _ in range(length - 4):
            graph.replay()
        torch.cuda.synchronize()


def sample_prompts(documents, rows, lengths, seed, chat_share=0.19, doc_share=0.19):
    """`rows` prompts out of encoded documents: windows of code and docs, questions of chats up to their answer.

    documents: {"code": [ids], "doc": [ids], "chat": [(ids, length of the question)]}; lengths: (least, most).
    """
    generator = torch.Generator().manual_seed(seed)
    def draw(n):
        return int(torch.randint(n, (1,), generator=generator))
    sizes = {k: torch.tensor([float(len(ids)) for ids in documents[k]]).cumsum(0) for k in ("code", "doc")}
    prompts = []
    while len(prompts) < rows:
        coin = float(torch.rand(1, generator=generator))
        if coin < chat_share and documents["chat"]:
            ids, question = documents["chat"][draw(len(documents["chat"]))]
            if question <= lengths[1]:
                prompts.append(ids[:question])
            continue
        kind = "doc" if coin < chat_share + doc_share else "code"
        place = float(torch.rand(1, generator=generator)) * float(sizes[kind][-1])  # by size, so that windows are uniform
        ids = documents[kind][int(torch.searchsorted(sizes[kind], place))]
        size = lengths[0] + draw(lengths[1] - lengths[0] + 1)
        start = draw(max(1, len(ids) - size))
        prompts.append(ids[start: start + size])
    return prompts
