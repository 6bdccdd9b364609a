"""Speculative decoding driven from PyTorch: python3 examples/torch_speculate.py [--device cuda] [--dtype bfloat16].

A drafter's work and the target's verdict are played by chance: every step the window of each request holds the anchor and
T-1 drafts, of which a random number is right; the others are random tokens. The layer's outputs of the kept tokens must
have the bits of one-token decoding of the same text. Exits with 1 when they have not.
"""

import argparse
import functools
import sys

import torch

import deltaring

F = 8  # checkpoints stand on multiples of F tokens


class Layer:
    """One Gated-DeltaNet layer: its pools for B requests, and their cursors, which all layers of a model share."""

    def __init__(self, args, T):
        self.args, self.T, B = args, T, args.batch
        zeros = functools.partial(torch.zeros, device=args.device)
        dtype = getattr(torch, args.dtype)
        self.state = deltaring.GdnState.allocate(
            zeros,
            seats=B,
            Hk=args.key_heads,
            Hv=args.value_heads,
            K=args.dim,
            V=args.dim,
            R=deltaring.default_ring_rows(T, F),
            checkpoint=dtype,
            record=dtype,
            float32=torch.float32,
        )
        self.rows = deltaring.Rows(
            start=torch.arange(0, B * T + 1, T, dtype=torch.int32, device=args.device),
            seat=torch.arange(B, dtype=torch.int32, device=args.device),
            first=zeros(B, dtype=torch.int64),
            folded=zeros(B, dtype=torch.int64),
            fold_to=zeros(B, dtype=torch.int64),
            order=torch.arange(B, dtype=torch.int32, device=args.device),
            longest=T,
        )

    def verify(self, q, k, v, g, beta):
        """The window of every request: tensors [B, T, ...]. Writes records, and the checkpoint where a fold is due."""
        out = torch.empty(v.shape, device=v.device)
        flat = [x.flatten(0, 1) for x in (q, k, v, g, beta)]
        deltaring.gdn_verify(*flat, rows=self.rows, state=self.state, out=out.flatten(0, 1), grain=F, bit_exact=True)
        return out

    def commit(self, kept):
        """Moves two integers a request. What was rejected is overwritten by the next window."""
        deltaring.commit(self.rows, kept, F=F)


def random_tokens(args, n, generator):
    """q, k, v, g, beta of n tokens of every request, [B, n, ...]."""
    B, Hk, Hv, D = args.batch, args.key_heads, args.value_heads, args.dim
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(args.device)
    q, k, v = (normal(B, n, H, D).to(getattr(torch, args.dtype)) for H in (Hk, Hk, Hv))
    return q, k, v, -normal(B, n, Hv, 1).abs() / 4, torch.sigmoid(normal(B, n, Hv))


def window(text, drafts, first, kept):
    """The next T tokens of every request: the text's own where a draft is right, others behind that."""
    T = drafts[0].shape[1]
    at = torch.arange(T, device=first.device)
    right = at < kept[:, None]
    request = torch.arange(len(first), device=first.device)[:, None]
    shaped = lambda mask, x: mask.reshape(mask.shape + (1,) * (x.dim() - 2))
    return [torch.where(shaped(right, x), x[request, first[:, None] + at], draft) for x, draft in zip(text, drafts)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--window", type=int, default=4, help="T: anchor and drafts")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--key-heads", type=int, default=2)
    parser.add_argument("--value-heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator, T = torch.Generator().manual_seed(args.seed), args.window

    text = random_tokens(args, args.steps * T + T, generator)  # what the target would say
    layer, spoken = Layer(args, T), [[] for _ in range(args.batch)]
    for _ in range(args.steps):
        kept = torch.randint(1, T + 1, (args.batch,), generator=generator, dtype=torch.int32).to(args.device)
        drafts = random_tokens(args, T, generator)
        out = layer.verify(*window(text, drafts, layer.rows.first, kept))
        for b in range(args.batch):
            spoken[b].append(out[b, : kept[b]])
        layer.commit(kept)

    plain, one = Layer(args, 1), torch.ones(args.batch, dtype=torch.int32, device=args.device)
    single = []
    for p in range(int(layer.rows.first.max())):
        single.append(plain.verify(*(x[:, p : p + 1].contiguous() for x in text)))
        plain.commit(one)
    single = torch.cat(single, 1)

    tokens, different = 0, 0
    for b in range(args.batch):
        out = torch.cat(spoken[b])
        tokens += len(out)
        different += (out != single[b, : len(out)]).flatten(1).any(1).sum().item()
    print(f"{args.steps} steps of {args.batch} requests on {args.device}, T={T}, states and records in {args.dtype}")
    print(f"{tokens} tokens, {tokens / args.steps / args.batch:.2f} a step; {different} differ from one-token decoding")
    sys.exit(1 if different else 0)


main()
