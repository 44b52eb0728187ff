"""A decoder of transformers in `torch.compile`: a static cache makes it fast, a growing one is answered with advice."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the backend for torch.compile needs torch")
transformers = pytest.importorskip("transformers", reason="the decoder is one of transformers")

from stormdrop.integrations import torch_compile  # noqa: E402

pytestmark = pytest.mark.compiles

WORDS = 10


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.compiler.reset()
    with torch.no_grad():
        yield


def decoder() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64, bos_token_id=None, eos_token_id=None
    )
    return transformers.GPT2LMHeadModel(config).eval()


def words(module: Any, **settings: Any) -> Any:
    prompt = torch.arange(1, 6).reshape(1, 5)
    return module.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=WORDS,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )


def compiled(module: Any, tmp_path: Path) -> tuple[Any, list[Any]]:
    """The module with a compiled `forward`, and the graphs that it has."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        options = {"db": f"sqlite:///{tmp_path}/records.db"}
        graphs.append(torch_compile.stormdrop(graph, inputs, options=options))
        return graphs[-1]

    module.forward = torch.compile(module.forward, backend=backend)
    return module, graphs


def test_a_static_cache_makes_the_words_of_eager_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    right = words(decoder(), cache_implementation="static")
    module, graphs = compiled(decoder(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing runs eagerly
        assert torch.equal(words(module, cache_implementation="static"), right)
        made = sum(len(graph._compiled) for graph in graphs)
        assert torch.equal(words(module, cache_implementation="static"), right)
    assert sum(len(graph._compiled) for graph in graphs) == made <= 4
    said = capfd.readouterr().err.splitlines()
    assert said and all(line.startswith("stormdrop: ") for line in said), "nobody else says anything"


def test_sizes_share_their_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stormdrop.model.building.kernel_library import KernelLibrary

    counts: list[int] = []
    real = KernelLibrary._compiled

    def noting(self: KernelLibrary, functions: dict[str, Any]) -> Any:
        counts[-1] += len(functions)
        return real(self, functions)

    monkeypatch.setattr(KernelLibrary, "_compiled", noting)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)]
    module = torch.nn.Sequential(*layers).eval()

    def attend(x: Any, past: Any) -> Any:
        return torch.softmax(module(x) @ past, -1)

    fast = torch.compile(attend, backend=lambda graph, inputs: torch_compile.stormdrop(graph, inputs))
    for length in (5, 6):
        counts.append(0)
        x, past = torch.randn(1, 8), torch.randn(8, length)
        torch.testing.assert_close(fast(x, past), attend(x, past), atol=1e-5, rtol=1e-5)
    assert 0 < counts[1] < counts[0]


def test_a_growing_cache_is_compiled_for_a_few_sizes_and_told_what_helps(tmp_path: Path) -> None:
    right = words(decoder())
    module, graphs = compiled(decoder(), tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        assert torch.equal(words(module), right)
    said = [str(each.message) for each in caught if "stormdrop" in str(each.message)]
    assert any('generate(cache_implementation="static")' in line and "padded" in line for line in said)
    assert all(len(graph._compiled) <= 3 for graph in graphs)
