"""Triton's own configurations, searched and checked: `python examples/triton_kernels.py` (a GPU, torch and Triton).

A matrix product and an attention in float16. `check` compares each configuration with torch: one that computes
something else never wins. `TRITON_INTERPRET=1 python examples/triton_kernels.py` needs no GPU; its times say nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import stormdrop as sd
from stormdrop.integrations.triton_configs import configs_of, untuned


@triton.autotune(
    [
        triton.Config({"ROWS": 32, "COLUMNS": 32, "DEPTH": 32}, num_warps=4, num_stages=3),
        triton.Config({"ROWS": 64, "COLUMNS": 64, "DEPTH": 32}, num_warps=4, num_stages=4),
        triton.Config({"ROWS": 128, "COLUMNS": 64, "DEPTH": 32}, num_warps=8, num_stages=3),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def product(a, b, c, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, k, DEPTH):
        left = first + tl.arange(0, DEPTH)[None, :]
        right = first + tl.arange(0, DEPTH)[:, None]
        block_of_a = tl.load(a + rows * k + left, (rows < m) & (left < k), 0.0)
        block_of_b = tl.load(b + right * n + columns, (right < k) & (columns < n), 0.0)
        sums += tl.dot(block_of_a, block_of_b)
    tl.store(c + rows * n + columns, sums.to(tl.float16), (rows < m) & (columns < n))


@triton.autotune(
    [triton.Config({"QUERIES": q, "KEYS": k}, num_warps=4, num_stages=2) for q in (32, 64) for k in (16, 32)],
    key=["length"],
)
@triton.jit
def attend(q, k, v, out, length, scale, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    head = tl.program_id(1) * length * WIDTH
    queries = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)[:, None]
    channels = tl.arange(0, WIDTH)[None, :]
    rows_of_q = tl.load(q + head + queries * WIDTH + channels, queries < length, 0.0)
    largest = tl.full((QUERIES, 1), -float("inf"), tl.float32)
    weights = tl.zeros((QUERIES, 1), tl.float32)
    sums = tl.zeros((QUERIES, WIDTH), tl.float32)
    for first in range(0, length, KEYS):
        keys = first + tl.arange(0, KEYS)
        places = head + keys[:, None] * WIDTH + channels
        rows_of_k = tl.load(k + places, keys[:, None] < length, 0.0)
        rows_of_v = tl.load(v + places, keys[:, None] < length, 0.0)
        scores = tl.dot(rows_of_q, tl.trans(rows_of_k)) * scale
        scores = tl.where(keys[None, :] < length, scores, -float("inf"))
        now = tl.maximum(largest, tl.max(scores, 1)[:, None])
        shares = tl.exp(scores - now)
        before = tl.exp(largest - now)
        weights = weights * before + tl.sum(shares, 1)[:, None]
        sums = sums * before + tl.dot(shares.to(tl.float16), rows_of_v)
        largest = now
    tl.store(out + head + queries * WIDTH + channels, (sums / weights).to(tl.float16), queries < length)


@sd.autotune(configs_of(product), trials=3, time="30s", check=torch.matmul)
def matmul(a: torch.Tensor, b: torch.Tensor, **config: int) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = triton.cdiv(m, config["ROWS"]), triton.cdiv(n, config["COLUMNS"])
    untuned(product)[grid](a, b, c, m, n, k, **config)
    return c


@sd.autotune(
    configs_of(attend), trials=4, time="30s", check=torch.nn.functional.scaled_dot_product_attention, tolerance=1e-2
)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **config: int) -> torch.Tensor:
    heads, length, width = q.shape
    out = torch.empty_like(q)
    grid = triton.cdiv(length, config["QUERIES"]), heads
    untuned(attend)[grid](q, k, v, out, length, width**-0.5, WIDTH=width, **config)
    return out


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, length = (1024, 512) if device == "cuda" else (72, 40)
    a, b = (torch.randn(size, size, dtype=torch.float16, device=device) for _ in range(2))
    q, k, v = (torch.randn(2, length, 64, dtype=torch.float16, device=device) for _ in range(3))
    matmul(a, b)  # these calls tune
    attention(q, k, v)
    for name, tuned in (("matmul", matmul), ("attention", attention)):
        (result,) = tuned.results.values()
        (seconds,) = tuned.check_seconds.values()
        print(f"{name}: {result.best.config}, {result.best.seconds * 1e6:.0f} us")
        print(f"{result.trials} configurations, {result.failed} of them refused; the checks took {seconds:.1f} s")


if __name__ == "__main__":
    main()
