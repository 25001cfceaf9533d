"""Does a preset fit a TPU pod, and how fast could it be? Its update and its sampler are compiled without one.

python -m experiments.aot llama3.1_8b_gsm8k --topology v5e:4x4
python -m experiments.aot qwen3.5_9b_gsm8k --topology v5p:2x2x2 --lora-rank 0
python -m experiments.aot gsm8k --model FOLDER_OR_HUB_ID --topology v6e:1x1 --prompt-tokens 512

Needs libtpu, the TPU compiler (pip install libtpu), but neither a TPU nor weights: of a model its config.json alone, or
a hub id that `rlvr_jax.models.published` knows. On two cores an 8B update takes two minutes and its sampling one; with
`--packing` above 1, an update is compiled once for each size of packed completions and once padded, which is what
needs the most and what figures are of. Exit status 1 when a program does not fit the chip.
"""

import dataclasses
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from experiments.command import as_dict, parse_with_presets, print_json, run
from experiments.compiling.chips import Chip, chip_of, topology_devices
from experiments.presets import PRESETS
from rlvr_jax.errors import UserError
from rlvr_jax.training import TrainConfig

PROGRAMS = ("update", "begin", "finish")


@dataclasses.dataclass(frozen=True)
class Aot:
    """Compile a run for a TPU that need not be there."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    topology: str = "v5e:4x4"
    """Kind of chip and sides of the slice: v5e:4x4, v5p:2x2x2, v6e:1x1, ..."""
    prompt_tokens: int = 256
    """Of the longest prompt, without the prefix that all share; a run learns both from its data."""
    prefix_tokens: int = 0
    programs: tuple[str, ...] = PROGRAMS
    """What to compile: update, begin (prompts and most of decoding), finish (the last completions)."""
    json: bool = False
    """Print all figures as one JSON object on the last line."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.programs if name not in PROGRAMS]
        if unknown or not self.programs:
            raise UserError(f"programs are {self.programs}, accepted are one or more of {PROGRAMS}")
        for name, least in (("prompt_tokens", 1), ("prefix_tokens", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, accepted is {least} or more")


def main() -> int:
    arguments = parse_with_presets({name: Aot(config) for name, config in PRESETS.items()}, __doc__)
    chip, devices = chip_of(arguments.topology), topology_devices(arguments.topology)

    from experiments.compiling.arrays import Lengths
    from experiments.compiling.programs import compile_programs, least_collective_bytes
    from rlvr_jax.models import open_config, param_shardings
    from rlvr_jax.sharding import MeshShape, make_mesh
    from rlvr_jax.tasks import make_task
    from rlvr_jax.training.setup import check_shares

    config = arguments.config
    mesh = make_mesh(config.mesh, devices)
    decode_mesh = mesh if config.decode_mesh is None else make_mesh(MeshShape(*config.decode_mesh), devices)
    check_shares(config, mesh, decode_mesh)
    model = open_config(config.model)
    for each in (mesh, decode_mesh):
        param_shardings(model, each)
    completion = config.max_new_tokens or make_task(config.task, config.data, config.prompt_format).max_new_tokens
    lengths = Lengths(arguments.prefix_tokens, arguments.prompt_tokens, completion)
    compiled = compile_programs(config, model, mesh, decode_mesh, lengths, arguments.programs)
    least = least_collective_bytes(config, model, mesh, lengths)
    figures = {name: figures_of(program, chip) for name, program in compiled.items()}
    if "update" in figures:
        figures["update"]["least_collective_bytes"] = least
    fits = all(each["fits"] for each in figures.values())
    summary = {
        "model": config.model,
        "topology": arguments.topology,
        "mesh": dict(mesh.shape),
        "lengths": as_dict(lengths),
        "completions": config.prompts_per_step * config.samples_per_prompt,
        "chip": as_dict(chip),
        "fits": fits,
        "programs": figures,
    }
    if arguments.json:
        print_json(summary)
    else:
        console = Console()
        console.print(table(summary))
        console.print(verdict(summary))
    return int(not fits)


def figures_of(program: Any, chip: Chip) -> dict[str, Any]:
    """Bytes, operations and the least seconds of one program, on one device."""
    found = {"compile_seconds": program.seconds, "memory": dict(program.memory)}
    found["fits"] = program.cost is not None and program.memory["total"] <= chip.hbm_bytes
    if program.cost is None:
        return found
    cost = program.cost
    seconds = {
        "products": cost.passes / chip.flops,
        "memory": cost.memory_bytes / chip.hbm_bandwidth,
        "interconnect": cost.collective_bytes / chip.ici_bandwidth,
    }
    return found | {
        "flops": cost.flops,
        "hbm_bytes": cost.memory_bytes,
        "collectives": {kind: as_dict(traffic) for kind, traffic in sorted(cost.collectives.items())},
        "collective_bytes": cost.collective_bytes,
        "kernels": cost.kernels,
        "seconds": seconds | {"overlapped": max(seconds.values()), "one_by_one": sum(seconds.values())},
    }


def table(summary: dict[str, Any]) -> Table:
    """Rows of figures, a column for each program."""
    programs = summary["programs"]
    shape = ", ".join(f"{name} {size}" for name, size in summary["mesh"].items())
    lengths = summary["lengths"]
    shown = Table(
        title=f"{summary['model']} on {summary['topology']} ({shape})",
        caption=f"per device; {summary['completions']} completions of up to {lengths['completion']} tokens after "
        f"prompts of {lengths['prompt']}, prefix {lengths['prefix']}. Seconds at the chip's published peak rates.",
    )
    for column in ("", *programs):
        shown.add_column(column, justify="right" if column else "left")
    sizes = list(dict.fromkeys(name for each in programs.values() for name in each["memory"]))
    for name in sizes:
        label = {"resident": "kept beside it", "total": "together"}.get(name, name)
        shown.add_row(f"{label}, GB", *(_of(each["memory"].get(name), 1e9) for each in programs.values()))
    share = [f"{each['memory']['total'] / summary['chip']['hbm_bytes']:.0%}" for each in programs.values()]
    shown.add_row(f"of {summary['chip']['hbm_bytes'] / 1e9:.0f} GB HBM", *share, end_section=True)
    shown.add_row("TFLOP", *(_of(each.get("flops"), 1e12) for each in programs.values()))
    shown.add_row("memory traffic, GB", *(_of(each.get("hbm_bytes"), 1e9) for each in programs.values()))
    kinds = sorted({kind for each in programs.values() for kind in each.get("collectives", ())})
    for kind in kinds:
        found = [each.get("collectives", {}).get(kind) for each in programs.values()]
        shown.add_row(
            f"{kind}, GB sent (count)", *(f"{one['bytes'] / 1e9:.2f} ({one['count']})" if one else "-" for one in found)
        )
    shown.add_row("collectives, GB sent", *(_of(each.get("collective_bytes"), 1e9) for each in programs.values()))
    shown.add_row(
        "least that FSDP sends", *(_of(each.get("least_collective_bytes"), 1e9) for each in programs.values())
    )
    shown.add_section()
    for name in ("products", "memory", "interconnect", "overlapped", "one_by_one"):
        label = {"overlapped": "all at once", "one_by_one": "one after the other"}.get(name, name)
        shown.add_row(f"{label}, s", *(_of(each.get("seconds", {}).get(name), 1, 3) for each in programs.values()))
    shown.add_row("compiled in, s", *(_of(each["compile_seconds"], 1, 0) for each in programs.values()))
    return shown


def _of(value: float | None, unit: float, digits: int = 2) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


def verdict(summary: dict[str, Any]) -> str:
    """One line: fits or not, and the least time of a step."""
    programs = summary["programs"]
    if not summary["fits"]:
        hbm = summary["chip"]["hbm_bytes"]
        over = [
            f"{name} needs {each['memory']['total'] / 1e9:.2f} GB"
            for name, each in programs.items()
            if not each["fits"]
        ]
        return f"does not fit: {', '.join(over)} of {hbm / 1e9:.0f} GB"
    times = [sum(each["seconds"][how] for each in programs.values()) for how in ("overlapped", "one_by_one")]
    return (
        f"fits; {' + '.join(programs)} take at least {times[0]:.2f} s, {times[1]:.2f} s where nothing overlaps "
        f"({summary['chip']['source']})"
    )


if __name__ == "__main__":
    run(main)
