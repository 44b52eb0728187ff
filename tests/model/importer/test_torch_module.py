"""Torch modules and exported programs as models: names, structures of inputs and outputs, and what is refused."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.errors import ModelError

torch = pytest.importorskip("torch", reason="torch modules need torch")

from stormdrop.model.importer import torch_module  # noqa: E402
from stormdrop.model.importer.any_model import import_model  # noqa: E402
from stormdrop.model.importer.torch_module import import_torch  # noqa: E402
from stormdrop.model.verification.verify import Reference  # noqa: E402


class Network(torch.nn.Module):  # type: ignore[name-defined]
    """Convolution, batch norm, words; returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.words = torch.nn.Embedding(11, 8)
        self.dropout = torch.nn.Dropout(0.5)
        self.norm.running_mean = torch.randn(8)

    def forward(self, image: Any, words: Any, scale: float = 2.0) -> dict[str, Any]:
        features = torch.relu(self.norm(self.conv(image))).mean((2, 3))
        return {"sum": self.dropout(features + self.words(words).mean(1)) * scale, "parts": (features, None)}


IMAGE, WORDS = torch.zeros(2, 3, 8, 8), torch.zeros(2, 5, dtype=torch.int64)


def network() -> Network:
    torch.manual_seed(0)
    return Network()


@pytest.mark.compiles
def test_a_module_in_training_mode_is_compiled_for_inference() -> None:
    module = network()
    module.conv.eval()
    model = sd.compile_model(module, example_inputs=(IMAGE, WORDS), fresh=True)
    assert module.training and not module.conv.training, "the user's module is as it was"
    assert [info.name for info in model.inputs] == ["image", "words"]
    assert [info.name for info in model.outputs] == ["sum", "parts.0"]
    image, words = torch.randn(2, 3, 8, 8), torch.randint(0, 11, (2, 5))
    ours = model.run({"image": image, "words": words})
    with torch.no_grad():
        right = module.eval()(image, words)
    np.testing.assert_allclose(ours["sum"], right["sum"].numpy(), atol=1e-5)
    np.testing.assert_allclose(ours["parts.0"], right["parts"][0].numpy(), atol=1e-5)


def test_the_batch_norm_is_part_of_the_convolution_and_words_index_their_table() -> None:
    graph = import_torch(network(), {"words": WORDS, "image": IMAGE, "scale": 0.5})
    assert any(task.name == "fused_conv2d_add_relu" for task in graph.tasks)
    assert graph.source.index_ranges() == {"words": 11}


class Cache(torch.nn.Module):  # type: ignore[name-defined]
    """Writes to places of a static cache in two ways, and looks positions up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = torch.nn.Embedding(12, 8)

    def forward(self, keys: Any, values: Any, place: Any, rows: Any, new: Any) -> tuple[Any, Any]:
        keys, values = keys.clone(), values.clone()
        keys[:, :, place] = new + self.positions(place)
        return keys, values.index_copy_(2, rows.to(torch.int64), new)


@pytest.mark.parametrize("by_tvm", [True, False])
def test_places_of_a_static_cache_may_be_any_of_it(by_tvm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_tvm:
        monkeypatch.setattr(torch_module, "_by_tvm", lambda name, *_: raised(ModelError(f"{name}: not by TVM")))
    cache, new = torch.zeros(1, 2, 16, 8), torch.zeros(1, 2, 3, 8)
    inputs = (cache, cache.clone(), torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5], dtype=torch.int32), new)
    graph = import_torch(Cache(), inputs)
    assert graph.source.index_ranges() == {"place": (0, 12, True), "rows": (0, 16, True)}
    Reference.compute(graph)


class Sums(torch.nn.Module):  # type: ignore[name-defined]
    def forward(self, x: Any, of: Any, at: Any) -> tuple[Any, Any]:
        return x.index_add(0, of, x), x.index_put((at,), x, accumulate=True)


def test_places_where_values_are_summed_up_may_be_equal() -> None:
    places = torch.zeros(6, dtype=torch.int64)
    graph = import_torch(Sums(), (torch.zeros(6), places, places.clone()))
    assert graph.source.index_ranges() == {"of": 6, "at": 6}


class GrowingCache(torch.nn.Module):  # type: ignore[name-defined]
    """Writes behind what is there already, as a decoder of transformers does."""

    def forward(self, keys: Any, length: Any, new: Any) -> Any:
        places = torch.arange(new.shape[2]) + length.clone()
        return keys.clone().index_copy_(2, places, new), keys[:, :, 0] + (length - 1)


def test_a_static_cache_may_be_filled_so_far_that_what_comes_fits() -> None:
    inputs = (torch.zeros(1, 2, 16, 8), torch.tensor(0), torch.zeros(1, 2, 3, 8))
    graph = import_torch(GrowingCache(), inputs)
    assert graph.source.index_ranges() == {"length": (0, 14, True)}
    samples = [each.sample.feeds["length"].item() for each in Reference.compute(graph).expected]
    assert len(set(samples)) > 1 and set(samples) <= set(range(14))


def raised(error: Exception) -> Any:
    raise error


def test_kernels_know_the_modules_that_they_compute() -> None:
    graph = import_torch(network(), (IMAGE, WORDS))
    calls = [graph.layers.names(position) for position in range(len(graph.layers.calls))]
    assert calls[0] == ("conv", "norm", "relu")
    assert {name for call in calls for name in call} == {
        "conv",
        "norm",
        "relu",
        "mean",
        "words",
        "mean#2",
        "add",
        "mul",
    }
    assert all(task.layers for task in graph.tasks)


def test_operators_with_several_results_are_layers() -> None:
    class Several(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.pool = torch.nn.MaxPool2d(2)
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, image: Any) -> Any:
            one, other = self.norm(self.pool(image)).chunk(2, 1)
            return torch.exp(one) + other.max(dim=1, keepdim=True)[0]

    graph = import_torch(Several(), (IMAGE[:, :2],))
    computed = {name for position in range(len(graph.layers.calls)) for name in graph.layers.names(position)}
    assert computed >= {"pool", "norm", "exp", "max", "add"}
    assert all(graph.layers.calls)


def test_an_import_that_computes_something_else_is_seen_in_float64() -> None:
    graph = import_torch(network(), (IMAGE, WORDS))
    (expected, *_) = Reference.compute(graph).expected
    assert max(expected.imported.values()) < 1e-6
    source: Any = graph.source
    with torch.no_grad():
        source._module.conv.bias += 0.01
    with pytest.raises(ModelError, match=r"the imported graph and torch .* compute different results"):
        Reference.compute(graph)


def test_an_exported_program_with_an_open_size_needs_that_size() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"image": {0: batch}, "words": {0: batch}}
    program = torch.export.export(network().eval(), (IMAGE, WORDS), dynamic_shapes=shapes, strict=False)
    graph = import_torch(program, shapes={"image": (4, 3, 8, 8), "words": (4, 5)})
    assert [info.shape for info in graph.inputs] == [(4, 3, 8, 8), (4, 5)]
    several = import_model(program, {"image": ((2, 4), 3, 8, 8), "words": ((2, 4), 5)})
    assert [[info.shape[0] for info in size.inputs] for size in several.sizes] == [[2, 2], [4, 4]]
    with pytest.raises(ModelError, match=r"are both 's.*', so they must have the same sizes, not 2,4 and 4"):
        import_model(program, {"image": ((2, 4), 3, 8, 8), "words": (4, 5)})
    with pytest.raises(ModelError, match=r"dimension 0 \(.*\) of input 'image' has no size; .*\(N, 3, 8, 8\)"):
        import_torch(program)
    with pytest.raises(ModelError, match="dimension 1 of input 'image' is 3, not 4"):
        import_torch(program, shapes={"image": (4, 4, 8, 8), "words": (4, 5)})
    with pytest.raises(ModelError, match="has its inputs already"):
        import_torch(program, (IMAGE, WORDS))


def test_what_tvm_does_not_import_goes_by_onnx(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("Network: TVM does not import the exported program: AssertionError: ['frobnicate.default']")

    monkeypatch.setattr(torch_module, "_by_tvm", refuse)
    with caplog.at_level(logging.WARNING, "stormdrop"):
        graph = import_torch(network(), (IMAGE, WORDS))
    assert "frobnicate" in caplog.text and "ONNX" in caplog.text
    assert [info.name for info in graph.outputs] == ["sum", "parts.0"]
    assert "torch" in Reference.compute(graph).against


class Branching(torch.nn.Module):  # type: ignore[name-defined]
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Counting(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (Network, None, "Network: a torch module needs example_inputs, such as"),
        (Network, "image", "example_inputs is a str; give a tuple of torch tensors"),
        (Network, (np.zeros(3),), r"holds a numpy.ndarray; give torch tensors \(torch.from_numpy"),
        (Network, (1,), "holds no torch tensor"),
        (Network, (IMAGE,), "Network: torch.export does not export it: TypeError: "),
        (Branching, (IMAGE,), "Branching: torch.export does not export it: "),
        (
            lambda: torch.nn.Linear(2, 2).bfloat16(),
            (torch.zeros(1, 2).bfloat16(),),
            "is bfloat16, which is not supported",
        ),
        (Counting, (IMAGE,), "Counting: changes its buffer 'calls' when it runs"),
    ],
    ids=["none", "text", "array", "number", "too few", "branch", "bfloat16", "state"],
)
def test_a_module_or_inputs_that_cannot_be_imported_are_one_line(module: Any, inputs: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        import_torch(module(), inputs)
    assert "\n" not in str(caught.value)


def test_shapes_beside_example_inputs_are_refused() -> None:
    with pytest.raises(ModelError, match="the shapes of a torch module are those of example_inputs"):
        import_torch(network(), (IMAGE, WORDS), {"image": (1, 3, 8, 8)})


@pytest.mark.compiles
def test_a_wrong_import_by_tvm_is_replaced_by_one_of_onnx(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    module, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    example = torch.zeros(2, 4)
    wrong, by_tvm = torch.export.export(other, (example,)).run_decompositions(), torch_module._by_tvm
    monkeypatch.setattr(torch_module, "_by_tvm", lambda name, _, origin: by_tvm(name, wrong, origin))
    with caplog.at_level(logging.WARNING, "stormdrop"):
        model = sd.compile_model(module, example_inputs=example, fresh=True)
    assert "compute different results" in caplog.text and "imported as an ONNX model instead" in caplog.text
    x = torch.randn(2, 4)
    np.testing.assert_allclose(model(x.numpy()), module(x).detach().numpy(), atol=1e-5)
