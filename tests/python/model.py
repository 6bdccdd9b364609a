"""The recurrence of the issue in plain float64, token by token, and layers to compare with it."""

import numpy

import deltaring

F = 8


def rounded(x, dtype):
    return x.astype(dtype).astype(numpy.float64)


def recurrence(tokens, S, *, position=0, checkpoint="float32", record="float32", norm="l2", scale=None):
    """Outputs [n, Hv, V] and the state behind the last token. S: [Hv, V, K], changed in place."""
    q, k, v, g, beta = (tokens[name].astype(numpy.float64) for name in ("q", "k", "v", "g", "beta"))
    k, v = rounded(k, record), rounded(v, record)
    n, Hk, K = q.shape
    Hv = v.shape[1]
    if norm == "l2":
        q = q / numpy.sqrt((q**2).sum(-1, keepdims=True) + 1e-6)
        k = k / numpy.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    q = q * (K**-0.5 if scale is None else scale)
    out = numpy.empty((n, Hv, v.shape[2]))
    for t in range(n):
        for h in range(Hv):
            key, query = k[t, h // (Hv // Hk)], q[t, h // (Hv // Hk)]
            S[h] *= numpy.exp(g[t, h])  # [1] or [K], along the columns
            S[h] += numpy.outer(beta[t, h] * (v[t, h] - S[h] @ key), key)
            out[t, h] = S[h] @ query
        if (position + t + 1) % F == 0:
            S[:] = rounded(S, checkpoint)
    return out, S


class Layer:
    """Dims, and the pools of one layer in numpy."""

    def __init__(self, seats=4, Hk=2, Hv=4, K=16, V=8, G=1, R=32, checkpoint="float32", record="float32"):
        self.Hk, self.Hv, self.K, self.V, self.G = Hk, Hv, K, V, G
        self.dtypes = dict(checkpoint=checkpoint, record=record)
        self.state = deltaring.GdnState.allocate(
            numpy.zeros, seats=seats, Hk=Hk, Hv=Hv, K=K, V=V, R=R, G=G, float32="float32", **self.dtypes
        )

    def tokens(self, rng, n):
        normal = lambda *shape: rng.standard_normal(shape).astype("float32")
        return dict(
            q=normal(n, self.Hk, self.K),
            k=normal(n, self.Hk, self.K),
            v=normal(n, self.Hv, self.V),
            g=-rng.uniform(0.003, 0.3, (n, self.Hv, self.G)).astype("float32"),
            beta=rng.uniform(0, 1, (n, self.Hv)).astype("float32"),
        )

    def run(self, op, tokens, rows, **options):
        out = numpy.full((len(tokens["q"]), self.Hv, self.V), numpy.nan, "float32")
        op(**tokens, rows=rows, state=self.state, out=out, grain=F, **options)
        return out

    def zero_state(self):
        return numpy.zeros((self.Hv, self.V, self.K))


def rows_of(lengths, seats=None, first=None, folded=None, fold_to=None):
    B = len(lengths)
    first = numpy.array(first if first is not None else [0] * B, "int64")
    return deltaring.Rows(
        start=numpy.concatenate([[0], numpy.cumsum(lengths)]).astype("int32"),
        seat=numpy.array(seats if seats is not None else range(B), "int32"),
        first=first,
        folded=numpy.array(folded if folded is not None else first - first % F, "int64"),
        fold_to=numpy.array(fold_to if fold_to is not None else first - first % F, "int64"),
        order=numpy.arange(B, dtype="int32"),
        longest=max(lengths, default=0),
    )


def join(pieces):
    return {name: numpy.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def part(tokens, begin, end):
    return {name: array[begin:end] for name, array in tokens.items()}
