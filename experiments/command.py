"""What every command line does alike: parse, print, and end with the right exit status."""

import contextlib
import dataclasses
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from rlvr_jax.cache import cache_folder
from rlvr_jax.errors import Preempted, RunStopped, UserError
from rlvr_jax.sharding import has_other_hosts

Arguments = TypeVar("Arguments")

_HUGE_PAGES = "glibc.malloc.hugetlb=1"


def run(main: Callable[[], int | None]) -> None:
    """Calls `main`. Exit status: its own, or with one line on standard error that of what it raises, see `errors`."""
    _use_huge_pages()
    _keep_compiled_programs()
    # Orbax logs a failed write several times, with its traceback, and raises it too.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        sys.exit(main() or 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RunStopped as error:
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(3)
    except Preempted as error:
        print(f"preempted: {error}", file=sys.stderr)
        sys.exit(75)
    except Exception:
        if not has_other_hosts():
            raise
        traceback.print_exc()
        host = f"host {jax.process_index()} of {jax.process_count()}"
        print(
            f"error: {host} ends, and with it the others; if one ended before it, that one's log says why",
            file=sys.stderr,
        )
        # Without taking leave, for which it would wait in vain.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _use_huge_pages() -> None:
    """Starts this process over with glibc asking for huge pages, where the kernel grants them only on request.

    XLA allocates its temporaries anew at each call; on CPU the page faults took a fifth of an update. glibc
    reads the setting only at process start. A GLIBC_TUNABLES that is already set is left alone.
    """
    with contextlib.suppress(OSError):
        mode = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        if "[madvise]" in mode and "GLIBC_TUNABLES" not in os.environ:
            os.environ["GLIBC_TUNABLES"] = _HUGE_PAGES
            os.execv(sys.executable, sys.orig_argv)


def _keep_compiled_programs() -> None:
    """The second start of a command finds its programs compiled, unless JAX was told of a folder or to keep none.

    JAX names a program by its operations, its own version and the machine, so a changed one is compiled anew.
    """
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            # Programs of less than a second are many: together they take as long as a large one.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def parse(kind: type[Arguments], description: str) -> Arguments:
    """Arguments from the command line."""
    import tyro

    return tyro.cli(kind, description=description)


def parse_with_presets(presets: Mapping[str, Arguments], description: str, default: str | None = None) -> Arguments:
    """Arguments from the command line, which starts with a preset's name and then changes single values of it.

    With `default`, the name may be left out. Raises UserError for an unknown name.
    """
    import tyro

    arguments = sys.argv[1:]
    first = arguments[0] if arguments else None
    if default is not None and (first is None or (first.startswith("-") and first not in ("-h", "--help"))):
        arguments = [default, *arguments]
    elif first is None or (not first.startswith("-") and first not in presets):
        raise UserError(f"preset is {first!r}, accepted are {', '.join(presets)}")
    choices = {name: (type(value).__doc__ or "", value) for name, value in presets.items()}
    return tyro.extras.overridable_config_cli(choices, description=description, args=arguments)


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on the last line of standard output."""
    print(json.dumps(values, default=str), flush=True)


def as_dict(value: Any) -> dict[str, Any]:
    return dataclasses.asdict(value)
