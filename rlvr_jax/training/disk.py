"""Whether checkpoints can be written, known before the first step."""

import shutil
from collections.abc import Iterator

import jax
from etils import epath
from jaxtyping import PyTree

from rlvr_jax.errors import UserError


def require_writable(folder: epath.Path) -> None:
    """Makes the folder and writes a byte to it. Raises UserError with the reason why that cannot be done."""
    # Each host has its own: what one has written another would remove.
    probe = folder / f".probe_{jax.process_index()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"0")
        probe.unlink()
    except Exception as error:
        # Each kind of storage has its own exceptions, one that lacks its client library among them.
        raise UserError(
            f"checkpoint_folder is {str(folder)!r}: {getattr(error, 'strerror', None) or error}; "
            "accepted is a folder, or one of a bucket, that can be written to"
        ) from error


def require_room(folder: epath.Path, state: PyTree, checkpoints: int) -> None:
    """Raises UserError where so many checkpoints of `state` are more than a local disk has room for.

    What lies in `folder` by now counts as room: it belongs to them, or makes place for them.
    """
    if "://" in str(folder):
        return
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    needed = checkpoints * size - sum(_sizes(folder))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"checkpoint_folder is {str(folder)!r}, with {free / 1e9:.1f} GB free: {checkpoints} checkpoints of "
            f"{size / 1e9:.1f} GB are kept at a time; accepted are fewer keep_checkpoints and another checkpoint_folder"
        )


def _sizes(folder: epath.Path) -> Iterator[int]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _sizes(path)
        else:
            yield path.stat().length
