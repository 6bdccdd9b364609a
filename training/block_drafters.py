"""DFlash, DFlash 2 and DSpark in plain PyTorch: one block at a time, no cache, nothing fused.

The oracle for the engine's drafters. Tensors are [tokens, features]; every function says its shapes. The weights are a
dict by the names of the checkpoints; what a config may say is `Config`, with one field for each way of computing.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Yarn:
    """Frequencies that turn less than beta_slow times within the original context are divided by factor, those that
    turn more than beta_fast times stay, and between them lies a ramp over the pairs of dims."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None  # of cos and sin; None: 0.1 ln(factor) + 1

    @property
    def amplitude(self):
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor


@dataclasses.dataclass
class Config:
    hidden_size: int = 32
    intermediate_size: int = 48
    vocab_size: int = 96  # the target's
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    yarn: Yarn | None = None  # a stretched context
    windows: tuple = (0, 0)  # of each layer: keys a query sees up to its own, 0 = all
    causal: tuple = (False, False)  # inside the block
    block_size: int = 8  # rows
    first_row_predicts: bool = False
    mask_token_id: int = 95
    taps: tuple = (0, 1, 2)  # target layers; -1 = the embedding
    sinks: bool = False
    value_scale: float = 1.0
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float = 0.0
    draft_vocab_size: int = 0  # 0 = the target's head
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    markov_rank: int = 0
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False

    @property
    def drafts(self):
        return self.block_size - (0 if self.first_row_predicts else 1)


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotary_frequencies(half, theta, yarn):
    """Angle a position of each of the `half` pairs: theta^(-d/half), stretched."""
    pairs = torch.arange(half, dtype=torch.float64)
    plain = theta ** (-pairs / half)
    if yarn is None:
        return plain
    turns = yarn.original_max_position_embeddings / (2 * math.pi) / torch.tensor([yarn.beta_fast, yarn.beta_slow])
    ends = half * turns.double().log() / math.log(theta)  # the pairs that turn so often, as real numbers
    low, high = max(float(ends[0].floor()), 0.0), min(float(ends[1].ceil()), 2 * half - 1.0)
    stretched = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - stretched) + plain / yarn.factor * stretched


def rope(x, positions, theta, yarn):
    """x [tokens, heads, D], pairs (d, d + D/2)."""
    half = x.shape[-1] // 2
    angles, amplitude = positions.double()[:, None] * rotary_frequencies(half, theta, yarn), yarn.amplitude if yarn else 1
    cos, sin = (amplitude * f(angles).to(x.dtype)[:, None] for f in (torch.cos, torch.sin))
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def visible(positions, window, causal, block_start):
    """Which of the keys at [0, last position] each block row sees: [rows, keys] of bool."""
    keys = torch.arange(int(positions[-1]) + 1)
    seen = (keys < block_start) | (not causal) | (keys[None] <= positions[:, None])
    if window > 0:
        seen = seen & (positions[:, None] - keys[None] <= window - 1)
    return seen


def attend(q, k, v, seen, sinks):
    """q [rows, Hq, D], k and v [keys, Hkv, D] -> [rows, Hq * D]. A sink joins the softmax and has no value."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~seen[None], float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    weights = scores.softmax(-1)[..., : k.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def dynamic_conv(x, delta, base, side, group):
    """x [rows, H], delta [rows, 2, K, G] of the rows' own, base [2, K, H]; rows before the first are zero."""
    out = torch.zeros_like(x)
    for back in range(base.shape[1]):
        kernel = base[side, back] + delta[:, side, back].repeat_interleave(group, -1)
        shifted = torch.cat([torch.zeros_like(x[:back]), x[: x.shape[0] - back]])
        out = out + kernel * shifted
    return out


class BlockDrafter:
    def __init__(self, config, weights, embed_tokens, lm_head):
        """embed_tokens and lm_head [V, H] are the target's; d2t [draft_vocab] holds offsets."""
        self.c, self.w, self.embed_tokens = config, weights, embed_tokens
        self.lm_head = weights["lm_head.weight"] if config.draft_vocab_size else lm_head

    def norm(self, name, x):
        return rms_norm(x, self.w[name + ".weight"], self.c.rms_norm_eps)

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"])

    def key_value(self, layer, x, positions):
        c, at = self.c, f"layers.{layer}.self_attn."
        k = self.linear(at + "k_proj", x).unflatten(-1, (-1, c.head_dim))
        v = self.linear(at + "v_proj", x).unflatten(-1, (-1, c.head_dim)) * c.value_scale
        return rope(self.norm(at + "k_norm", k), positions, c.rope_theta, c.yarn), v

    def sublayer(self, x, norm, conv, compute):
        """x + compute(norm(x)), with the convolutions around compute where there are some."""
        c, u = self.c, self.norm(norm, x)
        if c.conv_kernel_size == 0:
            return x + compute(u)
        groups = c.hidden_size // c.conv_group_size
        delta = self.linear(conv + ".kernel_projection", u).unflatten(-1, (2, c.conv_kernel_size, groups))
        base = self.w[conv + ".base_kernel"]
        inner = compute(dynamic_conv(u, delta, base, 0, c.conv_group_size))
        return x + dynamic_conv(inner, delta, base, 1, c.conv_group_size)

    def block(self, taps, anchor, rows):
        """taps [p, n * H] of the committed tokens, the anchor at position p -> hidden [rows, H] behind the last norm."""
        c, p = self.c, taps.shape[0]
        context = self.norm("hidden_norm", self.linear("fc", taps))
        before, positions = torch.arange(p), torch.arange(p, p + rows)
        ids = torch.tensor([anchor] + [c.mask_token_id] * (rows - 1))
        x = self.embed_tokens[ids] * c.input_embedding_scale
        for i in range(len(c.windows)):
            at = f"layers.{i}."

            def attention(u, i=i, at=at):
                q = self.linear(at + "self_attn.q_proj", u).unflatten(-1, (-1, c.head_dim))
                q = rope(self.norm(at + "self_attn.q_norm", q), positions, c.rope_theta, c.yarn)
                context_k, context_v = self.key_value(i, context, before)
                block_k, block_v = self.key_value(i, u, positions)
                k, v = torch.cat([context_k, block_k]), torch.cat([context_v, block_v])
                seen = visible(positions, c.windows[i], c.causal[i], p)
                sinks = self.w[at + "self_attn.attention_sink_bias"] if c.sinks else None
                return self.linear(at + "self_attn.o_proj", attend(q, k, v, seen, sinks))

            def mlp(u, at=at):
                gate, up = self.linear(at + "mlp.gate_proj", u), self.linear(at + "mlp.up_proj", u)
                return self.linear(at + "mlp.down_proj", F.silu(gate) * up)

            x = self.sublayer(x, at + "input_layernorm", at + "attention_conv", attention)
            x = self.sublayer(x, at + "post_attention_layernorm", at + "mlp_conv", mlp)
        return self.norm("norm", x)

    def head(self, hidden):
        c, z = self.c, F.linear(hidden, self.lm_head) * self.c.output_multiplier
        return c.final_logit_softcapping * torch.tanh(z / c.final_logit_softcapping) if c.final_logit_softcapping else z

    def target_id(self, own):
        return own + int(self.w["d2t"][own]) if self.c.draft_vocab_size else own

    def markov(self, hidden, embedded, state):
        """What W2 takes for one row, and the next state. hidden [H], embedded [r] of the token before, state [r]."""
        kind = self.c.markov_head_type
        if kind == "vanilla":
            return embedded, state
        if kind == "gated":
            joint = torch.cat([hidden, embedded])
            gate = F.linear(joint, self.w["markov_head.gate_proj.weight"], self.w["markov_head.gate_proj.bias"])
            return gate.sigmoid() * embedded, state
        joint = torch.cat([state, embedded, hidden])
        joint = F.linear(joint, self.w["markov_head.joint_proj.weight"], self.w["markov_head.joint_proj.bias"])
        gate, candidate, out = joint.chunk(3)
        gate = gate.sigmoid()
        return out.tanh(), gate * state + (1 - gate) * candidate.tanh()

    def select(self, logits, hidden, before):
        """Candidates of one row, best logit first, and their scores behind the token `before`."""
        best = logits.topk(self.c.selector_top_k)
        a = self.w["candidate_selector.predecessor_codebook"][before]
        s = self.w["candidate_selector.successor_codebook"][best.indices]
        return best.indices, best.values + s @ (a * self.linear("candidate_selector.hidden_projection", hidden))

    def draft(self, taps, anchor, drafts):
        """Greedy drafts behind the anchor: a dict of what they were chosen from. A block is run whole, as in training,
        however few drafts are asked for.

        hidden [m, H], logits [m, V'] (with the Markov head's part), drafts [m] target ids; gaps [m] from the best to the
        second best; confidence [m], candidates and scores [m, K] where there are such heads.
        """
        c = self.c
        first = 0 if c.first_row_predicts else 1
        hidden = self.block(taps, anchor, c.block_size)[first: first + drafts]
        logits = self.head(hidden)
        out = {"hidden": hidden, "logits": logits, "drafts": [], "gaps": []}
        before, state = anchor, torch.zeros(c.markov_rank)
        for k in range(drafts):
            embedded = self.w["markov_head.markov_w1.weight"][before] if c.markov_rank else torch.zeros(0)
            if c.enable_confidence_head:
                joint = torch.cat([hidden[k], embedded]) if c.confidence_head_with_markov else hidden[k]
                weight, bias = self.w["confidence_head.proj.weight"], self.w["confidence_head.proj.bias"]
                out.setdefault("confidence", []).append(F.linear(joint, weight, bias).sigmoid())
            if c.markov_rank:
                code, state = self.markov(hidden[k], embedded, state)
                logits[k] += F.linear(code, self.w["markov_head.markov_w2.weight"])
            ids, scores = torch.arange(logits.shape[1]), logits[k]
            if c.selector_rank:
                ids, scores = self.select(logits[k], hidden[k], before)
                out.setdefault("candidates", []).append(ids)
                out.setdefault("scores", []).append(scores)
            best = int(scores.argmax())
            out["gaps"].append(float(scores[best] - scores.masked_fill(torch.arange(len(ids)) == best, -1e30).max()))
            before = self.target_id(int(ids[best]))
            out["drafts"].append(before)
        for name in ("confidence", "candidates", "scores"):
            if name in out:
                out[name] = torch.stack(out[name])
        return out


def shapes(c):
    """Name -> shape of every tensor that a drafter of this config has."""
    H, I, D, V = c.hidden_size, c.intermediate_size, c.head_dim, c.vocab_size
    q, kv, own, r = c.num_attention_heads * D, c.num_key_value_heads * D, c.draft_vocab_size or V, c.markov_rank
    out = {"fc.weight": (H, len(c.taps) * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(len(c.windows)):
        layer = {"input_layernorm.weight": (H,), "post_attention_layernorm.weight": (H,),
                 "self_attn.q_proj.weight": (q, H), "self_attn.k_proj.weight": (kv, H),
                 "self_attn.v_proj.weight": (kv, H), "self_attn.o_proj.weight": (H, q),
                 "self_attn.q_norm.weight": (D,), "self_attn.k_norm.weight": (D,),
                 "mlp.gate_proj.weight": (I, H), "mlp.up_proj.weight": (I, H), "mlp.down_proj.weight": (H, I)}
        if c.sinks:
            layer["self_attn.attention_sink_bias"] = (c.num_attention_heads,)
        if c.conv_kernel_size:
            for conv in ("attention_conv", "mlp_conv"):
                layer[conv + ".base_kernel"] = (2, c.conv_kernel_size, H)
                layer[conv + ".kernel_projection.weight"] = (2 * c.conv_kernel_size * H // c.conv_group_size, H)
        out |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    if c.draft_vocab_size:
        out |= {"lm_head.weight": (own, H), "d2t": (own,)}
    if c.selector_rank:
        R = c.selector_rank
        out |= {"candidate_selector.predecessor_codebook": (V, R), "candidate_selector.successor_codebook": (V, R),
                "candidate_selector.hidden_projection.weight": (R, H)}
    if r:
        out |= {"markov_head.markov_w1.weight": (V, r), "markov_head.markov_w2.weight": (own, r)}
        if c.markov_head_type == "gated":
            out |= {"markov_head.gate_proj.weight": (r, H + r), "markov_head.gate_proj.bias": (r,)}
        if c.markov_head_type == "rnn":
            out |= {"markov_head.joint_proj.weight": (3 * r, 2 * r + H), "markov_head.joint_proj.bias": (3 * r,)}
    if c.enable_confidence_head:
        out |= {"confidence_head.proj.weight": (1, H + (r if c.confidence_head_with_markov else 0)),
                "confidence_head.proj.bias": (1,)}
    return out
