"""Trains block drafters on a frozen target's own sequences and writes them as Hugging Face folders."""

import dataclasses
import json
import pathlib
import time

import torch
import torch.nn.functional as F

import checkpoints
from block_drafters import Config
from data import documents, roll_out
from drafters import Blocks, initial
from objective import gradient
from optimiser import Optimiser, graphed
from target import Target

TAPS = (1, 3, 5, 6)
KINDS = {
    "dflash": {"block_size": 8},
    "dflash2": {"block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 16},
    "dspark": {"block_size": 7, "first_row_predicts": True, "markov_rank": 64, "enable_confidence_head": True,
               "confidence_head_with_markov": True},
}


def drafter_config(kind, target_config, layers, width, taps):
    """The reference's Config of a drafter for this target, and its config.json."""
    t, own = target_config, KINDS[kind]
    mask = t["vocab_size"] - 1  # padding of the table, so no token
    plain = {"hidden_size": t["hidden_size"], "intermediate_size": width, "vocab_size": t["vocab_size"],
             "num_attention_heads": t["num_attention_heads"], "num_key_value_heads": t["num_key_value_heads"],
             "head_dim": t["head_dim"], "rms_norm_eps": t["rms_norm_eps"],
             "rope_theta": t["rope_parameters"]["rope_theta"]}
    config = Config(**plain, **own, windows=(0,) * layers, causal=(False,) * layers, mask_token_id=mask, taps=tuple(taps))
    architecture = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel"}[kind]
    written = {"architectures": [architecture], "model_type": "qwen3", "dtype": "bfloat16", **plain,
               "num_hidden_layers": layers, "num_target_layers": t["num_hidden_layers"], "hidden_act": "silu",
               "attention_bias": False, "layer_types": ["full_attention"] * layers, "block_size": own["block_size"],
               "max_position_embeddings": t["max_position_embeddings"], "tie_word_embeddings": True}
    places = {"mask_token_id": mask, "target_layer_ids": list(taps)}
    if kind == "dspark":
        heads = {k: v for k, v in own.items() if k not in ("block_size", "first_row_predicts")}
        written |= places | heads | {"num_anchors": 32, "markov_head_type": "vanilla"}
    else:
        written["dflash_config"] = places | {k: v for k, v in own.items() if k != "block_size"}
    return config, written


def pick(data, config, sequences, anchors):
    """A batch: tokens [S, L], taps, and anchors [S, A], one in each stretch of the target's own tokens; labels and the
    places before them [S, A, m], and whether each block's sequence was greedy [S * A]."""
    N, L = data.tokens.shape
    device, m = data.tokens.device, config.drafts
    rows = torch.randint(N, (sequences,), device=device)
    first = (data.start[rows] - 1)[:, None]
    stretch = (L - m - first) / anchors
    place = first + ((torch.arange(anchors, device=device) + torch.rand(sequences, anchors, device=device)) * stretch)
    place = place.long().clamp(max=L - 1 - m)
    behind = place[..., None] + torch.arange(1, m + 1, device=device)
    return rows, place, behind, data.greedy[rows].repeat_interleave(anchors)


def trainer(config, weights, target, data, sequences, anchors, progress, optimiser, statistics, compiled):
    """The step: draws a batch, moves the weights, and keeps a running mean of how many drafts are kept, by row."""
    E, head, dtype = target.w["model.embed_tokens.weight"], target.head, target.dtype
    by_row = torch.exp(-torch.arange(config.drafts, device=progress.device) / 4)
    names = list(weights)
    own = torch.compile(gradient) if compiled else gradient
    start = torch.zeros_like(progress)

    def step():
        rows, place, behind, greedy = pick(data, config, sequences, anchors)
        tokens = data.tokens[rows]
        blocks = Blocks(config, {k: w.to(dtype) for k, w in weights.items()}, E, E)
        hidden = blocks.hidden(tokens, data.taps[rows], place)
        labels, before = (tokens.gather(1, x.flatten(1)).view_as(x) for x in (behind, behind - 1))
        teacher = data.hidden[rows[:, None, None], behind - 1]
        flat = lambda x: x.flatten(0, 1)
        base, taught = head(flat(hidden)), head(flat(teacher))
        corrected = blocks.correction(flat(hidden), flat(before))
        logits = base if corrected is None else base + corrected
        slope, kept, alpha = own(logits, taught, flat(labels), greedy, target.valid_ids, by_row, progress)
        outputs, slopes = [logits], [slope]
        if config.selector_rank:  # the base alone chooses the candidates
            outputs.append(base)
            slopes.append(0.3 * own(base, taught, flat(labels), greedy, target.valid_ids, by_row, start)[0])
        if config.enable_confidence_head:
            said = blocks.confidence(flat(hidden), flat(before))
            outputs.append(F.binary_cross_entropy_with_logits(said, alpha.clamp(0, 1)))
            slopes.append(torch.ones_like(outputs[-1]))
        found = torch.autograd.grad(outputs, [weights[k] for k in names], slopes)
        optimiser.apply(dict(zip(names, found)))
        statistics.lerp_(kept, 0.01)

    return step


def train_drafter(kind, target, data, steps, layers, width, taps, seed, batch=(96, 32), lr=3e-3, log=print):
    """Returns (Config, config.json, averaged weights)."""
    device = data.tokens.device
    config, written = drafter_config(kind, target.s.config, layers, width, taps)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    weights = initial(config, generator, 1 + target.w["model.norm.weight"].float())
    weights = {name: w.to(device).requires_grad_() for name, w in weights.items()}
    optimiser = Optimiser(weights, lr=lr, decay=0.05, steps=steps, clip=3.0)
    progress, statistics = torch.zeros((), device=device), torch.zeros(2, config.drafts, device=device)
    step = trainer(config, weights, target, data, *batch, progress, optimiser, statistics, device.type == "cuda")
    optimiser.schedule(0)
    began = time.time()
    run, done = graphed(step, device)
    log(f"{kind}: {sum(w.numel() for w in weights.values())} parameters, {steps} steps, ready in {time.time() - began:.0f} s")
    began = time.time()
    for i in range(done, steps):
        optimiser.schedule(i)
        progress.fill_(min(1.0, max(0.0, (i / steps - 0.1) / 0.3)))
        run()
        if (i + 1) % max(1, steps // 10) == 0:
            greedy, drawn = (1 + statistics.sum(1)).tolist()
            log(f"  step {i + 1}: {time.time() - began:.1f} s, kept a step: argmax {greedy:.3f}, drawn {drawn:.3f}")
    return config, written, optimiser.averaged


def run(target_folder, corpus_file, out, kinds, steps, layers=3, width=512, taps=TAPS, rows=16384, times=2, length=384,
        prompt_lengths=(24, 256), batch=(96, 32), seed=7, log=print):
    """Rolls the target out once and trains each kind on it. Returns {kind: (Config, weights)}."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    target, tokenizer_file = load_target(target_folder, device), pathlib.Path(target_folder) / "tokenizer.json"
    found, _ = documents(corpus_file, tokenizer_file)
    began = time.time()
    data = roll_out(target, found, taps, rows, times, length, prompt_lengths, seed)
    log(f"{len(data.tokens)} sequences of {length} tokens in {time.time() - began:.0f} s")
    trained = {}
    for kind in kinds:
        config, written, weights = train_drafter(kind, target, data, steps, layers, width, taps, seed, batch, log=log)
        folder = pathlib.Path(out) / f"{pathlib.Path(target_folder).name}-{kind}"
        checkpoints.write(folder, written, weights)
        trained[kind] = config, weights
    return target, trained


def load_target(folder, device, dtype=None):
    """A target ready to run: bfloat16 on a GPU, float32 elsewhere, gates in float32 on both."""
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    config, weights = checkpoints.read(folder, device)
    weights = {k: w if k.endswith("A_log") else w.to(dtype) for k, w in weights.items()}
    names = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
    ids = [*names["model"]["vocab"].values(), *(token["id"] for token in names["added_tokens"])]
    return Target(config, weights, dtype, valid_ids=max(ids) + 1)


def load_drafter(folder):
    """(Config, weights) of a drafter that this file wrote, or of one with the same fields."""
    written, weights = checkpoints.read(folder)
    nested = written | written.get("dflash_config", {})
    own = {f.name: nested[f.name] for f in dataclasses.fields(Config) if f.name in nested}
    layers = written["num_hidden_layers"]
    own |= {"first_row_predicts": "dflash_config" not in written, "taps": tuple(nested["target_layer_ids"]),
            "windows": (0,) * layers, "causal": (False,) * layers}
    return Config(**own), weights
