"""Operations of matrix products and convolutions, from their instructions."""

import math
import re
from collections.abc import Mapping

from experiments.compiling.hlo import Instruction, Shape


def passes(each: Instruction, shapes: Mapping[str, tuple[Shape, ...]]) -> int:
    """bfloat16 products that one of float32 factors is made of on a TPU, by its precision."""
    if all(shapes[name][0].dtype != "f32" for name in each.operands[:2]):
        return 1
    found = re.search(r"operand_precision=\{(\w+)", each.attributes)
    return {"highest": 6, "high": 3}.get(found[1], 1) if found else 1


def product_flops(each: Instruction, left: Shape, right: Shape) -> float:
    """Of a dot or a convolution: two for a multiplication and an addition."""
    output = each.shapes[0]
    if each.opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.attributes)
        dims = [int(d) for d in contracted[1].split(",") if d] if contracted else []
        return 2.0 * output.size * math.prod(left.dims[d] for d in dims)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.attributes)
    if labels is None:
        raise ValueError(f"a convolution without dim_labels: {each.name}")
    of_left, of_kernel, of_output = labels.groups()
    spatial = sorted(label for label in of_kernel if label.isdigit())
    window = dict(re.findall(r"(\w+)=([\dx_\-]+)", re.search(r"window=\{([^}]*)\}", each.attributes + "window={}")[1]))
    pairs = 1
    for i, label in enumerate(spatial):
        pairs *= _window_pairs(
            left.dims[of_left.index(label)],
            right.dims[of_kernel.index(label)],
            output.dims[of_output.index(label)],
            *(int(_nth(window, name, i, default)) for name, default in _WINDOW),
            *(int(number) for number in _nth(window, "pad", i, "0_0").split("_")[:1]),
        )
    features = right.dims[of_kernel.index("i")] * output.dims[of_output.index("f")]
    groups = re.search(r"batch_group_count=(\d+)", each.attributes)
    return 2.0 * pairs * features * output.dims[of_output.index("b")] / (int(groups[1]) if groups else 1)


_WINDOW = (("stride", "1"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))


def _nth(window: Mapping[str, str], name: str, i: int, default: str) -> str:
    return window[name].split("x")[i] if name in window else default


def _window_pairs(
    size: int, kernel: int, outputs: int, stride: int, spread: int, kernel_spread: int, before: int
) -> int:
    """(output, kernel) places of one axis that meet an input, neither padding nor a hole between spread inputs."""
    found = 0
    last = (size - 1) * spread
    for k in range(kernel):
        # Output o meets input place o * stride + k * kernel_spread - before.
        offset = k * kernel_spread - before
        if stride % spread == 0 and offset % spread:
            continue
        if stride == 1 and spread == 1:
            found += max(0, min(outputs - 1, last - offset) - max(0, -offset) + 1)
            continue
        for o in range(outputs):
            place = o * stride + offset
            found += 0 <= place <= last and place % spread == 0
    return found


def stated_flops(attributes: str) -> float:
    """Of a custom kernel, 0 where it states none."""
    found = re.search(r'"flops":"?(\d+)', attributes)
    return float(found[1]) if found else 0.0
