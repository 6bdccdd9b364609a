"""Replaces the decode loop of a Gated-DeltaNet layer in PyTorch: python3 examples/torch_decode.py [--device cuda].

The loop below is what such a layer does a token at a time: normalise q and k, decay the state, correct it, read it. The
library does the same from a checkpoint and a ring of records. Prints the error between both and the time of each, and
exits with 1 when they differ by more than float32 allows.
"""

import argparse
import functools
import sys
import time

import torch

import deltaring

F = 8  # checkpoints stand on multiples of F tokens


def naive_step(S, q, k, v, a, b, A_log, dt_bias):
    """One token of every request. S [B, Hv, V, K], q and k [B, Hk, K], v [B, Hv, V], a and b [B, Hv]."""
    repeat = v.shape[1] // k.shape[1]
    unit = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    q = (unit(q) * q.shape[-1] ** -0.5).repeat_interleave(repeat, 1)
    k = unit(k).repeat_interleave(repeat, 1)
    g = -A_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    S = S * g.exp()[..., None, None]
    delta = torch.sigmoid(b)[..., None] * (v - torch.einsum("bhvk,bhk->bhv", S, k))
    S = S + torch.einsum("bhv,bhk->bhvk", delta, k)
    return S, torch.einsum("bhvk,bhk->bhv", S, q)


def inputs(args, generator):
    """What conv and projections hand to the layer: q, k, v, a, b of every token, and the layer's weights."""
    normal = functools.partial(torch.randn, generator=generator)
    n, B, Hk, Hv, K, V = args.tokens, args.batch, args.key_heads, args.value_heads, args.dim, args.dim
    tokens = [normal(n, B, Hk, K), normal(n, B, Hk, K), normal(n, B, Hv, V), normal(n, B, Hv), normal(n, B, Hv)]
    weights = [torch.rand(Hv, generator=generator).log(), normal(Hv)]
    return [x.to(args.device) for x in tokens], [x.to(args.device) for x in weights]


def naive(args, tokens, weights):
    S = torch.zeros(args.batch, args.value_heads, args.dim, args.dim, device=args.device)
    out = []
    for q, k, v, a, b in zip(*tokens):
        S, o = naive_step(S, q, k, v, a, b, *weights)
        out.append(o)
    return torch.stack(out)


def with_deltaring(args, tokens, weights):
    B, T, Hv = args.batch, 1, args.value_heads  # plain decoding is a window of one token
    array = functools.partial(torch.zeros, device=args.device)
    state = deltaring.GdnState.allocate(
        array,
        seats=B,
        Hk=args.key_heads,
        Hv=Hv,
        K=args.dim,
        V=args.dim,
        R=deltaring.default_ring_rows(T, F),
        checkpoint=torch.float32,
        record=torch.float32,
        float32=torch.float32,
    )
    rows = deltaring.Rows(
        start=torch.arange(0, B * T + 1, T, dtype=torch.int32, device=args.device),
        seat=torch.arange(B, dtype=torch.int32, device=args.device),
        first=array(B, dtype=torch.int64),
        folded=array(B, dtype=torch.int64),
        fold_to=array(B, dtype=torch.int64),
        longest=T,
    )
    kept = torch.full((B,), T, dtype=torch.int32, device=args.device)
    A_log, dt_bias = weights[0], weights[1][:, None]
    out = torch.empty(args.tokens, B, Hv, args.dim, device=args.device)
    for t, (q, k, v, a, b) in enumerate(zip(*tokens)):
        deltaring.gdn_verify(
            q, k, v, a[..., None], b, A_log=A_log, dt_bias=dt_bias, rows=rows, state=state, out=out[t], grain=F
        )
        deltaring.commit(rows, kept, F=F)  # once a step, for all layers
    return out


def timed(function, *args):
    wait = torch.cuda.synchronize if args[0].device.startswith("cuda") else lambda: None
    wait()
    start = time.perf_counter()
    out = function(*args)
    wait()
    return out, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--key-heads", type=int, default=4)
    parser.add_argument("--value-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    args = parser.parse_args()

    tokens, weights = inputs(args, torch.Generator().manual_seed(0))
    want, naive_seconds = timed(naive, args, tokens, weights)
    out, seconds = timed(with_deltaring, args, tokens, weights)
    error, largest = (out - want).abs().max().item(), want.abs().max().item()
    print(f"{args.tokens} tokens of {args.batch} requests on {args.device}, one layer of {args.value_heads} heads")
    print(f"largest error {error:.1e} of {largest:.1e}")
    print(
        f"naive loop {naive_seconds * 1e6 / args.tokens:.0f} us a token, deltaring {seconds * 1e6 / args.tokens:.0f} us"
    )
    sys.exit(0 if error <= 1e-4 * largest else 1)


main()
