"""HLO, the language of XLA's programs, from its text: computations of instructions with shapes."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_BITS = {"pred": 8, "bf16": 16, "tf32": 32, "token": 0, "opaque": 0}


class Shape(NamedTuple):
    """An array's type, size and place."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0
    """Of memory: 0 is main memory, 1 a TPU's own on the chip."""

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        digits = re.match(r"[a-z]+(\d+)", self.dtype)
        bits = _BITS[self.dtype] if self.dtype in _BITS else int(digits[1]) if digits else 0
        return -(-self.size * bits // 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shapes: tuple[Shape, ...]
    """Of its result; several of a tuple."""
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    def called(self, *roles: str) -> list[str]:
        """Names of the computations that it calls in these roles."""
        found = []
        for role in roles:
            for names in re.findall(rf"\b{role}=({{[^}}]*}}|%?[\w.\-]+)", self.attributes):
                found += re.findall(r"[\w.\-]+", names)
        return found


Computations = Mapping[str, Sequence[Instruction]]


def parse(text: str) -> tuple[Computations, str]:
    """All computations of a module's text by name, and the name of its entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None:
            header = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
            if header and " = " not in line and not line.startswith("HloModule"):
                current = computations.setdefault(header[2], [])
                entry = header[2] if header[1] else entry
        elif _END.fullmatch(line):
            current = None
        elif (instruction := _instruction(line)) is not None:
            current.append(instruction)
    return computations, entry


# Behind it may stand which part of a chip runs the computation.
_END = re.compile(r'\}(, execution_thread="\w+")?')
_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")


def _instruction(line: str) -> Instruction | None:
    found = _LINE.match(line)
    if found is None:
        return None
    root, name, rest = found.groups()
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    kind, rest = rest[:end], rest[end:].lstrip()
    opened = rest.index("(")
    closed = _closing(rest, opened)
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[opened:closed]))
    # Layouts hold parentheses of their own, dimensions of dynamic size a "<=".
    shapes = tuple(
        Shape(dtype, tuple(int(d.strip("<=")) for d in dims.split(",") if d), int(_space(layout or "")))
        for dtype, dims, layout in _ARRAY.findall(kind)
    )
    # A parameter's number or a constant's value stands where operands do.
    attributes = rest[closed + 1 :] if operands else f"value={rest[opened + 1 : closed]}{rest[closed + 1 :]}"
    return Instruction(name, shapes, rest[:opened], operands, attributes, bool(root))


def _space(layout: str) -> str:
    found = re.search(r"S\((\d+)\)", layout)
    return found[1] if found else "0"


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"no closing parenthesis in {text[start : start + 80]!r}")


def origin(name: str, around: Mapping[str, Instruction]) -> Instruction:
    """What an instruction is a copy of."""
    while around[name].opcode in ("copy", "bitcast"):
        name = around[name].operands[0]
    return around[name]


def _constant(each: Instruction) -> int | None:
    found = re.match(r"value=(-?\d+)", each.attributes) if each.opcode == "constant" else None
    return int(found[1]) if found else None


def counted_turns(loop: Instruction, around: Mapping[str, Instruction], computations: Computations) -> int | None:
    """Of a loop that counts up to a constant, in the computation `around` it; None for others."""
    condition = {each.name: each for each in computations[loop.called("condition")[0]]}
    body = {each.name: each for each in computations[loop.called("body")[0]]}
    (root,) = (each for each in condition.values() if each.root)
    if root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    counter, limit = (origin(name, condition) for name in root.operands)
    stop = _constant(limit)
    if counter.opcode != "get-tuple-element" or stop is None:
        return None
    place = int(re.search(r"index=(\d+)", counter.attributes)[1])
    start = _constant(origin(origin(loop.operands[0], around).operands[place], around))
    (result,) = (each for each in body.values() if each.root)
    grown = origin(result.operands[place], body)
    steps = [_constant(origin(name, body)) for name in grown.operands] if grown.opcode == "add" else []
    step = next((step for step in steps if step is not None), None)
    if start is None or not step:
        return None
    return max(0, -(-(stop - start) // step))
