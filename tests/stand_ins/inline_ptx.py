"""Rewrites the inline PTX of a CUDA source as calls of the functions in `ptx_on_host.h`, which a CPU can execute.

It knows what is emitted for tensor cores (`mma`, `ldmatrix`), asynchronous copies (`cp.async`), products of bytes
(`dp4a`), roundings (`cvt`) and powers of 2 (`ex2`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from stormdrop.errors import MeasureError

_ASM = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
_STRING = r'"((?:\\.|[^"\\])*)"'
_TOKEN = re.compile(_STRING.replace("(", "(?:", 1) + "|.", re.DOTALL)
_OPERAND = re.compile(r'"[=+]?\w"\s*\((.*)\)', re.DOTALL)
_COPY = r"cp\.async\.(c[ag])\.shared(?:::cta)?\.global(?:\.L2::\w+)? \[%(\d+)\], \[%(\d+)\], %(\d+)"


def without_asm(source: str) -> str:
    """A source with a call in place of each `asm` statement.

    Args:
        source: CUDA source, as TVM generates it.

    Raises:
        MeasureError: It has an `asm` statement that is not known.

    Example:
        >>> without_asm('asm volatile("cp.async.wait_group 2;" ::: "memory");')
        'host_wait_group(2);'
    """
    parts, done = [], 0
    while statement := _ASM.search(source, done):
        inside = _until_closed(source[statement.end() :])
        parts += [source[done : statement.start()], _call(inside)]
        done = statement.end() + len(inside) + 1
    return "".join([*parts, source[done:]])


def _until_closed(text: str) -> str:
    """What stands before the parenthesis that closes one which stands before the text."""
    depth = 1
    for token in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return text[: token.start()]
    raise MeasureError(f"an asm statement does not end: {text[:80]!r}")


def _pieces(text: str, separator: str) -> list[str]:
    """Splits a text at the separators that are outside of strings and parentheses."""
    pieces, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += token
    return [piece.strip() for piece in pieces if piece.strip() or separator == ":"]


def _call(inside: str) -> str:
    """The call, without the semicolon after it, for what stands between the parentheses of an `asm` statement."""
    template, *lists = _pieces(inside, ":")
    ptx = " ".join("".join(re.findall(_STRING, template)).replace("\\n", " ").replace("\\t", " ").split())
    matched = [_OPERAND.fullmatch(piece) for each in lists[:2] for piece in _pieces(each, ",")]
    operands = [f"({operand[1]})" for operand in matched if operand]
    for pattern, call in _INSTRUCTIONS:
        if (found := re.fullmatch(pattern, ptx)) and len(operands) == len(matched):
            return call(found, operands)
    raise MeasureError(f"cuda_on_host does not know this inline PTX: {ptx}")


def _named(references: str, operands: Sequence[str]) -> list[str]:
    return [operands[int(number)] for number in re.findall(r"%(\d+)", references)]


def _mma(found: re.Match[str], operands: Sequence[str]) -> str:
    k, d, a, b, c, *registers = found.groups()
    outputs, *inputs = (_named(references, operands) for references in registers)
    given = ", ".join(f"host_{name}[] = {_bits(values)}" for name, values in zip("abc", inputs, strict=True))
    types = ", ".join(f"host_{dtype}" for dtype in (d, a, b, c))
    call = f"host_mma<{k}, {types}>(host_d, host_a, host_b, host_c, __LINE__);"
    return f"{{ const unsigned {given}; unsigned host_d[{len(outputs)}]; {call} {_set(outputs)} }}"


def _ldmatrix(found: re.Match[str], operands: Sequence[str]) -> str:
    count, transposed, references, address = found.groups()
    outputs = _named(references, operands)
    call = f"host_ldmatrix<{count}, {str(bool(transposed)).lower()}>(host_d, {operands[int(address)]}, __LINE__);"
    return f"{{ unsigned host_d[{len(outputs)}]; {call} {_set(outputs)} }}"


def _copy(found: re.Match[str], operands: Sequence[str]) -> str:
    kind, to, source, size, read = found.groups()
    whole = operands[int(size)]
    values = [operands[int(to)], operands[int(source)], operands[int(read)] if read else whole, "__LINE__"]
    return f"host_cp_async<host_{kind}, {whole}>({', '.join(values)})"


def _copy_if(found: re.Match[str], operands: Sequence[str]) -> str:
    predicate, truth, kind, to, source, size, *_ = found.groups()[1:]
    to, source, size, condition = (operands[int(each)] for each in (to, source, size, predicate))
    zeros = _named(found.groups()[-1], operands)
    copy = f"host_cp_async<host_{kind}, {size}>({to}, {source}, {size}, __LINE__)"
    return f"if ({condition} == {truth}) {copy}; else host_store_shared({to}, {_bits(zeros)}, __LINE__)"


def _converted(function: str) -> Callable[[re.Match[str], Sequence[str]], str]:
    """Sets the first operand to what a function returns for the others."""
    return lambda found, operands: f"host_set({operands[0]}, {function}({', '.join(operands[1:])}))"


def _dot_product(found: re.Match[str], operands: Sequence[str]) -> str:
    total, *given = operands
    types = ", ".join(f"host_{each[0]}8" for each in found.groups())
    return f"host_set({total}, host_dp4a<{types}>({', '.join(given)}))"


def _bits(values: Sequence[str]) -> str:
    return f"{{{', '.join(f'host_bits({value})' for value in values)}}}"


def _set(outputs: Sequence[str]) -> str:
    return " ".join(f"host_set({output}, host_d[{number}]);" for number, output in enumerate(outputs))


_GROUP = r"\{([^}]*)\}"
_TYPES = r"\.(f16|f32|s32)\.(f16|bf16|tf32|s8|u8)\.(f16|bf16|tf32|s8|u8)\.(f16|f32|s32)"
_INSTRUCTIONS: Sequence[tuple[str, Callable[[re.Match[str], Sequence[str]], str]]] = (
    (rf"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col{_TYPES} ?{', '.join([_GROUP] * 4)};", _mma),
    (rf"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16 ?{_GROUP}, \[%(\d+)\];", _ldmatrix),
    (rf"{_COPY}(?:, %(\d+))?;", _copy),
    (
        rf"\{{ \.reg \.pred (\w+); setp\.eq\.u32 \1, %(\d+), (\d+); @\1 {_COPY};"
        rf" @!\1 st\.shared(?:\.v[24])?\.u32 \[%\5\], (\{{?[^;{{}}]*\}}?); \}}",
        _copy_if,
    ),
    (r"dp4a\.(u32|s32)\.(u32|s32) %0, %1, %2, %3;", _dot_product),
    (r"cvt\.rn\.bf16x2\.f32 %0, %1, %2;", _converted("host_bfloat16_pair")),
    (r"ex2\.approx\.ftz\.f32 %0, %1;", _converted("host_exp2")),
    (r"cvt\.rna\.tf32\.f32 %0, %1;", _converted("host_tf32_rounded")),
    (r"cp\.async\.commit_group;", lambda found, operands: "host_commit_group()"),
    (r"cp\.async\.wait_group (\d+);", lambda found, operands: f"host_wait_group({found[1]})"),
    (r"cp\.async\.wait_all;", lambda found, operands: "host_land_all()"),
)
