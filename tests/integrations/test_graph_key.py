"""The key of a graph of torch: equal for what computes the same, another one for all that the code depends on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the graphs are torch's")

from stormdrop.integrations.closed_graph import written_inputs  # noqa: E402
from stormdrop.integrations.graph_key import NoKey, key_of  # noqa: E402


def graph_of(function: Callable[..., Any]) -> Any:
    return torch.fx.symbolic_trace(function)


def linear(x: Any, w: Any) -> Any:
    return torch.relu(torch.nn.functional.linear(x, w) + 1.0)


def other(x: Any, w: Any) -> Any:
    return torch.relu(torch.nn.functional.linear(x, w) + 2.0)


X, W = torch.ones(2, 3), torch.arange(12.0).reshape(4, 3)


def key(function: Callable[..., Any] = linear, x: Any = X, w: Any = W, fixed: bool = True, *others: Any) -> str:
    return key_of(graph_of(function), (x, w), (False, fixed), *others)


def test_it_does_not_depend_on_names_and_values_of_inputs() -> None:
    def renamed(y: Any, weight: Any) -> Any:
        z = torch.nn.functional.linear(y, weight)
        return torch.relu(z + 1.0)

    assert key() == key(renamed) == key(x=X + 1)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: key(other),
        lambda: key(x=torch.ones(3, 3)),
        lambda: key(x=X.double()),
        lambda: key(x=torch.ones(3, 2).t()),
        lambda: key(x=torch.ones(3, 3)[1:]),
        lambda: key(x=torch.ones(2, 6)[:, ::2]),
        lambda: key(w=W + 1),
        lambda: key(w=torch.arange(12.0).reshape(3, 4).t()),
        lambda: key(linear, X, W, False),
        lambda: key(linear, X, W, True, "an option"),
    ],
)
def test_everything_else_counts(changed: Callable[[], str]) -> None:
    assert changed() != key()


def test_settings_of_torch_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert key() != before
    assert key() == before


def test_an_infinite_and_an_empty_weight_have_keys() -> None:
    infinite = W.clone()
    infinite[0, 0] = float("nan")
    assert key(w=infinite) == key(w=infinite.clone()) != key()
    assert key(w=torch.ones(0, 3)) != key(w=torch.ones(0, 4))


def test_sparse_inputs_have_no_key() -> None:
    with pytest.raises(NoKey, match=r"a tensor of torch\.sparse_coo"):
        key(x=X.to_sparse())


def own(x: Any) -> Any:
    return x + 1


torch.fx.wrap("own")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.max_pool2d(x, 2),  # whose own name is that of a function inside of another one
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x).flatten(1),
        lambda x: torch.cat([x, -x], 1)[..., None, ::2].to(torch.float64) + x.shape[0] % 3,
        lambda x: torch.ops.aten.gelu.default(x, approximate="tanh"),
    ],
)
def test_functions_of_torch_have_keys(function: Callable[..., Any]) -> None:
    assert len(key_of(graph_of(function), (torch.ones(2, 3, 4, 4),), (False,))) == 64


def test_functions_of_others_have_no_key() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(own, (x,)),))
    with pytest.raises(NoKey, match="own, which is not torch's"):
        key_of(torch.fx.GraphModule({}, graph), (X,), (False,))


def test_it_is_the_same_in_another_process() -> None:
    program = "import test_graph_key; print(test_graph_key.key())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    assert done.stdout.strip() == key(), done.stderr


def test_writes_are_seen() -> None:
    def writes(x: Any, cache: Any, length: Any) -> Any:
        length.add_(1)
        cache[:, 1].copy_(x)
        return cache.sum() + torch.nn.functional.relu(x + 1, inplace=True).sum()

    arguments = (torch.ones(2), torch.ones(2, 3), torch.tensor(1))
    assert written_inputs(graph_of(writes), arguments) == (1, 2)
    assert arguments[2].item() == 1  # they were not run
    assert written_inputs(graph_of(linear), (X, W)) == ()
