"""A Qwen3.5 text model (Gated DeltaNet layers and full attention) in plain PyTorch, for training and for rolling out.

Weights are a dict by the names of the checkpoint. `forward` takes whole sequences at once, `step` one token of each row
with a recurrent state. Tensors are [B, T, ...]; T is a sequence, B independent rows.
"""

import math

import torch
import torch.nn.functional as F


class Shape:
    """What of config.json the forward needs."""

    def __init__(self, config):
        self.config = config
        self.H, self.V, self.L = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
        self.Hq, self.Hkv, self.D = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        self.Hk, self.Hv = config["linear_num_key_heads"], config["linear_num_value_heads"]
        self.K, self.Vd = config["linear_key_head_dim"], config["linear_value_head_dim"]
        self.taps, self.I = config["linear_conv_kernel_dim"], config["intermediate_size"]
        self.channels = 2 * self.Hk * self.K + self.Hv * self.Vd
        self.full = [kind == "full_attention" for kind in config["layer_types"]]
        rope = config["rope_parameters"]
        self.rotary = int(self.D * rope.get("partial_rotary_factor", 1.0))
        self.theta, self.eps = rope["rope_theta"], config["rms_norm_eps"]


def norm(x, weight, eps):
    """RMSNorm with a zero-centred weight, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight.float())).to(x.dtype)


def rope_table(positions, rotary, theta, dtype):
    """cos, sin [..., rotary / 2] of positions [...]."""
    half = rotary // 2
    frequencies = theta ** (-torch.arange(half, device=positions.device, dtype=torch.float64) / half)
    angles = positions.double()[..., None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x, cos, sin):
    """Rotates the first 2 * cos.shape[-1] of x's last dimension, pairs (d, d + half); the rest passes."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half: 2 * half], x[..., 2 * half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def attend(q, k, v, seen):
    """q [B, h, Q, D], k and v [B, h, N, D], seen [.., Q, N] bool -> [B, h, Q, D]."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v


def chunked_delta_rule(q, k, v, g, beta, chunk=64):
    """The gated delta rule over whole sequences: q, k [B, T, h, K] normed and scaled, v [B, T, h, V], g (log decay) and
    beta [B, T, h] float32 -> o [B, T, h, V] float32. Inside a chunk the recurrence is one triangular solve.
    """
    B, T, h, K = q.shape
    pad = -T % chunk
    q, k, v = (F.pad(x.float(), (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
    g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    q, k, v = (x.transpose(1, 2).unflatten(2, (-1, chunk)) for x in (q, k, v))  # [B, h, n, C, .]
    g, beta = (x.transpose(1, 2).unflatten(2, (-1, chunk)) for x in (g, beta))
    total = g.cumsum(-1)
    lower = torch.ones(chunk, chunk, device=q.device, dtype=torch.bool).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    mixing = (beta[..., None] * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    mixing = mixing + torch.eye(chunk, device=q.device)
    wanted = torch.cat([beta[..., None] * v, (beta * total.exp())[..., None] * k], -1)
    solved = torch.linalg.solve_triangular(mixing, wanted, upper=False, unitriangular=True)
    values, keys = solved.split([v.shape[-1], K], -1)
    local = (q @ k.transpose(-1, -2)) * decay
    q_in, k_out = q * total.exp()[..., None], k * (total[..., -1:] - total).exp()[..., None]
    state, out = torch.zeros(B, h, K, v.shape[-1], device=q.device), []
    # Unbound once: the gradient of an index is as large as what it is taken from.
    chunks = (x.unbind(2) for x in (values, keys, q_in, k_out, local, total[..., -1, None, None].exp()))
    for value, key, q_n, k_n, local_n, kept in zip(*chunks):
        residual = value - key @ state
        out.append(q_n @ state + local_n @ residual)
        state = state * kept + k_n.transpose(-1, -2) @ residual
    return torch.cat(out, 2).transpose(1, 2)[:, :T]


def fla_delta_rule():
    """flash-linear-attention's kernel behind the same contract, or None where it is missing or its gradients are wrong
    or refused (some Triton versions on some GPUs): then the chunked form above serves."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError:
        return None

    def rule(q, k, v, g, beta):
        narrow = (x.bfloat16() for x in (q, k, v))
        return chunk_gated_delta_rule(*narrow, g, beta.bfloat16(), scale=1.0)[0].float()

    generator = torch.Generator("cuda").manual_seed(0)
    def noise(*shape):
        return torch.randn(*shape, device="cuda", generator=generator)
    q, k = (F.normalize(noise(1, 128, 2, 128), dim=-1) for _ in range(2))
    inputs = [q, k, noise(1, 128, 2, 128), -noise(1, 128, 2).abs(), noise(1, 128, 2).sigmoid()]
    grads = []
    try:
        for one in (chunked_delta_rule, rule):
            leaves = [x.clone().requires_grad_() for x in inputs]
            grads.append(torch.autograd.grad(one(*leaves).square().sum(), leaves))
    except Exception as error:  # a kernel may refuse with any exception
        print(f"flash-linear-attention cannot serve here ({type(error).__name__}: {error}); plain PyTorch does")
        return None
    worst = max(float((a - b).norm() / a.norm()) for a, b in zip(*grads))
    if worst > 0.05:
        print(f"flash-linear-attention's gradients are off by {worst:.3f} here; plain PyTorch does instead")
    return rule if worst <= 0.05 else None


class Target:
    def __init__(self, config, weights, dtype=torch.float32, valid_ids=None, rule=chunked_delta_rule):
        """weights are cast to dtype where they are used in products; gates and norms stay float32. Ids from valid_ids
        on are padding of the table."""
        self.s, self.w, self.dtype, self.rule, self.prefix = Shape(config), weights, dtype, rule, "model."
        self.valid_ids, self.dropout = valid_ids or self.s.V, 0.0

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"].to(x.dtype))

    def embed(self, ids):
        return F.embedding(ids, self.w[self.prefix + "embed_tokens.weight"]).to(self.dtype)

    def head(self, hidden):
        """Logits [..., V] of final hidden states."""
        matrix = self.w.get("lm_head.weight", self.w[self.prefix + "embed_tokens.weight"])
        return F.linear(hidden, matrix.to(hidden.dtype))

    def mlp(self, at, x):
        return self.linear(at + "mlp.down_proj", F.silu(self.linear(at + "mlp.gate_proj", x)) * self.linear(at + "mlp.up_proj", x))

    def attention_inputs(self, at, u, cos, sin):
        """q [B, T, Hq, D], k, v [B, T, Hkv, D], gate [B, T, Hq * D]; cos, sin [B or 1, T, 1, rotary / 2]."""
        s = self.s
        q, gate = self.linear(at + "q_proj", u).unflatten(-1, (s.Hq, 2, s.D)).unbind(-2)
        k = self.linear(at + "k_proj", u).unflatten(-1, (s.Hkv, s.D))
        v = self.linear(at + "v_proj", u).unflatten(-1, (s.Hkv, s.D))
        q, k = norm(q, self.w[at + "q_norm.weight"], s.eps), norm(k, self.w[at + "k_norm.weight"], s.eps)
        return rotate(q, cos, sin), rotate(k, cos, sin), v, gate.flatten(-2)

    def attention(self, at, u, seen, cos, sin, more=None):
        """seen [T, N] or [B, 1, T, N]: which keys a query sees; more: keys and values [B, N', Hkv, D] before u's own."""
        q, k, v, gate = self.attention_inputs(at, u, cos, sin)
        if more is not None:
            k, v = torch.cat([more[0], k], 1), torch.cat([more[1], v], 1)
        group = self.s.Hq // self.s.Hkv
        k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
        o = attend(q.transpose(1, 2), k, v, seen).transpose(1, 2).flatten(-2)
        return self.linear(at + "o_proj", o * gate.sigmoid())

    def delta_inputs(self, at, mixed, u):
        """mixed [B, T, channels] behind conv and SiLU -> q, k, v, g, beta as the delta rule takes them."""
        s = self.s
        q, k, v = mixed.float().split([s.Hk * s.K, s.Hk * s.K, s.Hv * s.Vd], -1)
        q, k = q.unflatten(-1, (s.Hk, s.K)), k.unflatten(-1, (s.Hk, s.K))
        q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * s.K**-0.5
        k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
        q, k = q.repeat_interleave(s.Hv // s.Hk, -2), k.repeat_interleave(s.Hv // s.Hk, -2)
        a = self.linear(at + "in_proj_a", u).float() + self.w[at + "dt_bias"].float()
        g = -self.w[at + "A_log"].float().exp() * F.softplus(a)
        return q, k, v.unflatten(-1, (s.Hv, s.Vd)), g, self.linear(at + "in_proj_b", u).float().sigmoid()

    def delta_output(self, at, o, u):
        s, z = self.s, self.linear(at + "in_proj_z", u).float().unflatten(-1, (self.s.Hv, self.s.Vd))
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + s.eps) * self.w[at + "norm.weight"].float() * F.silu(z)
        return self.linear(at + "out_proj", o.flatten(-2).to(u.dtype))

    def delta(self, at, u):
        x = F.pad(self.linear(at + "in_proj_qkv", u), (0, 0, self.s.taps - 1, 0)).transpose(1, 2).float()
        kernel = self.w[at + "conv1d.weight"].float()
        mixed = F.silu(F.conv1d(x, kernel, groups=self.s.channels)).transpose(1, 2)
        return self.delta_output(at, self.rule(*self.delta_inputs(at, mixed, u)), u)

    def sublayers(self, at, x, mixer):
        w, eps = self.w, self.s.eps
        drop = (lambda y: F.dropout(y, self.dropout)) if self.dropout else (lambda y: y)
        x = x + drop(mixer(norm(x, w[at + "input_layernorm.weight"], eps)))
        return x + drop(self.mlp(at, norm(x, w[at + "post_attention_layernorm.weight"], eps)))

    def forward(self, ids, taps=()):
        """ids [B, T] -> final hidden states [B, T, H] and the residual behind each tapped layer, joined [B, T, n * H]."""
        s, x = self.s, self.embed(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        cos, sin = rope_table(positions[:, None], s.rotary, s.theta, self.dtype)
        causal = positions[:, None] >= positions[None]
        kept = {-1: x}
        for i in range(s.L):
            at = f"{self.prefix}layers.{i}."
            if s.full[i]:
                x = self.sublayers(at, x, lambda u: self.attention(at + "self_attn.", u, causal, cos, sin))
            else:
                x = self.sublayers(at, x, lambda u: self.delta(at + "linear_attn.", u))
            kept[i] = x
        hidden = norm(x, self.w[self.prefix + "norm.weight"], s.eps)
        return hidden, torch.cat([kept[i] for i in taps], -1) if taps else None
