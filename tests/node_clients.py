"""Clients under Node: their packages from the lock file, their reports as Python values."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from attrs import define

from tests.live import Server, program

SOURCES = Path(__file__).parent / "node"
INSTALLING = 240.0
"""Seconds in which the packages must have come."""

RUNNING = 60.0
"""Seconds in which all cases of a run must be over."""

SILENCE = 4000
"""Milliseconds without an item after which the caller of a client gives up."""


class Error(msgspec.Struct):
    """An error in JavaScript: its classes from the inside out, and what it says."""

    classes: list[str]
    message: str
    status: int | None
    code: str | int | None
    param: str | None
    type: str | None
    cause: Error | None

    @property
    def innermost(self) -> Error:
        """What caused it in the first place."""
        return self if self.cause is None else self.cause.innermost


class Report(msgspec.Struct, rename="camel"):
    """What a client handed out, what it threw, and whether its caller had to give up."""

    items: list[dict[str, Any]]
    error: Error | None
    gave_up: bool


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of one client (``openai`` or ``ai``); ``call`` is chat, completions or models."""

    client: str
    call: str
    body: dict[str, Any] = {}
    fault: str | None = None


@define
class Clients:
    """The scripts of tests/node in a folder that has their packages."""

    folder: Path

    @classmethod
    def install(cls, folder: Path) -> Clients:
        """Copy the scripts to ``folder`` and fetch what the lock file names, nothing else."""
        shutil.copytree(
            SOURCES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules")
        )
        _run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            folder,
            INSTALLING,
        )
        return cls(folder)

    def report(self, server: Server, cases: Sequence[Case]) -> list[Report]:
        """Run ``cases`` side by side in one process."""
        request = {"url": f"{server.url}/v1", "silence": SILENCE, "cases": cases}
        out = _run(["node", "report.mjs"], self.folder, RUNNING, msgspec.json.encode(request))
        return msgspec.json.decode(out, type=list[Report])


def _run(command: list[str], folder: Path, patience: float, stdin: bytes = b"") -> bytes:
    name, *arguments = command
    # npm looks for node on the path: the environment's own comes first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [program(name), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path},
        input=stdin,
        capture_output=True,
        timeout=patience,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()[-2000:]}"
    return done.stdout
