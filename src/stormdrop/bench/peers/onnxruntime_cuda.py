"""onnxruntime on an NVIDIA GPU as a contender for ONNX models, by its CUDA provider or by TensorRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import one_line
from ...tuning.options import FLOAT32, TF32
from ..contender import Unavailable

Array = NDArray[Any]


class CudaModel:
    """Its CUDA provider in float32 without TF32. Inputs and outputs are bound to memory of the GPU."""

    provider: ClassVar[str] = "CUDAExecutionProvider"
    options: Mapping[str, str] = {"use_tf32": "0"}
    graph: ClassVar[str] = "enable_cuda_graph"

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int) -> None:
        import onnxruntime

        if self.provider not in onnxruntime.get_available_providers():
            raise Unavailable(f"the onnxruntime that is installed has no {self.provider}: pip install onnxruntime-gpu")
        clock = _Clock()
        on_stream = {**self.options, "user_compute_stream": str(int(clock.stream))}
        self._inputs = dict(inputs)
        self._session = self._open(model, threads, self.options)
        self._clock, outputs = clock, self.outputs()
        self.versions = {"onnxruntime": onnxruntime.__version__}
        self.settings = {"threads": threads, "optimisation": "all", "tensors": "bound", **self.options}
        try:  # it cannot capture a model of which the CPU computes a part
            self._bind(self._open(model, threads, {**on_stream, self.graph: "1"}), outputs)
            self.settings["cuda_graph"] = True
        except Exception as error:  # noqa: BLE001  onnxruntime raises many kinds
            self._bind(self._open(model, threads, on_stream), outputs)
            self.settings["cuda_graph"] = f"no: {one_line(error)}"

    def _open(self, model: bytes, threads: int, options: Mapping[str, str]) -> Any:
        """A session. onnxruntime leaves a provider out without raising if it cannot load its libraries."""
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        settings.log_severity_level = 3
        fallbacks = []
        if self.provider != CudaModel.provider:  # in the same stream, which is timed
            stream = {name: value for name, value in options.items() if name == "user_compute_stream"}
            fallbacks = [(CudaModel.provider, {**CudaModel.options, **stream})]
        providers = [(self.provider, dict(options)), *fallbacks, "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model, settings, providers=providers)
        if self.provider not in session.get_providers():
            raise Unavailable(f"onnxruntime cannot load its {self.provider}: it lacks libraries of NVIDIA")
        return session

    def _bind(self, session: Any, outputs: Sequence[Array]) -> None:
        """Runs a session on memory of the GPU, which captures it if it can."""
        import onnxruntime

        def on_gpu(array: Array) -> Any:
            return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)

        binding = session.io_binding()
        for name, array in self._inputs.items():
            binding.bind_ortvalue_input(name, on_gpu(array))
        for info, array in zip(session.get_outputs(), outputs, strict=True):
            binding.bind_ortvalue_output(info.name, on_gpu(array))
        going_on = onnxruntime.RunOptions()
        going_on.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def launch() -> None:
            session.run_with_iobinding(binding, going_on)

        launch()
        self._launch = launch

    def run(self) -> object:
        return self._session.run(None, self._inputs)

    def outputs(self) -> list[Array]:
        return [np.asarray(output) for output in self._session.run(None, self._inputs)]

    def seconds(self, executions: int) -> float:
        return self._clock.seconds(self._launch, executions)


class TensorrtModel(CudaModel):
    """Its TensorRT provider; the CUDA provider computes what TensorRT does not support."""

    provider = "TensorrtExecutionProvider"
    options: Mapping[str, str] = {}
    graph = "trt_cuda_graph_enable"

    def __init__(self, model: bytes, inputs: Mapping[str, Array], threads: int, precision: str = FLOAT32) -> None:
        # It has no option for TF32: the environment says whether it may take it (`contender_process.environment_of`).
        self.options = {} if precision in (FLOAT32, TF32) else {f"trt_{precision}_enable": "1"}
        super().__init__(model, inputs, threads)


class _Clock:
    """Times work in a stream by CUDA events.

    Attributes:
        stream: The stream.
    """

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._runtime = runtime
        self.stream = self._call(runtime.cudaStreamCreate)

    def seconds(self, work: Any, number: int) -> float:
        """The mean seconds of work that is put into the stream a number of times, after it was once."""
        work()
        begin, end = (self._call(self._runtime.cudaEventCreate) for _ in range(2))
        self._call(self._runtime.cudaEventRecord, begin, self.stream)
        for _ in range(number):
            work()
        self._call(self._runtime.cudaEventRecord, end, self.stream)
        self._call(self._runtime.cudaEventSynchronize, end)
        taken = float(self._call(self._runtime.cudaEventElapsedTime, begin, end)) / 1e3 / number
        for event in (begin, end):
            self._call(self._runtime.cudaEventDestroy, event)
        return taken

    def _call(self, function: Any, *arguments: Any) -> Any:
        """What a function of CUDA returns after its status."""
        status, *values = function(*arguments)
        if int(status):
            raise RuntimeError(f"{function.__name__}: {status.name}")
        return values[0] if values else None
