"""The error frames of servers that are known by name: data, in ``emitters.toml``."""

from __future__ import annotations

from importlib.resources import files

import tomli

_TABLE = tomli.loads(files(__package__).joinpath("emitters.toml").read_text("utf-8"))

FRAMES: dict[str, str] = _TABLE["frames"]
"""Each a template of everything that goes into the body, blank line included."""
