"""Trains a tokenizer, a target and the target's MTP head."""

import json
import pathlib
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import AddedToken, Regex

import checkpoints
import corpus
from data import documents, roll_out, stream
from objective import gradient
from optimiser import Optimiser, graphed
from target import Shape, Target, attend, chunked_delta_rule, fla_delta_rule, norm, rope_table


def train_tokenizer(corpus_file, like, out):
    """A byte-level BPE with the split rule, the size and the added tokens of the tokenizer.json `like`."""
    model = json.loads(pathlib.Path(like).read_text())
    rule = next(p["pattern"]["Regex"] for p in model["pre_tokenizer"]["pretokenizers"] if p["type"] == "Split")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(rule), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=len(model["model"]["vocab"]), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((row["text"] for row in corpus.load(corpus_file) if row["kind"] != "chat"), trainer)
    added = sorted(model["added_tokens"], key=lambda token: token["id"])
    if tokenizer.get_vocab_size() != added[0]["id"]:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, {added[0]['id']} are needed: a larger one works")
    tokenizer.add_tokens([AddedToken(t["content"], special=t["special"], normalized=False) for t in added])
    tokenizer.save(str(out))


def initial(config, generator):
    """Weights of a target and its MTP head by name, float32."""
    s, w = Shape(config), {}

    def normal(name, *shape, factor=0.7):
        w[name] = torch.randn(shape, generator=generator) * factor * shape[-1] ** -0.5

    def layer(at, full):
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{at}{name}.weight"] = torch.zeros(s.H)
        normal(at + "mlp.gate_proj.weight", s.I, s.H)
        normal(at + "mlp.up_proj.weight", s.I, s.H)
        normal(at + "mlp.down_proj.weight", s.H, s.I, factor=0.2)
        if full:
            own = at + "self_attn."
            normal(own + "q_proj.weight", 2 * s.Hq * s.D, s.H)
            normal(own + "k_proj.weight", s.Hkv * s.D, s.H)
            normal(own + "v_proj.weight", s.Hkv * s.D, s.H)
            normal(own + "o_proj.weight", s.H, s.Hq * s.D, factor=0.2)
            w[own + "q_norm.weight"], w[own + "k_norm.weight"] = torch.zeros(s.D), torch.zeros(s.D)
            return
        own = at + "linear_attn."
        normal(own + "in_proj_qkv.weight", s.channels, s.H)
        normal(own + "in_proj_z.weight", s.Hv * s.Vd, s.H)
        normal(own + "in_proj_a.weight", s.Hv, s.H)
        normal(own + "in_proj_b.weight", s.Hv, s.H)
        normal(own + "out_proj.weight", s.H, s.Hv * s.Vd, factor=0.2)
        w[own + "norm.weight"] = torch.ones(s.Vd)
        w[own + "conv1d.weight"] = torch.randn(s.channels, 1, s.taps, generator=generator) * 0.3
        w[own + "conv1d.weight"][:, :, -1] += 0.5
        w[own + "A_log"] = (1 + 15 * torch.rand(s.Hv, generator=generator)).log()
        step = 10 ** (-3 + 2 * torch.rand(s.Hv, generator=generator))  # of the gates at the start
        w[own + "dt_bias"] = step + (-torch.expm1(-step)).log()  # softplus of it is `step`

    w["model.embed_tokens.weight"] = torch.randn(s.V, s.H, generator=generator) * 0.05
    for i in range(s.L):
        layer(f"model.layers.{i}.", s.full[i])
    layer("mtp.layers.0.", True)
    w["model.norm.weight"] = torch.zeros(s.H)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        w[f"mtp.{name}.weight"] = torch.zeros(s.H)
    normal("mtp.fc.weight", s.H, 2 * s.H)
    return w


def fit(step, optimiser, steps, device, loss, log):
    """Runs the step under its schedule and prints `loss` ten times: a running mean by lerp of 0.02, from 0 on."""
    optimiser.schedule(0)
    run, done = graphed(step, device)
    began = time.time()
    for i in range(done, steps):
        optimiser.schedule(i)
        run()
        if (i + 1) % max(1, steps // 10) == 0:
            log(f"  step {i + 1}: {time.time() - began:.1f} s, {float(loss) / (1 - 0.98 ** (i + 1)):.4f}")


def train_target(config_file, corpus_file, tokenizer_file, steps, batch, length, seed, log=print):
    """Next-token training of the trunk. Returns (config, weights); the MTP head is as it was drawn."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    config = json.loads(pathlib.Path(config_file).read_text())
    found, tokenizer = documents(corpus_file, tokenizer_file)
    ids = stream(found, tokenizer.token_to_id("<|endoftext|>"), seed, device)
    weights = {k: w.to(device) for k, w in initial(config, torch.Generator().manual_seed(seed)).items()}
    trunk = {k: w.requires_grad_() for k, w in weights.items() if not k.startswith("mtp.")}
    cuda = device.type == "cuda"
    target = Target(config, trunk, torch.bfloat16 if cuda else torch.float32,
                    rule=(fla_delta_rule() if cuda else None) or chunked_delta_rule)
    target.dropout = 0.1
    optimiser, loss = Optimiser(trunk, lr=4e-3, decay=0.5, steps=steps, warmup=0.02, flat=0.3), torch.zeros((), device=device)
    torch.manual_seed(seed)

    def step():
        start = torch.randint(len(ids) - length, (batch, 1), device=device)
        rows = ids[start + torch.arange(length + 1, device=device)]
        hidden, _ = target.forward(rows[:, :-1])
        now = F.cross_entropy(target.head(hidden).float().flatten(0, 1), rows[:, 1:].flatten())
        optimiser.apply(dict(zip(trunk, torch.autograd.grad(now, list(trunk.values())))))
        loss.lerp_(now.detach(), 0.02)

    log(f"target: {sum(w.numel() for w in trunk.values())} parameters, {len(ids)} tokens, {steps} steps")
    fit(step, optimiser, steps, device, loss, log)
    return config, {k: optimiser.averaged.get(k, w.detach()) for k, w in weights.items()}


def chain(target, ids, hidden, steps):
    """The MTP head unrolled from every position at once: ids [B, T], hidden [B, T, H] of the target ->
    [B, T - 1 - steps, steps, H], states that predict the tokens 2, 3, .. behind each position. Step j reads its own
    state of step j-1; it sees what step 0 made of the tokens up to its start, and its own chain."""
    s, w, at, rows = target.s, target.w, "mtp.layers.0.", ids.shape[1] - 1 - steps
    places = torch.arange(rows, device=ids.device)
    causal, own = places[:, None] >= places, places[:, None] == places
    state, keys, values, out = hidden[:, :rows], [], [], []
    for j in range(steps):
        word = norm(target.embed(ids[:, 1 + j: 1 + j + rows]), w["mtp.pre_fc_norm_embedding.weight"], s.eps)
        joined = torch.cat([word, norm(state, w["mtp.pre_fc_norm_hidden.weight"], s.eps)], -1)
        x = target.linear("mtp.fc", joined)
        cos, sin = rope_table(places[:, None] + j, s.rotary, s.theta, target.dtype)
        u = norm(x, w[at + "input_layernorm.weight"], s.eps)
        q, k, v, gate = target.attention_inputs(at + "self_attn.", u, cos, sin)
        keys.append(k)
        values.append(v)
        heads = [torch.cat(kept, 1).repeat_interleave(s.Hq // s.Hkv, 2).transpose(1, 2) for kept in (keys, values)]
        o = attend(q.transpose(1, 2), *heads, torch.cat([causal] + [own] * j, 1)).transpose(1, 2).flatten(-2)
        x = x + target.linear(at + "self_attn.o_proj", o * gate.sigmoid())
        x = x + target.mlp(at, norm(x, w[at + "post_attention_layernorm.weight"], s.eps))
        state = norm(x, w["mtp.norm.weight"], s.eps)
        out.append(state)
    return torch.stack(out, 2)


def train_mtp(target, corpus_file, tokenizer_file, steps, rows, times, length, prompt_lengths, batch, seed, unrolled=3, log=print):
    """Trains the head on the frozen target's own sequences, for the drafts that the target keeps. Returns its weights."""
    found, _ = documents(corpus_file, tokenizer_file)
    data, device = roll_out(target, found, (), rows, times, length, prompt_lengths, seed), target.w["model.norm.weight"].device
    head = {k: w.float().clone().requires_grad_() for k, w in target.w.items() if k.startswith("mtp.")}
    optimiser, kept = Optimiser(head, lr=3e-3, decay=0.05, steps=steps, clip=3.0), torch.zeros((), device=device)
    teacher = Target(target.s.config, dict(target.w), target.dtype, target.valid_ids)
    weights, progress = torch.tensor([1.0, 0.8, 0.6, 0.5, 0.4][:unrolled], device=device), torch.tensor(0.5, device=device)
    torch.manual_seed(seed)
    compute = torch.compile(gradient) if device.type == "cuda" else gradient

    def step():
        teacher.w.update(head)
        chosen = torch.randint(len(data.tokens), (batch,), device=device)
        ids, hidden = data.tokens[chosen], data.hidden[chosen]
        states = chain(teacher, ids, hidden, unrolled)
        count = states.shape[1] - 1  # the last row's last teacher is the position without a hidden state
        places = torch.arange(count, device=device)
        behind = (places[:, None] + 2 + torch.arange(unrolled, device=device)).flatten()
        flat = lambda x: x.unflatten(1, (count, unrolled)).flatten(0, 1)
        greedy = (data.greedy[chosen][:, None] & (places + 2 >= data.start[chosen][:, None])).flatten()
        logits = teacher.head(states[:, :count].flatten(0, 1))
        slope, now, _ = compute(logits, teacher.head(flat(hidden[:, behind - 1])), flat(ids[:, behind]), greedy,
                                teacher.valid_ids, weights, progress)
        optimiser.apply(dict(zip(head, torch.autograd.grad(logits, list(head.values()), slope))))
        kept.lerp_(1 + now[1].sum(), 0.02)

    log(f"mtp: {sum(w.numel() for w in head.values())} parameters, {steps} steps; drafts kept, plus one:")
    fit(step, optimiser, steps, device, kept, log)
    return optimiser.averaged


def run_target(config_file, corpus_file, tokenizer_like, out, steps, batch, length, seed, log=print):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    like = pathlib.Path(tokenizer_like)
    train_tokenizer(corpus_file, like, out / "tokenizer.json")
    config, weights = train_target(config_file, corpus_file, out / "tokenizer.json", steps, batch, length, seed, log)
    trained = (out / "tokenizer.json").read_text()
    checkpoints.write(out, config, weights, tokenizer_from=like.parent)
    (out / "tokenizer.json").write_text(trained)
