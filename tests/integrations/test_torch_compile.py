"""`torch.compile(..., backend="stormdrop")`: graph breaks, sizes, gradients, changed weights, what runs eagerly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest

from stormdrop.errors import InputError, ModelError
from stormdrop.model import untuned
from stormdrop.model.kept_models import KeptModels

torch = pytest.importorskip("torch", reason="the backend for torch.compile needs torch")

from stormdrop.integrations import torch_compile  # noqa: E402

pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def _no_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.compiler.reset()
    with torch.no_grad():
        yield


def network() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers).eval()


def compiled(module: Any, tmp_path: Path, **options: Any) -> Any:
    options["db"] = f"sqlite:///{tmp_path}/records.db"

    def backend(graph: Any, inputs: Any) -> Any:
        return torch_compile.stormdrop(graph, inputs, options=options)

    return torch.compile(module, backend=backend)


def test_each_size_is_compiled_and_the_same_size_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    true = untuned.compile_model_with

    def compile_model_with(*arguments: Any, **named: Any) -> Any:
        made.append(named["example_inputs"][0].shape[0])
        return true(*arguments, **named)

    monkeypatch.setattr(untuned, "compile_model_with", compile_model_with)
    module = network()
    fast = compiled(module, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for rows in (2, 3, 5, 3, 5):  # Dynamo makes one graph for 2, and one for all other sizes
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), module(x), atol=1e-5, rtol=1e-5)
    assert made == [2, 3, 5]


def test_a_graph_break_makes_two_graphs_and_structures_stay(tmp_path: Path) -> None:
    first, second = network(), torch.nn.Linear(4, 4)

    def function(x: Any) -> Any:
        y = first(x)
        torch._dynamo.graph_break()
        return {"y": y, "z": (second(y), 3)}

    x = torch.randn(2, 8)
    ours, right = compiled(function, tmp_path)(x), function(x)
    torch.testing.assert_close(ours["z"][0], right["z"][0], atol=1e-5, rtol=1e-5)
    assert ours["z"][1] == 3 and ours["y"].shape == (2, 4)


def test_gradients_run_eagerly_with_one_warning(tmp_path: Path) -> None:
    module = network()
    fast = compiled(module, tmp_path)
    with torch.enable_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        fast(torch.randn(2, 8)).sum().backward()
        fast(torch.randn(2, 8))
    (said,) = [str(each.message) for each in caught if "stormdrop" in str(each.message)]
    assert "has to compute gradients; call it inside" in said
    assert module[0].weight.grad is not None


def test_changed_weights_are_not_ignored(tmp_path: Path) -> None:
    module, x = network(), torch.randn(2, 8)
    fast = compiled(module, tmp_path)
    fast(x)
    module[3].bias += 1.0
    with pytest.warns(RuntimeWarning, match="its weights have changed"):
        torch.testing.assert_close(fast(x), module(x))


def test_weights_that_were_replaced_are_not_ignored(tmp_path: Path) -> None:
    module, x = network(), torch.randn(2, 8)
    fast = compiled(module, tmp_path)
    fast(x)
    module[3].bias.data = module[3].bias.data + 1.0
    with pytest.warns(RuntimeWarning, match="its weights have changed"):
        torch.testing.assert_close(fast(x), module(x))


def write_and_read(x: Any, y: Any) -> Any:
    x.add_(1.0)
    return y * 2.0


def write_both(x: Any, y: Any) -> Any:
    x.add_(1.0)
    y.mul_(3.0)
    return x + 1.0


def write_a_row(x: Any, y: Any) -> Any:
    x[0].copy_(y[0])
    return x * 2.0


SHARED = {
    "a view": lambda base: (base, base[:]),
    "a part": lambda base: (base[:3], base[2:]),
    "columns": lambda base: (base[:, ::2], base[:, 1::2]),
    "another storage": lambda base: (base, torch.from_numpy(base.numpy())),
}
ITSELF = pytest.param(write_a_row, lambda base: (base[:1].expand(4, 4), torch.ones(4, 4)), id="itself")
APART = {
    "two": lambda base: (base, torch.ones(4, 4)),
    "rows": lambda base: (base[:2], base[2:]),
    "columns": lambda base: (base[:, ::2], torch.ones(4, 2)),
}


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        *(
            pytest.param(function, inputs, id=f"{function.__name__}-{name}")
            for function in (write_and_read, write_both, write_a_row)
            for name, inputs in SHARED.items()
        ),
        ITSELF,
    ],
)
def test_what_is_written_to_shared_memory_is_not_ignored(function: Any, inputs: Any, tmp_path: Path) -> None:
    ours, right = (torch.arange(16.0).reshape(4, 4) for _ in range(2))
    fast = compiled(function, tmp_path)
    x, y = (one.clone() for one in inputs(ours))
    fast(x, y)  # the graph is compiled, if Dynamo takes it for the same one
    with pytest.warns(RuntimeWarning, match="memory another input shares"):
        torch.testing.assert_close(fast(*inputs(ours)), function(*inputs(right)))
    torch.testing.assert_close(ours, right)


def test_a_call_that_shares_what_it_writes_is_not_compiled_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, real = [], torch_compile._model_of

    def noting(work: Any) -> Any:
        works.append(work)
        return real(work)

    monkeypatch.setattr(torch_compile, "_model_of", noting)
    fast = compiled(write_both, tmp_path)
    ours, right = (torch.arange(16.0).reshape(4, 4) for _ in range(2))
    with pytest.warns(RuntimeWarning, match="memory another input shares"):
        torch.testing.assert_close(fast(ours[:3], ours[1:]), write_both(right[:3], right[1:]))
    assert not works
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    torch.testing.assert_close(fast(x, y), torch.full((3, 4), 3.0))
    assert len(works) == 1 and (x == 2.0).all() and (y == 3.0).all()


@pytest.mark.parametrize("inputs", APART.values(), ids=APART)
def test_parts_of_a_tensor_that_share_nothing_are_compiled(inputs: Any, tmp_path: Path) -> None:
    ours, right = (torch.arange(16.0).reshape(4, 4) for _ in range(2))
    fast = compiled(write_both, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.testing.assert_close(fast(*inputs(ours)), write_both(*inputs(right)))
    torch.testing.assert_close(ours, right)


LYING = {
    "transposed": lambda: torch.arange(12.0).reshape(4, 3).t(),
    "offset": lambda: torch.arange(15.0)[3:].reshape(3, 4),
    "every second": lambda: torch.arange(24.0).reshape(3, 8)[:, ::2],
}


@pytest.mark.parametrize("lying", LYING.values(), ids=LYING)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.as_strided(x, (2, 2), (1, 3), 0) * 2.0,
        lambda x: x.as_strided((2, 2), (1, 3)) * 2.0,
        lambda x: torch.ops.aten.as_strided.default(x, [2, 2], [1, 3]) * 2.0,
    ],
)
def test_how_an_input_lies_is_not_ignored(function: Any, lying: Any, tmp_path: Path) -> None:
    x = lying()
    with pytest.warns(RuntimeWarning, match="reads an input by strides"):
        torch.testing.assert_close(compiled(function, tmp_path)(x), function(x))


@pytest.mark.parametrize("lying", LYING.values(), ids=LYING)
def test_inputs_that_lie_otherwise_are_compiled(lying: Any, tmp_path: Path) -> None:
    x, fast = lying(), compiled(lambda x: torch.relu(x).reshape(-1) + 1.0, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.testing.assert_close(fast(x), torch.relu(x).reshape(-1) + 1.0)


def test_weights_that_share_what_is_written_are_not_ignored(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 4, bias=False).eval()

    def function(x: Any, rows: Any) -> Any:
        rows.add_(1.0)
        return module(x)

    fast, x, rows = compiled(function, tmp_path), torch.ones(1, 4), module.weight.detach()[1:3]
    torch.testing.assert_close(fast(x, rows.clone()), module(x), atol=1e-5, rtol=1e-5)
    with pytest.warns(RuntimeWarning, match="memory another input shares"):
        ours = fast(x, rows)
    torch.testing.assert_close(ours, module(x))


def test_denormals_are_kept_if_asked_for(tmp_path: Path) -> None:
    module, x = torch.nn.Linear(1, 1, bias=False).eval(), torch.full((1, 1), 1e-30)
    module.weight.data[:] = 1e-10
    assert compiled(module, tmp_path, keep_denormals=True)(x) == module(x) != 0
    torch.compiler.reset()


def test_what_is_kept_holds_no_kernels_of_other_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.nn.Linear(8 + width, 9 + width).eval() for width in range(8)]
    first, whole = layers[0], torch.nn.Sequential(*layers)

    def kept(name: str, *modules: Any) -> list[int]:
        """The bytes of the kernels that are kept of the last module if the others are compiled before."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        monkeypatch.setattr(torch_compile, "_libraries", WeakValueDictionary())
        graphs = [compiled(module, tmp_path) for module in modules]
        for graph in graphs:
            torch.testing.assert_close(graph(x), graph._orig_mod(x), atol=1e-5, rtol=1e-5)
        models = KeptModels.of_user()
        assert models is not None and len(models.listed()) == len(modules)
        folder = models.folder / models.listed()[0].key / "model"
        return [file.stat().st_size for file in sorted(folder.glob("kernels*.bc"))]

    x = torch.randn(2, 8)
    assert kept("after", whole, first) == kept("alone", first)


def test_what_cannot_be_compiled_runs_eagerly_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ModelError("Network: operator frobnicate is not supported")

    monkeypatch.setattr(untuned, "compile_model_with", refuse)
    module, x = network(), torch.randn(2, 8)
    fast = compiled(module, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        for _ in range(2):
            torch.testing.assert_close(fast(x), module(x))
    assert len([each for each in caught if "frobnicate" in str(each.message)]) == 1


def test_options_tune_and_wrong_ones_are_one_line(tmp_path: Path) -> None:
    module, x = torch.nn.Linear(8, 16).eval(), torch.randn(4, 8)
    fast = compiled(module, tmp_path, trials=2)
    torch.testing.assert_close(fast(x), module(x), atol=1e-5, rtol=1e-5)
    assert (tmp_path / "records.db").exists()
    with pytest.raises(InputError, match="backend stormdrop has no option 'tine'; did you mean 'time'"):
        torch_compile.stormdrop(torch.fx.symbolic_trace(module), [x], options={"tine": "3s"})


def test_torch_knows_the_backend_by_its_name() -> None:
    installed = {entry.name for entry in entry_points(group="torch_dynamo_backends")}
    if "stormdrop" not in installed:
        pytest.skip("the entry point is there after the next installation of the package")
    assert "stormdrop" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("stormdrop") is torch_compile.stormdrop
