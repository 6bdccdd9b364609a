"""What the block drafters are trained on: the number of drafts that the target is expected to keep.

For a path x_1..x_m of the target's own tokens with laws p_j, and a drafter with laws q_j behind the same path, rejection
sampling keeps draft j with probability alpha_j = sum_v min(p_j, q_j), if it comes that far. It comes that far along this
path with probability prod_{i<j} min(1, q_i(x_i) / p_i(x_i)), given that the path is the target's. So

    kept = sum_j alpha_j prod_{i<j} min(1, q_i(x_i) / p_i(x_i))

is in expectation over paths the number of kept drafts, exactly. Greedy decoding is the same with p_j the one-hot law of
the token. Its gradient by the logits is known in closed form, beside a cross-entropy that keeps it alive where q is far
from p.
"""

import torch


def acceptance(q, p, labels):
    """alpha [..., m], min(1, q(x) / p(x)) [..., m] for laws [..., m, V] and tokens [..., m]."""
    qx, px = (law.gather(-1, labels[..., None])[..., 0] for law in (q, p))
    return torch.minimum(q, p).sum(-1), (qx / px.clamp(min=1e-20)).clamp(max=1)


def reached(ratio):
    """The chance that each row is reached [..., m]: the product of the ratios before it."""
    return torch.cat([torch.ones_like(ratio[..., :1]), ratio[..., :-1]], -1).cumprod(-1)


def teacher_law(logits, labels, greedy, valid_ids):
    """logits [N, m, V]; one-hot in the rows whose sequence was decoded greedily, greedy [N]."""
    logits = logits.float()
    padding = torch.arange(logits.shape[-1], device=logits.device) >= valid_ids
    law = logits.masked_fill(padding, float("-inf")).softmax(-1)
    token = torch.arange(logits.shape[-1], device=logits.device) == labels[..., None]
    return torch.where(greedy[:, None, None], token.to(law.dtype), law)


def gradient(logits, teacher, labels, greedy, valid_ids, weights, progress):
    """(d loss / d logits [N, m, V], statistics [2, m], alpha [N, m]).

    The loss is a weighted cross-entropy to p minus `progress` times twice the kept drafts, mean over the N blocks.
    weights [m]: of the cross-entropy at the start; with progress (0 to 1) rows that are reached often take over.
    statistics: means of the cross-entropy's greedy hits and of alpha weighted by reach, that is kept drafts by row.
    """
    with torch.no_grad():
        p = teacher_law(teacher, labels, greedy, valid_ids)
        wide = logits.float()
        q = wide.softmax(-1)
        alpha, ratio = acceptance(q, p, labels)
        reach = reached(ratio)
        kept = reach * alpha
        qx, px = (law.gather(-1, labels[..., None]) for law in (q, p))
        behind = kept.flip(-1).cumsum(-1).flip(-1) - kept  # sum over the rows behind this one
        less = (q < p).to(q.dtype)
        share = (q * less).sum(-1, keepdim=True)
        token = torch.arange(q.shape[-1], device=q.device) == labels[..., None]
        rise = reach[..., None] * q * (less - share)
        rise = rise + (behind[..., None] * (qx < px)) * (token.to(q.dtype) - q)
        cross = (1 - progress) * weights + progress * (0.1 * weights + 0.3 * reach)
        slope = cross[..., None] * (q - p) - 2 * progress * rise
        hits = (wide.argmax(-1) == labels).to(q.dtype)
        statistics = torch.stack([hits.cumprod(-1).flatten(0, -2).mean(0), kept.flatten(0, -2).mean(0)])
        return (slope / logits.shape[0]).to(logits.dtype), statistics, alpha
