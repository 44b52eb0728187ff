"""A scheduled function as TVM lowers it for a GPU: one function for the host, and one for each kernel.

The passes are those of TVM's default pipeline, in its order, with these differences:

bfloat16    It becomes its bits (see `bfloat16`). TVM's pass for it makes every shared and local buffer of bfloat16 one
            of float32, which takes twice the memory that a schedule plans with.
bool        It is read and written one by one, also in vectorised loops: TVM's CUDA code takes a vector of it in memory
            for one of 16-bit integers.
warps       What the lanes of a warp hold together becomes registers of each before common terms are taken out, which
            TVM's pass (LowerWarpMemory) would not see through. It is loaded element by element.
copies      Those to shared memory that a schedule makes a stage of a pipeline are asynchronous.
barriers    A function may say that those behind waits for copies are all that it needs (`ONLY_WAITS`).
left out    What nothing of ours uses: types of 8 bits (FP8ComputeLegalize, FP8StorageLegalize); annotations for copies
            and layouts of shared memory (LowerAutoCopy, InjectPermutedLayout); scopes of mma's operands
            (TransformMmaBufferLayout) and of Hexagon's memory and copies (VerifyVTCMLimit, LowerVtcmAlloc,
            LowerAsyncDMA); and what TVM has only with an option: ldg32, checks of bounds, profiles of loops (lwp).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.ir.prim.expr import FloatImm, IntImm
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes
from tvm.sym import Analyzer
from tvm.tirx import AllocBuffer, BufferStore, DeclBuffer, For, ForKind, PrimFunc, SeqStmt
from tvm.tirx.compilation_pipeline import PIPELINE_MAP
from tvm_ffi import structural_map, structural_walk

from ..errors import MeasureError
from ..ir.attributes import DISJOINT_SHARED, DOT, ONLY_WAITS, WORD
from ..ir.dtypes import FLOAT16
from ..ir.elementary import expand_for_gpu
from ..ir.expressions import intrinsic, rebuild, transform_statement
from ..runtime.device.code import DeviceKernel, Launch
from .bfloat16 import with_bits, with_rounding_on_cuda
from .lowering import function_pass

_ALIKE = ("int8", "uint8", "uint16")  # types that are copied as float16
_SHARED_AT_LAUNCH = "tirx.use_dyn_shared_memory"  # TVM's tag

GPU_PIPELINE = "stormdrop_gpu"
"""The name under which TVM knows these passes: `tvm.tirx.build(..., pipeline=GPU_PIPELINE)`."""


def _pipeline() -> tuple[Any, Any, Any]:
    loops, calls = s_tir.transform, tirx.transform
    lower = [
        loops.CanonicalizeLoop(),
        loops.LowerCrossThreadReduction(),
        loops.LowerInitBlock(),
        loops.PlanAndUpdateBufferAllocationLocation(),
        loops.ConvertBlocksToOpaque(),
        loops.LiftThreadBinding(),
        loops.ManifestSharedMemoryLocalStage(),
        loops.CompactBufferAllocation(),
        loops.UnifyThreadBinding(),
        loops.LowerMatchBuffer(),
        loops.StmtSimplify(),
        loops.AnnotateIrregularLoop(),
        loops.InjectSoftwarePipeline(),
        loops.LowerOpaqueBlock(),
        calls.FlattenBuffer(),
        function_pass(with_bits, "BFloat16"),
        calls.NarrowDataType(32),
        loops.LoopPartition(),
        function_pass(_without_vectors_of_bool, "VectorsOfBool"),
        function_pass(_with_words_of_bytes, "WordsOfBytes"),
        calls.VectorizeLoop(True),
        function_pass(with_rounding_on_cuda, "Rounding"),
        function_pass(_with_scalars_of_warps, "ScalarsOfWarps"),
        loops.InjectVirtualThread(),
        loops.InjectDoubleBuffer(),
        _unless("tirx.disable_storage_rewrite", calls.StorageRewrite()),
        loops.HoistIfThenElse(),
        calls.UnrollLoop(),
        loops.RenormalizeSplitPattern(),
        calls.StmtSimplify(),
        calls.RemoveNoOp(),
        loops.RewriteUnsafeSelect(),
        tvm.transform.module_pass(_with_registers_of_warps, opt_level=0, name="stormdrop.RegistersOfWarps"),
        function_pass(_with_sums_of_dot_products, "SumsOfDotProducts"),
        calls.CommonSubexprElim(),
        calls.VerifyMemory(),
        calls.AnnotateEntryFunc(),
        loops.ThreadSync("shared"),
        tvm.transform.module_pass(_with_barriers_at_launch, opt_level=0, name="stormdrop.BarriersAtLaunch"),
        loops.ThreadSync("warp"),
        loops.InferFragment(),
        loops.LowerThreadAllreduce(),
        function_pass(_with_half_zeros, "HalfZeros"),
        loops.InjectPTXAsyncCopy(),
        function_pass(_with_words, "Words"),
        loops.MergeSharedMemoryAllocations(),
        calls.SplitHostDevice(),
        calls.MakePackedAPI(),
        calls.BF16StorageLegalize(),
    ]
    return tvm.ir.transform.Sequential(lower), finalize_host_passes, finalize_device_passes


def _without_vectors_of_bool(function: PrimFunc) -> PrimFunc:
    """A function whose vectorised loops that read or write bool are unrolled instead."""

    def unrolled(loop: Any) -> Any:
        if loop.kind != ForKind.VECTORIZED or not _accesses_bool(loop.body):
            return loop
        return For(loop.loop_var, loop.min, loop.extent, ForKind.UNROLLED, loop.body)

    if not _accesses_bool(function.body):
        return function
    return function.with_body(transform_statement(function.body, lambda node: node, unrolled))


def _accesses_bool(statement: Any) -> bool:
    dtypes: list[str] = []
    loads = (TensorLoad, lambda load: dtypes.append(str(load.source.dtype)))
    structural_walk(statement, (loads, (BufferStore, lambda store: dtypes.append(str(store.buffer.dtype)))))
    return "bool" in dtypes


def _with_scalars_of_warps(function: PrimFunc) -> PrimFunc:
    """A function whose vectors of what a warp holds in registers are loaded one by one; TVM knows no other loads."""

    def loaded(load: Any) -> Any:
        (index,) = load.indices
        if not isinstance(index, prim.Ramp) or load.source.scope() != "warp":
            return load
        scalars = [load.source[index.base + index.stride * lane] for lane in range(int(index.lanes))]
        return prim.Shuffle(scalars, list(range(len(scalars))))

    return function.with_body(structural_map(function.body, ((TensorLoad, loaded),)))


def _with_half_zeros(function: PrimFunc) -> PrimFunc:
    """A function that copies vectors of integers of 8 or 16 bits, or zeros in their place, as float16.

    The bits are the same. TVM makes asynchronous copies only where zeros are floats, and wrong CUDA of zeros of 8 bits.
    """

    def half(buffer: Any, index: Any, count: int) -> tuple[Any, Any]:
        """The declaration of a buffer as float16, and that buffer with the positions of a vector in it."""
        each = 2 // np.dtype(str(buffer.dtype)).itemsize  # elements in a float16
        extents = [prim.FloorDiv(extent, IntImm("int32", each)) for extent in buffer.shape]
        found = tirx.decl_buffer(extents, FLOAT16, buffer.name, data=buffer.data, scope=buffer.scope(), layout=None)
        base = prim.FloorDiv(index.base, IntImm("int32", each)) if each > 1 else index.base
        return DeclBuffer(found, data=buffer.data), (found, prim.Ramp(base, 1, count))

    def copied(node: Any) -> Any:
        if not isinstance(node, BufferStore) or intrinsic(node.value) != "if_then_else":
            return node
        condition, load, zeros = node.value.args
        if not isinstance(load, TensorLoad) or not isinstance(zeros, prim.Broadcast):
            return node
        dtype = str(node.buffer.dtype)
        if dtype not in _ALIKE or not isinstance(zeros.value, IntImm) or int(zeros.value) != 0:
            return node
        size = int(zeros.lanes) * np.dtype(dtype).itemsize
        indices = (*load.indices, *node.indices)
        if size % 4 or not all(isinstance(index, prim.Ramp) and int(index.stride) == 1 for index in indices):
            return node
        if np.dtype(dtype).itemsize == 1 and node.buffer.scope() != "shared.dyn":
            return node  # only copies of `gpu_mma` are known to begin at whole float16
        (declared, (source, begin)), (target_declared, (target, to)) = (
            half(buffer, index, size // 2) for buffer, index in zip((load.source, node.buffer), indices, strict=True)
        )
        value = tirx.if_then_else(condition, source[begin], prim.Broadcast(FloatImm(FLOAT16, 0.0), size // 2))
        return SeqStmt([declared, target_declared, BufferStore(target, value, [to])])

    if str(function.attrs["target"].kind.name) != "cuda":
        return function
    return function.with_body(transform_statement(function.body, copied))


def _with_words(function: PrimFunc) -> PrimFunc:
    """A function whose vectors of eight equal integers of 16 bits are made of words; TVM writes them as wrong CUDA."""

    def made_of_words(vector: Any) -> Any:
        if str(vector.ty.dtype) != "uint16x8" or not isinstance(vector.value, IntImm):
            return vector
        word = int(vector.value) | int(vector.value) << 16
        return tirx.reinterpret("uint16x8", prim.Broadcast(IntImm("uint32", word), 4))

    return function.with_body(structural_map(function.body, ((prim.Broadcast, made_of_words),)))


def _with_barriers_at_launch(module: Any, _: Any) -> Any:
    """A module with TVM's barriers for memory whose size the launch gives, if a function does not say what it needs."""
    synchronized = s_tir.transform.ThreadSync("shared.dyn")(module)
    for name, function in module.functions_items():
        if ONLY_WAITS in function.attrs:
            synchronized[name] = function
    return synchronized


def _with_registers_of_warps(module: Any, _: Any) -> Any:
    """A module in which each lane has its part of what a warp holds. TVM's pass does one array of a function only."""
    for _ in range(max(map(_arrays_of_warps, module.functions.values()), default=0)):
        module = tirx.transform.LowerWarpMemory()(module)
    return module


def _with_words_of_bytes(function: PrimFunc) -> PrimFunc:
    """A function that loads words of four neighbouring bytes at once; what sketches write as words is aligned.

    A buffer of bytes is read as one of words, so that TVM makes vectors of words as of other elements.
    """

    def loaded(statement: Any) -> Any:
        """A statement with loads of words, after the declarations of what they load from."""
        declared: list[Any] = []

        def load(call: Any) -> Any:
            if call.op.name != "tirx.call_pure_extern" or str(call.args[0].value) != WORD:
                return call
            _, first, *others = call.args
            source, count = first.source, IntImm("int32", 1 + len(others))
            extents = [prim.FloorDiv(extent, count) for extent in source.shape]
            words = tirx.decl_buffer(extents, "int32", source.name, data=source.data, scope=source.scope(), layout=None)
            declared.append(DeclBuffer(words, data=source.data))
            return words[Analyzer().simplify(prim.FloorDiv(first.indices[0], count))]

        found = structural_map(statement, ((Call, load),))
        return SeqStmt([*declared, found]) if declared else statement

    def of_vectors(loop: Any) -> Any:
        return loaded(loop) if loop.kind == ForKind.VECTORIZED else loop

    def of_scalars(node: Any) -> Any:
        return loaded(node) if isinstance(node, BufferStore) else node

    body = transform_statement(function.body, lambda node: node, of_vectors)
    return function.with_body(transform_statement(body, of_scalars))


def _with_sums_of_dot_products(function: PrimFunc) -> PrimFunc:
    """A function whose dot products of bytes add to the sum that they are added to: `ptxas` would add once more."""

    def added(node: Any) -> Any:
        if not isinstance(node, BufferStore) or not isinstance(node.value, prim.Add):
            return node
        for total, call in ((node.value.a, node.value.b), (node.value.b, node.value.a)):
            if _is_dot_product(call) and isinstance(total, TensorLoad) and total.source.same_as(node.buffer):
                name, first, second, _, *others = call.args
                return BufferStore(node.buffer, rebuild(call, [name, first, second, total, *others]), node.indices)
        return node

    return function.with_body(transform_statement(function.body, added))


def _is_dot_product(node: Any) -> bool:
    return intrinsic(node) == "func_call" and str(getattr(node.args[0], "value", "")).startswith(DOT)


def _arrays_of_warps(function: PrimFunc) -> int:
    scopes: list[str] = []
    structural_walk(function.body, (AllocBuffer, lambda node: scopes.append(node.buffer.scope())))
    return scopes.count("warp")


def _unless(option: str, given: Any) -> Any:
    """A pass that does nothing where an option of TVM's context is true."""

    def chosen(module: Any, context: Any) -> Any:
        return module if context.config.get(option, False) else given(module)

    return tvm.transform.module_pass(chosen, opt_level=0, name=f"stormdrop.Unless.{option}")


PIPELINE_MAP[GPU_PIPELINE] = _pipeline


@dataclass(frozen=True)
class KernelLaunch:
    """How a kernel is launched.

    Attributes:
        kernel: The kernel's name.
        arguments: The names of its arguments: parameters of the scheduled function, and what kernels hand on.
        groups: The number of blocks (work-groups) along x, y and z.
        items: The number of threads (work-items) of a block along x, y and z.
        shared: Bytes of shared memory of a block that are asked for at the launch, besides what the code says itself.
    """

    kernel: str
    arguments: tuple[str, ...]
    groups: tuple[int, int, int]
    items: tuple[int, int, int]
    shared: int = 0

    @property
    def blocks(self) -> int:
        """The number of all blocks."""
        return math.prod(self.groups)

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.items)


def lower_for_gpu(function: PrimFunc, target: Any, symbol: str = "main") -> tuple[PrimFunc, dict[str, PrimFunc]]:
    """The host's function, which launches the kernels, and the kernels by name.

    Args:
        function: A scheduled function.
        target: TVM's target of the GPU.
        symbol: The name of the host's function, with which those of the kernels begin.

    Returns:
        The functions after TVM's passes, just before code is generated. Raises whatever TVM raises.

    Example:
        >>> from stormdrop import operators
        >>> from stormdrop.machine.gpu import GPUS
        >>> from stormdrop.sketches.registry import sketches_for
        >>> work, a100 = operators.softmax(8, 32), GPUS["a100"]
        >>> (sketch, space), *_ = sketches_for(work, a100)
        >>> main = sketch.apply(work, a100, space.config(space.origin)).main
        >>> host, kernels = lower_for_gpu(main, a100.tvm())
        >>> list(kernels)
        ['main_kernel']
    """
    target = target.with_host(tvm.target.Target("llvm"))
    lower, *_ = _pipeline()
    module = tvm.IRModule({symbol: expand_for_gpu(function).with_attr("global_symbol", symbol)})
    with tvm.transform.PassContext(config=gpu_pass_config(function)):
        lowered = lower(tvm.tirx.transform.BindTarget(target)(module))
    functions = {str(name.name_hint): lowered_function for name, lowered_function in lowered.functions_items()}
    host = functions.pop(symbol)
    return host, functions


def gpu_pass_config(function: PrimFunc) -> dict[str, bool]:
    """The options of TVM's passes with which a scheduled function for GPUs is lowered."""
    disjoint_shared = function.attrs is not None and DISJOINT_SHARED in function.attrs
    return {"tirx.disable_assert": True, "tirx.disable_storage_rewrite": disjoint_shared}


def launches_of(host: PrimFunc, kernels: Mapping[str, PrimFunc]) -> tuple[KernelLaunch, ...]:
    """The launches of a host's function, in order.

    Args:
        host: The host's function, as `lower_for_gpu` returns it.
        kernels: The kernels by name.

    Raises:
        MeasureError: The host does not launch all of them.
    """
    found: list[KernelLaunch] = []

    def visit(call: Any) -> None:
        if not str(getattr(call.op, "name", "")).endswith("call_ffi_kernel"):
            return
        name = str(call.args[0].value)
        kernel = kernels[name]
        tags = [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]]
        counts = [int(extent) for extent in call.args[-len(tags) :]]
        extents = dict(zip(tags, counts, strict=True))
        groups, items = (_three(extents, kind) for kind in ("blockIdx", "threadIdx"))
        arguments = tuple(_argument(parameter) for parameter in kernel.params)
        found.append(KernelLaunch(name, arguments, groups, items, extents.get(_SHARED_AT_LAUNCH, 0)))

    structural_walk(host.body, (Call, visit), order="pre")
    if {launch.kernel for launch in found} != set(kernels):
        raise MeasureError(f"the host launches {[launch.kernel for launch in found]}, there is {list(kernels)}")
    return tuple(found)


def _three(extents: Mapping[str, int], kind: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(f"{kind}.{axis}", 1) for axis in "xyz")
    return x, y, z


def _argument(parameter: Any) -> str:
    """The name of the buffer that a kernel's parameter points to."""
    return str(parameter.name).removesuffix("_ptr")


def device_kernel(function: PrimFunc, launches: Sequence[KernelLaunch], sizes: Mapping[str, int]) -> DeviceKernel:
    """The launches of a scheduled function, with the positions of their arguments.

    Args:
        function: The scheduled function.
        launches: Its launches.
        sizes: The bytes of what the kernels take, by name.

    Raises:
        MeasureError: Two parameters have one name; or a kernel takes what is no parameter, and no other kernel takes.
    """
    parameters = [str(buffer.name) for buffer in function.params]
    if len(set(parameters)) < len(parameters):
        raise MeasureError(f"two parameters have one name: {', '.join(parameters)}")
    uses = Counter(name for launch in launches for name in launch.arguments)
    handed_on = [name for name in uses if name not in parameters]
    if lonely := [name for name in handed_on if uses[name] == 1]:
        raise MeasureError(f"{', '.join(lonely)}: no parameter, and nothing that one kernel hands on to another")
    positions = {name: position for position, name in enumerate([*parameters, *handed_on])}
    return DeviceKernel(
        tuple(
            Launch(each.kernel, tuple(positions[name] for name in each.arguments), each.groups, each.items, each.shared)
            for each in launches
        ),
        len(parameters),
        tuple(sizes[name] for name in handed_on),
    )


def argument_bytes(kernels: Mapping[str, PrimFunc]) -> dict[str, int]:
    """The bytes of the memory that the kernels' parameters point to, by name.

    Args:
        kernels: The kernels by name.
    """
    sizes: dict[str, int] = {}
    for kernel in kernels.values():
        for name, size in _sizes(kernel).items():
            sizes[name] = max(size, sizes.get(name, 0))
    return sizes


def _sizes(kernel: PrimFunc) -> dict[str, int]:
    names = {parameter: _argument(parameter) for parameter in kernel.params}
    sizes: dict[str, int] = {}

    def visit(declared: Any) -> None:
        data: Sequence[Any] = (declared.data, *getattr(declared.data, "args", ()))
        for pointer in data:
            if pointer in names:
                elements = math.prod(int(extent) for extent in declared.buffer.shape)
                sizes[names[pointer]] = elements * np.dtype(str(declared.buffer.dtype)).itemsize

    structural_walk(kernel.body, (DeclBuffer, visit), order="pre")
    return sizes
