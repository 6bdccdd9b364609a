"""Muon for matrices, Adam for the rest, clipped, with averaged weights; all on the device, so that a step can be a CUDA
graph. Schedules are functions of the step alone."""

import math

import torch


def orthogonalised(g, steps=5):
    """Newton-Schulz iteration on a stack of matrices [n, a, b]: about the nearest semi-orthogonal ones."""
    tall = g.shape[-2] > g.shape[-1]
    x = g.transpose(-1, -2) if tall else g
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16 if g.is_cuda else g.dtype)
    for _ in range(steps):
        square = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.transpose(-1, -2) if tall else x).to(g.dtype)


def is_matrix(name, tensor):
    """Whether Muon takes it: what multiplies activations. Tables, kernels and small tensors go to Adam."""
    table = ("embed_tokens", "markov_w1", "codebook", "in_proj_a", "in_proj_b", "conv1d")
    return tensor.dim() == 2 and min(tensor.shape) >= 32 and not any(part in name for part in table)


class Optimiser:
    def __init__(self, weights, lr, decay, steps, clip=1.0, average=0.998, warmup=0.03, flat=0.2):
        """weights: name -> float32 leaf. The rate rises, stays and falls linearly to 0 over `steps`."""
        self.w, self.lr, self.decay, self.clip, self.average = weights, lr, decay, clip, average
        self.steps, self.warmup, self.flat = steps, warmup, flat
        device = next(iter(weights.values())).device
        self.rate, self.done = torch.zeros((), device=device), torch.zeros((), device=device)
        self.averaged = {name: w.detach().clone() for name, w in weights.items()}
        self.moment = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.groups, self.adam, self.square = {}, [], {}
        for name, w in weights.items():
            if is_matrix(name, w):
                self.groups.setdefault(w.shape, []).append(name)
            else:
                self.adam.append(name)
                self.square[name] = torch.zeros_like(w)

    def schedule(self, step):
        """Sets the rate of step `step`, outside a graph."""
        warm, left = (step + 1) / max(1, self.warmup * self.steps), (self.steps - step) / ((1 - self.flat) * self.steps)
        self.rate.fill_(self.lr * min(1.0, warm, left))

    @torch.no_grad()
    def apply(self, gradients):
        """gradients: name -> tensor. Returns their norm."""
        norms = torch.stack([g.float().norm() for g in gradients.values()])
        norm = norms.norm()
        scale = (self.clip / (norm + 1e-6)).clamp(max=1)
        self.done += 1
        for shape, names in self.groups.items():
            g = torch.stack([gradients[name] for name in names]) * scale
            m = torch.stack([self.moment[name] for name in names]) * 0.95 + g
            step = orthogonalised(g + 0.95 * m) * (0.2 * math.sqrt(max(shape)))
            for i, name in enumerate(names):
                self.moment[name].copy_(m[i])
                self.w[name].mul_(1 - self.rate * self.decay).sub_(step[i] * self.rate)
        for name in self.adam:
            g, m, v = gradients[name] * scale, self.moment[name], self.square[name]
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.98).addcmul_(g, g, value=0.02)
            high = (v / (1 - 0.98**self.done)).sqrt() + 1e-8
            self.w[name].sub_(m / (1 - 0.9**self.done) / high * self.rate)
        for name, mean in self.averaged.items():
            keep = torch.minimum(torch.full_like(self.done, self.average), self.done / (self.done + 9))
            mean.mul_(keep).add_(self.w[name] * (1 - keep))
        return norm


def graphed(step, device, warmup=3):
    """`step`, a function without arguments on static tensors, as a CUDA graph; on a CPU as it is. Its warm-up steps are
    real ones: they count. Returns (function, steps already done)."""
    if device.type != "cuda":
        return step, 0
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay, warmup
