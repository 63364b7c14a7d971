"""One run: what was selected, who is compared, the records that come in. It imports torch on first need."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.implementations import registry
from conformance.records import Record
from conformance.schema import well_formed

if TYPE_CHECKING:
    from conformance.checks import Selection
    from conformance.deviations import Deviation
    from conformance.subject import Subject

PACKAGES = (
    "torch",
    "transformers",
    "litgpt",
    "llms-from-scratch",
    "numpy",
    "hypothesis",
    "pytest",
    "safetensors",
    "gguf",
    "llama-conformance",
)


@dataclass
class Run:
    """The state of one pytest session.

    Args:
        implementations: names of single implementations.
        selection: what is judged.
        deviations: known disagreements.
        report: folder for results.json and the page.
        checkpoint: name or folder of a trained checkpoint, or "".
        filtered: whether options leave out a part of the suites (then nothing can be called stale).
    """

    implementations: list[str]
    selection: Selection
    deviations: list[Deviation]
    report: Path
    checkpoint: str = ""
    filtered: bool = False
    kept: dict[tuple[str, str, str, str], Record] = field(default_factory=dict)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    subjects: dict[str, Subject] = field(default_factory=dict)

    def subject(self, name: str) -> Subject:
        """The implementation of a name, made once a process, with one torch thread."""
        if name not in self.subjects:
            import torch  # noqa: PLC0415 - see the module's docstring

            from conformance.subject import Subject  # noqa: PLC0415

            torch.set_num_threads(1)  # two processes of two threads each ran 500 times slower
            self.subjects[name] = Subject(find(name), self.selection.device)
        return self.subjects[name]

    def take(self, records: list[Record]) -> None:
        """Keep records, merged with those of the same requirement, implementation, variant and dtype."""
        from conformance.tally import merge  # noqa: PLC0415

        for record in records:
            known = self.kept.get(record.key)
            self.kept[record.key] = record if known is None else merge(known, record)

    @property
    def records(self) -> list[Record]:
        """All of them, in the order they came."""
        return list(self.kept.values())

    def facts(self, command: str, *, interrupted: bool) -> dict[str, Any]:
        """What results.json says about the run."""
        import torch  # noqa: PLC0415

        from conformance.spec import requirements  # noqa: PLC0415

        started = dt.datetime.fromtimestamp(self.started, tz=dt.UTC)
        judged = {r.requirement for r in self.records}
        facts: dict[str, Any] = {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.started, 1),
            "interrupted": interrupted,
            "command": command,
            "profile": self.selection.profile,
            "seed": self.selection.seed,
            "device": device_name(self.selection.device),
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": matmul_precision(),
            "git": git_state(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "versions": versions(),
            "implementations": self.implementations,
            "variants": [v.name for v in self.selection.variants],
            "requirements": {i: r.statement for i, r in requirements().items() if i in judged},
        }
        return dict(well_formed(facts))


def find(name: str) -> Any:
    """The implementation of a name, faults included."""
    if name.startswith(registry.FAULT_PREFIX):
        from conformance.faults import implementation  # noqa: PLC0415 - rarely asked for

        return implementation(name.removeprefix(registry.FAULT_PREFIX))
    return registry.get(name)


def matmul_precision() -> str:
    """How float32 products are computed; torch refuses to say where its two ways to set it were mixed."""
    import torch  # noqa: PLC0415

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:
        return f"unknown ({str(error).partition('.')[0]})"


@functools.cache
def versions() -> dict[str, str]:
    """Installed versions of everything that can change a number."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device_name(device: str) -> str:
    """The device, and for a GPU which one."""
    import torch  # noqa: PLC0415

    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


def git_state() -> str:
    """Commit the suites stand at, with "+" where files were changed; "" outside a clone."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],  # noqa: S607 - the user's git
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def dump(records: list[Record]) -> str:
    """Records as one string, to travel on a test item between processes."""
    return json.dumps([record.to_json() for record in records], allow_nan=False)


def load(text: str) -> list[Record]:
    """The inverse of dump."""
    return [Record.from_json(data) for data in json.loads(text)]


def command_line() -> str:
    """What was typed, for the page."""
    return " ".join(["pytest", *sys.argv[1:]])
