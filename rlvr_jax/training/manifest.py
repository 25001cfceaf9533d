"""The manifest of a checkpoint: bytes and CRC-32 of every file, written when all of them are in their place.

A checkpoint without its manifest was not finished. With it, any file that was cut off, changed or removed is found
before a byte of it is used, the manifest itself included.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

NAME = "manifest.json"
_CHUNK = 2**24


class Damaged(Exception):
    """Says which file of a checkpoint is not what was written."""


def write_manifest(folder: epath.Path, facts: Mapping[str, Any]) -> None:
    """Takes down all files of `folder` and `facts`, which are JSON; aside, then renamed.

    In a bucket an object appears whole, and a new name would be a copy of it.
    """
    content = {**facts, "files": {name: list(_fingerprint(folder / name)) for name in sorted(_files(folder))}}
    text = json.dumps({"checksum": _checksum(content), "content": content})
    if "://" in str(folder):
        (folder / NAME).write_text(text)
        return
    scratch = folder / f"{NAME}.part"
    scratch.write_text(text)
    scratch.replace(folder / NAME)


def read_manifest(folder: epath.Path) -> dict[str, Any]:
    """The facts and `files`. Raises FileNotFoundError where there is none, Damaged where it was changed."""
    text = (folder / NAME).read_bytes()
    try:
        written = json.loads(text)
        content, checksum = written["content"], written["checksum"]
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{NAME} cannot be read") from None
    if _checksum(content) != checksum:
        raise Damaged(f"{NAME} was changed")
    return content


def verify(folder: epath.Path, manifest: Mapping[str, Any]) -> None:
    """Reads every file once. Raises Damaged with the first that is not what `manifest` says."""
    for name, (size, checksum) in manifest["files"].items():
        try:
            found = _fingerprint(folder / name)
        except FileNotFoundError:
            raise Damaged(f"{name} is missing") from None
        if found[0] != size:
            raise Damaged(f"{name} has {found[0]} of {size} bytes")
        if found[1] != checksum:
            raise Damaged(f"{name} was changed")


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _fingerprint(file: epath.Path) -> tuple[int, int]:
    size = checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    return size, checksum


def _files(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}"
