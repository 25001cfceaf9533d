"""What a compiled program does on one device: operations, memory traffic, collectives.

XLA's own cost analysis takes a loop for one turn of it. Here a loop counts as often as it turns: a collective within
the scan over layers once for each layer.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from experiments.compiling.hlo import Instruction, Shape, counted_turns, origin, parse
from experiments.compiling.products import passes, product_flops, stated_flops

_VMEM = 1


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of one kind."""

    count: int = 0
    bytes: float = 0.0
    """That a device sends, by the shortest way: around a ring."""

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.count + other.count, self.bytes + other.bytes)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one device."""

    flops: float = 0.0
    """Of matrix products and convolutions, two for a multiplication and an addition."""
    passes: float = 0.0
    """The same, with those of float32 factors as often as a TPU multiplies their bfloat16 parts."""
    memory_bytes: float = 0.0
    """Read from and written to main memory, where each operation reads all of its inputs."""
    collectives: Mapping[str, Traffic] = dataclasses.field(default_factory=dict)
    kernels: int = 0
    """Calls of custom kernels; their operations count where the kernel states them."""

    def __add__(self, other: "Cost") -> "Cost":
        kinds = dict.fromkeys((*self.collectives, *other.collectives))
        none = Traffic()
        return Cost(
            self.flops + other.flops,
            self.passes + other.passes,
            self.memory_bytes + other.memory_bytes,
            {kind: self.collectives.get(kind, none) + other.collectives.get(kind, none) for kind in kinds},
            self.kernels + other.kernels,
        )

    def times(self, count: int) -> "Cost":
        return Cost(
            self.flops * count,
            self.passes * count,
            self.memory_bytes * count,
            {kind: Traffic(one.count * count, one.bytes * count) for kind, one in self.collectives.items()},
            self.kernels * count,
        )

    @property
    def collective_bytes(self) -> float:
        return sum(one.bytes for one in self.collectives.values())


COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
_NO_TRAFFIC = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id", "opt-barrier", "async-start", "async-update", "async-done",
}  # fmt: skip


_SLICES = ("dynamic-slice", "slice", "gather")


class Reader:
    """The costs of a module's computations."""

    def __init__(self, text: str, unknown_turns: Sequence[int] = ()):
        """`unknown_turns` of the loops that end when their data say so, in the order in which they run; then 1."""
        self.computations, self.entry = parse(text)
        self.unknown_turns = list(unknown_turns)
        self.loops_of_unknown_turns = 0

    def cost(self) -> Cost:
        """Of one run of the program; of branches, that with the most operations."""
        return self._computation(self.entry)

    def _computation(self, name: str) -> Cost:
        instructions = self.computations[name]
        around = {each.name: each for each in instructions}
        return sum((self._one(each, around) for each in instructions), Cost())

    def _one(self, each: Instruction, around: Mapping[str, Instruction]) -> Cost:
        shapes = {name: around[name].shapes for name in each.operands}
        if each.opcode == "while":
            turns = self._turns(each, around)
            body = sum((self._computation(name) for name in each.called("body", "condition")), Cost())
            return body.times(turns) if turns else Cost()
        if each.opcode == "conditional":
            names = each.called("branch_computations", "true_computation", "false_computation")
            return max((self._computation(name) for name in names), key=lambda cost: (cost.flops, cost.memory_bytes))
        if each.opcode in ("call", "async-start"):
            return sum((self._computation(name) for name in each.called("to_apply", "calls")), Cost())
        if each.opcode == "fusion":
            return self._fusion(each)
        kind = each.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            operands = [shape for name in each.operands for shape in shapes[name]]
            return Cost(
                memory_bytes=_bytes((*operands, each.shapes[-1])), collectives={kind: _traffic(kind, each, operands)}
            )
        if each.opcode in _NO_TRAFFIC or each.opcode.endswith(("-done", "-update")):
            return Cost()
        moved = self._moved(each, shapes)
        if each.opcode in ("dot", "convolution"):
            flops = product_flops(each, *(shapes[name][0] for name in each.operands[:2]))
            return Cost(flops, flops * passes(each, shapes), moved)
        if each.opcode == "custom-call" and "tpu_custom_call" in each.attributes:
            flops = stated_flops(each.attributes)
            return Cost(flops, flops, moved, kernels=1)
        return Cost(memory_bytes=moved)

    def _moved(self, each: Instruction, shapes: Mapping[str, tuple[Shape, ...]]) -> float:
        """Bytes that an instruction of its own reads and writes."""
        if each.opcode.endswith("-start"):  # of a copy to or from the chip: source, destination and a flag
            smaller = min(each.shapes[:2], key=lambda shape: shape.bytes)
            return _bytes(smaller._replace(space=shape.space) for shape in each.shapes[:2])
        if each.opcode in _SLICES:
            return 2 * _bytes(each.shapes)
        if each.opcode in ("dynamic-update-slice", "scatter"):
            return 2 * _bytes(shapes[each.operands[-1 if each.opcode == "scatter" else 1]])
        return _bytes(each.shapes) + _bytes(shape for name in each.operands for shape in shapes[name])

    def _fusion(self, each: Instruction) -> Cost:
        """Within a fusion only products and collectives count, and of its inputs what is read of them."""
        (name,) = each.called("calls")
        inside = self.computations[name]
        named = {one.name: one for one in inside}
        # A collective beside other work is begun in one fusion, carried on in others and ended in one more.
        stages = {
            operand: found[0]
            for one in inside
            if (found := re.findall(r"AsyncCollective(Start|Done)", one.attributes))
            for operand in one.operands
        }
        total = Cost()
        for one in inside:
            cost = self._one(one, named)
            stage = stages.get(one.name, "Carried" if name.startswith("async_collective_fusion") else "Start")
            if cost.collectives and one.opcode != "fusion":
                total += cost if stage == "Start" else Cost()
            else:
                total += dataclasses.replace(cost, memory_bytes=0.0)
        reduced = total.collectives.get("all-reduce")
        if reduced and each.shapes[0].size < max(
            (one.shapes[0].size for one in inside if one.opcode == "all-reduce"), default=0
        ):
            # A reduce-scatter, as the TPU compiler writes it: of the sum each device takes its part.
            kinds = {kind: one for kind, one in total.collectives.items() if kind != "all-reduce"}
            scattered = Traffic(reduced.count, reduced.bytes / 2)
            total = dataclasses.replace(total, collectives=kinds | {"reduce-scatter": scattered})
        return total + Cost(memory_bytes=self._read(inside) + self._written(each, inside))

    def _read(self, inside: Sequence[Instruction]) -> float:
        """Bytes that a fusion reads: of an input that is only sliced, the slices."""
        users: dict[str, list[Instruction]] = {}
        for one in inside:
            for name in one.operands:
                users.setdefault(name, []).append(one)

        def readers(name: str) -> list[Instruction]:
            found = users.get(name, [])
            return [real for one in found for real in (readers(one.name) if one.opcode == "bitcast" else [one])]

        named = {one.name: one for one in inside}
        total = 0.0
        for one in inside:
            users_of_one = readers(one.name)
            if one.opcode != "parameter" or all(_passed_on(user) for user in users_of_one):
                continue
            # A slice's other operands are the places where it begins.
            if all(user.opcode in _SLICES and origin(user.operands[0], named) is one for user in users_of_one):
                total += _bytes(user.shapes[0]._replace(space=one.shapes[0].space) for user in users_of_one)
            else:
                total += _bytes(one.shapes)
        return total

    def _written(self, each: Instruction, inside: Sequence[Instruction]) -> float:
        named = {one.name: one for one in inside}
        (root,) = (one for one in inside if one.root)
        results = [origin(name, named) for name in root.operands] if root.opcode == "tuple" else [root]
        total = 0.0
        for shape, result in zip(each.shapes, results, strict=False):
            if result.opcode == "dynamic-update-slice":
                total += _bytes([named[result.operands[1]].shapes[0]._replace(space=shape.space)])
            elif result.opcode != "parameter" and not _passed_on(result):
                total += _bytes([shape])
        return total

    def _turns(self, loop: Instruction, around: Mapping[str, Instruction]) -> int:
        """Of a loop: what XLA states, or counts up to a constant; else the next of the unknown ones."""
        stated = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if stated:
            return int(stated[1])
        counted = counted_turns(loop, around, self.computations)
        if counted is not None:
            return counted
        self.loops_of_unknown_turns += 1
        return self.unknown_turns.pop(0) if self.unknown_turns else 1


def _passed_on(each: Instruction) -> bool:
    """Whether a fusion touches no more than the address of what this takes or gives; collectives count themselves."""
    is_collective = each.opcode.removesuffix("-start") in COLLECTIVES
    return is_collective or each.opcode in ("tuple", "custom-call", "dynamic-update-slice", "get-tuple-element")


def _bytes(shapes: Iterable[Shape]) -> float:
    return float(sum(shape.bytes for shape in shapes if shape.space != _VMEM))


def _group_size(each: Instruction) -> int:
    """Devices that take part together, of which there are several ways to write."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", each.attributes):
        return listed[1].count(",") + 1
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", each.attributes):
        return int(counted[1])
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", each.attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        # A part of an axis is written with its size: 'axis':(2)4.
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in parts)
    raise ValueError(f"{each.name}: no replica_groups")


def _traffic(kind: str, each: Instruction, operands: Sequence[Shape]) -> Traffic:
    whole = float(sum(shape.bytes for shape in operands))
    if kind == "collective-permute":
        return Traffic(1, whole)
    devices = _group_size(each)
    share = (devices - 1) / devices
    factor = {"all-gather": devices * share, "all-reduce": 2 * share}.get(kind, share)
    return Traffic(1, whole * factor)
