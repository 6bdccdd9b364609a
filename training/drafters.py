"""DFlash, DFlash 2 and DSpark for training: many blocks of many sequences at once, gradients through everything.

The same drafters as block_drafters.py, which takes one block at a time and is what this file is tested against; its
Config and names of tensors serve here too. A sequence has tokens [S, L], taps [S, L, n * H]; a block stands behind each
of its anchors [S, A] and sees the sequence before the anchor, and itself.
"""

import torch
import torch.nn.functional as F

from block_drafters import rms_norm, shapes
from target import attend, rope_table, rotate


def initial(c, generator, final_norm):
    """Weights by name, float32. final_norm [H]: the target's, as a plain weight; its head expects that scale."""
    w = {}
    for name, shape in shapes(c).items():
        if name.endswith("norm.weight"):
            w[name] = torch.ones(shape)
        elif name.endswith("bias"):
            w[name] = torch.zeros(shape)
        elif name.endswith("base_kernel"):
            w[name] = torch.zeros(shape)
            w[name][:, 0] = 1  # the row itself, unmixed
        else:
            scale = {"o_proj": 0.2, "down_proj": 0.2, "markov_w2": 0.05, "successor_codebook": 0.05,
                     "kernel_projection": 0.05}
            factor = next((f for key, f in scale.items() if key in name), 0.7)
            w[name] = torch.randn(shape, generator=generator) * factor * shape[-1] ** -0.5
    w["norm.weight"] = final_norm.detach().float().cpu().clone()
    return w


def block_conv(x, delta, base, side, group):
    """x [S, A, rows, H], delta [S, A, rows, 2, K, G], base [2, K, H]: each row and those before it in its block."""
    out = 0
    for back in range(base.shape[1]):
        kernel = base[side, back] + delta[..., side, back, :].repeat_interleave(group, -1)
        out = out + kernel * F.pad(x, (0, 0, back, 0))[:, :, : x.shape[2]]
    return out


class Blocks:
    """A drafter with its weights in the dtype of the computation; embed_tokens and lm_head [V, H] are the target's."""

    def __init__(self, config, weights, embed_tokens, lm_head):
        self.c, self.w, self.embed_tokens, self.lm_head = config, weights, embed_tokens, lm_head

    def norm(self, name, x):
        return rms_norm(x.float(), self.w[name + ".weight"].float(), self.c.rms_norm_eps).to(x.dtype)

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"])

    def key_value(self, at, x, cos, sin):
        c = self.c
        k = self.norm(at + "k_norm", self.linear(at + "k_proj", x).unflatten(-1, (-1, c.head_dim)))
        return rotate(k, cos, sin), self.linear(at + "v_proj", x).unflatten(-1, (-1, c.head_dim))

    def attention(self, at, u, context, tables, seen):
        """u [S, A * rows, H] and the projected taps [S, L, H] -> [S, A * rows, H]."""
        c, (own, before) = self.c, tables
        q = self.norm(at + "q_norm", self.linear(at + "q_proj", u).unflatten(-1, (-1, c.head_dim)))
        pairs = zip(self.key_value(at, context, *before), self.key_value(at, u, *own))
        group = c.num_attention_heads // c.num_key_value_heads
        k, v = (torch.cat(pair, 1).repeat_interleave(group, 2).transpose(1, 2) for pair in pairs)
        o = attend(rotate(q, *own).transpose(1, 2), k, v, seen).transpose(1, 2).flatten(-2)
        return self.linear(at + "o_proj", o)

    def sublayer(self, x, norm, conv, compute):
        """x [S, A, rows, H]; compute takes and gives [S, A * rows, H]."""
        c, u = self.c, self.norm(norm, x)
        flat = lambda y: compute(y.flatten(1, 2)).view_as(y)
        if not c.conv_kernel_size:
            return x + flat(u)
        delta = self.linear(conv + ".kernel_projection", u).unflatten(-1, (2, c.conv_kernel_size, -1))
        base = self.w[conv + ".base_kernel"]
        return x + block_conv(flat(block_conv(u, delta, base, 0, c.conv_group_size)), delta, base, 1, c.conv_group_size)

    def hidden(self, tokens, taps, anchors):
        """Final hidden states [S, A, m, H] of the rows that predict the m tokens behind each anchor."""
        c, device = self.c, tokens.device
        S, L, A, rows = *tokens.shape, anchors.shape[1], c.block_size
        context = self.norm("hidden_norm", self.linear("fc", taps))
        ids = torch.full((S, A, rows), c.mask_token_id, device=device)
        ids[..., 0] = tokens.gather(1, anchors)
        places = (anchors[..., None] + torch.arange(rows, device=device)).flatten(1)
        mine = torch.arange(A, device=device).repeat_interleave(rows)
        past = torch.arange(L, device=device) < anchors.repeat_interleave(rows, 1)[..., None]  # [S, A * rows, L]
        seen = torch.cat([past, (mine[:, None] == mine).expand(S, -1, -1)], -1)[:, None]
        def table(positions):
            return [t[..., None, :] for t in rope_table(positions, c.head_dim, c.rope_theta, context.dtype)]
        tables = table(places), table(torch.arange(L, device=device)[None])
        x = F.embedding(ids, self.embed_tokens)
        for i in range(len(c.windows)):
            at = f"layers.{i}."
            x = self.sublayer(x, at + "input_layernorm", at + "attention_conv",
                              lambda u: self.attention(at + "self_attn.", u, context, tables, seen))
            x = self.sublayer(x, at + "post_attention_layernorm", at + "mlp_conv", lambda u: self.linear(
                at + "mlp.down_proj", F.silu(self.linear(at + "mlp.gate_proj", u)) * self.linear(at + "mlp.up_proj", u)))
        return self.norm("norm", x)[:, :, -c.drafts:]

    def correction(self, hidden, before):
        """What the tokens before [..., m] add to the logits of a row: the Markov head or the path selector, over the
        whole vocabulary; None where there is neither. Only the Markov head in its vanilla form is trained."""
        c = self.c
        if c.markov_rank:
            return F.linear(F.embedding(before, self.w["markov_head.markov_w1.weight"]), self.w["markov_head.markov_w2.weight"])
        if c.selector_rank:
            a = F.embedding(before, self.w["candidate_selector.predecessor_codebook"])
            projected = self.linear("candidate_selector.hidden_projection", hidden)
            return F.linear(a * projected, self.w["candidate_selector.successor_codebook"])
        return None

    def confidence(self, hidden, before):
        """Logits [..., m] of the chance that a draft stays; it learns nothing but itself."""
        code = F.embedding(before, self.w["markov_head.markov_w1.weight"])
        joint = torch.cat([hidden, code], -1).detach().float()
        return F.linear(joint, self.w["confidence_head.proj.weight"].float(), self.w["confidence_head.proj.bias"].float())[..., 0]


def selected(base, scores, top_k):
    """Path scores where the base logits are among the top_k, -inf elsewhere: the law that DFlash 2 draws from."""
    best = base.topk(top_k, -1).indices
    return torch.full_like(scores, float("-inf")).scatter(-1, best, scores.gather(-1, best))
