"""Models and GPUs known by name, as TOML files in this package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import tomli

from inference_lab.configuration.errors import Place
from inference_lab.configuration.reader import read
from inference_lab.configuration.rules import check_model
from inference_lab.configuration.schema import Hardware, Model


def model_names() -> tuple[str, ...]:
    """Every model there is, sorted."""
    return tuple(sorted(_entries("models")))


def hardware_names() -> tuple[str, ...]:
    """Every GPU there is, sorted."""
    return tuple(sorted(_entries("hardware")))


@cache
def catalog_model(name: str) -> Model:
    """The model of that name. Raises KeyError for an unknown one."""
    table, place = _parsed("models", name)
    model = read(Model, table, place)
    check_model(model, place)
    return model


@cache
def catalog_hardware(name: str) -> Hardware:
    """The GPU of that name. Raises KeyError for an unknown one."""
    return read(Hardware, *_parsed("hardware", name))


@cache
def _entries(folder: str) -> dict[str, Traversable]:
    here = files(__package__) / folder
    return {
        file.name.removesuffix(".toml"): file
        for file in here.iterdir()
        if file.name.endswith(".toml")
    }


def _parsed(folder: str, name: str) -> tuple[dict[str, object], Place]:
    text = _entries(folder)[name].read_text(encoding="utf-8")
    return tomli.loads(text), Place(f"catalog/{folder}/{name}.toml")
