"""Products of matrices, and what is built of them: einsum, recurrent layers, attention."""

from __future__ import annotations

import numpy as np

from fuzz.drawing import FLOATS, Drawing, Value
from fuzz.moving import integers
from fuzz.pointwise import bounded
from fuzz.registry import operator
from fuzz.telling import Rejected


@operator("MatMul", weight=3)
def matmul(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (1, 2, 3, 4))
    k = x.shape[-1]
    rank = d.choice([1, 2, 2, 2, 3, 4])
    shape = (k,) if rank == 1 else (*_batch(d, x, rank - 2), k, d.choice([1, 2, 3, 5, 8, 17]))
    y = _weight(d, shape)
    if d.chance(0.15) and x.rank > 1:
        rows = x.shape[-2]
        y = _weight(d, (*_batch(d, x, rank - 2), d.choice([1, 3, 4, 6]), rows) if rank > 1 else (rows,))
        return d.add(name, y, x)
    return d.add(name, x, y)


def _batch(d: Drawing, x: Value, rank: int) -> tuple[int, ...]:
    """Batch axes that are broadcast with those of x."""
    mine = (*(1,) * rank, *x.shape[:-2])[-rank:] if rank else ()
    return tuple(1 if d.chance(0.3) else (extent if extent > 1 else d.choice([1, 2, 3])) for extent in mine)


def _weight(d: Drawing, shape: tuple[int, ...], constant: float = 0.7) -> Value:
    array = d.array(shape)
    try:
        return d.constant(array) if d.chance(constant) else d.given(array)
    except Rejected:
        return d.constant(array)


@operator("Gemm", weight=2.5)
def gemm(d: Drawing, name: str) -> Value:
    x = d.tensor(FLOATS, (2,))
    a, b = d.choice([None, 0, 1]), d.choice([None, 0, 1])
    m, k = x.shape[::-1] if a else x.shape
    n = d.choice([1, 2, 3, 5, 8, 16])
    y = _weight(d, (n, k) if b else (k, n))
    shapes = [(n,), (1, n), (m, 1), (m, n), (1,), ()]
    bias = [] if d.opset >= 11 and d.chance(0.2) else [_weight(d, d.choice(shapes))]
    return d.add(name, x, y, *bias, transA=a, transB=b, alpha=d.choice([None, 0.5]), beta=d.choice([None, 1.5]))


_EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "bij,jk->bik", "bhid,bhjd->bhij", "ij->ji", "ij->i", "ii->i",
    "i,j->ij", "ij,ij->ij", "ij,ij->", "bij,bkj->ikb", "...ij,...jk->...ik", "abc,cd->abd", "ijk->kij", "ij,j->i",
    "ab,bc,cd->ad", "bij,bj->bi", "ij,jk", "bnij,bnjk->bnik", "bid,bjd->bij", "ijk,ilm->jklm",
)  # fmt: skip


@operator("Einsum", since=12, weight=1.5)
def einsum(d: Drawing, name: str) -> Value:
    equation = d.choice(_EQUATIONS)
    letters = {letter: d.choice([1, 2, 3, 4, 5]) for letter in equation if letter.isalpha()}
    terms = equation.partition("->")[0].split(",")
    operands: list[Value] = []
    for term in terms:
        there = [value for value in d.values if value.dtype == "float32" and value.rank == len(term)]
        fresh = not any(letter in "".join(terms[: len(operands)]) for letter in term)
        if there and fresh and "..." not in equation and len(set(term)) == len(term):
            found = d.choice(there)
            letters |= dict(zip(term, found.shape, strict=True))
            operands.append(found)
            continue
        batch = (2,) if term.startswith("...") else ()
        operands.append(_weight(d, (*batch, *(letters[letter] for letter in term.replace("...", ""))), 0.4))
    return d.add(name, *operands, equation=equation)


_ACTIVATIONS = {"RNN": ("Relu", "Sigmoid", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@operator("LSTM", "GRU", "RNN", weight=1.5)
def recurrent(d: Drawing, name: str) -> tuple[Value, ...]:
    layout = d.choice([None, None, None, 1]) if d.opset >= 14 else None
    # Where all gates are closed, only the rounding of their functions is left.
    x = bounded(d, d.tensor(FLOATS, (3,), lambda value: max(value.shape[:2]) <= 9), 2.0)
    steps, batch = x.shape[:2] if layout is None else (x.shape[1], x.shape[0])
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[name], d.choice([1, 2, 3, 5])
    direction = d.choice([None, "forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1

    def part(*shape: int) -> Value:
        return d.constant(0.5 * d.array(shape))

    inputs: list[Value | None] = [x, part(ways, gates * hidden, x.shape[2]), part(ways, gates * hidden, hidden)]
    first = (batch, ways, hidden) if layout else (ways, batch, hidden)
    inputs.append(part(ways, 2 * gates * hidden) if d.chance(0.7) else None)
    inputs.append(integers(d, d.rng.integers(1, steps + 1, batch), "int32") if d.chance(0.2) else None)
    inputs.append(part(*first) if d.chance(0.4) else None)
    if name == "LSTM":
        inputs.append(part(*first) if d.chance(0.4) else None)
        inputs.append(part(ways, 3 * hidden) if d.chance(0.3) else None)
    while inputs[-1] is None:
        inputs.pop()
    wanted = [d.chance(0.8), d.chance(0.5), d.chance(0.4)][: 3 if name == "LSTM" else 2]
    if not any(wanted):
        wanted[0] = True
    functions = None
    if d.chance(0.2):
        functions = list(_ACTIVATIONS[name][-{"RNN": 1, "GRU": 2, "LSTM": 3}[name] :]) * ways
        functions[d.integer(0, len(functions) - 1)] = d.choice(["Relu", "Tanh", "Sigmoid"])
    return d.add_all(
        name,
        inputs,
        wanted,
        hidden_size=hidden,
        direction=direction,
        layout=layout,
        activations=functions,
        clip=d.choice([None, None, 0.7]),
        linear_before_reset=d.choice([None, 0, 1]) if name == "GRU" else None,
        input_forget=d.choice([None, None, 1]) if name == "LSTM" else None,
    )


@operator("Attention", since=23)
def attention(d: Drawing, name: str) -> Value:
    batch, heads, rows, columns, depth = (d.choice([1, 2]), d.choice([1, 2, 4]), *(d.integer(1, 6) for _ in range(3)))
    shared = d.choice([g for g in (1, 2, heads) if heads % g == 0])
    q = d.given(d.array((batch, heads, rows, depth)))
    k, v = (_weight(d, (batch, shared, columns, depth), 0.5) for _ in range(2))
    mask = [_weight(d, (rows, columns))] if d.chance(0.3) else []
    return d.add(
        name,
        q,
        k,
        v,
        *mask,
        is_causal=d.choice([None, 0, 1]),
        scale=d.choice([None, 0.5]),
        softcap=d.choice([None, None, 2.0]),
    )


@operator("RotaryEmbedding", since=23)
def rotary(d: Drawing, name: str) -> Value:
    batch, heads, steps, half = d.choice([1, 2]), d.choice([1, 2]), d.integer(1, 5), d.choice([1, 2, 4])
    x = d.given(d.array((batch, heads, steps, 2 * half)))
    tables = [d.constant(f(d.array((7, half)))) for f in (np.cos, np.sin)]
    ids = integers(d, d.rng.integers(0, 7, (batch, steps)))
    return d.add(name, x, *tables, ids, interleaved=d.choice([None, 0, 1]))


@operator("Det", since=11)
def determinant(d: Drawing, name: str) -> Value:
    size = d.choice([1, 2, 3])
    return d.add(name, d.tensor(FLOATS, (2, 3), lambda value: value.shape[-2:] == (size, size)))


@operator("Residual", weight=2)
def residual(d: Drawing, name: str) -> Value:
    """What a layer makes is added to what it reads: the value is read twice."""
    x = d.tensor(FLOATS, (2, 3, 4))
    k = x.shape[-1]
    inside = d.add("MatMul", x, d.constant(d.array((k, k)) / np.float32(np.sqrt(k))))
    inside = d.add("Add", inside, d.constant(d.array((k,))))
    d.hide(inside)
    return d.add("Add", d.add(d.choice(["Relu", "Tanh", "Sigmoid"]), inside), x)
