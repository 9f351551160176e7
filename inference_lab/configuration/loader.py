"""Model files to deployments: find them, read them, resolve one hardware entry each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import tomli
from attrs import evolve, frozen

from inference_lab.configuration.catalog import (
    catalog_hardware,
    catalog_model,
    hardware_names,
    model_names,
)
from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.errors import ConfigError, Place, did_you_mean, one_line
from inference_lab.configuration.reader import check_part, read
from inference_lab.configuration.rules import check_deployment, check_model
from inference_lab.configuration.schema import (
    Hardware,
    HardwareEntry,
    Model,
    ModelFile,
    RoundRobin,
    Scheduler,
)

__all__ = ["ConfigError", "Loaded", "load", "shipped_configs"]

WITHOUT_EFFECT = {
    "memory": "KV tiers are not simulated",
    "speculative": "speculative decoding is not simulated",
    "decode_router": "prefill and decode run on the same GPUs",
}
"""Tables of the schema that are accepted and ignored, and why."""


@frozen
class Loaded:
    """What a set of model files comes to.

    ``skipped`` has a line for each file without the wanted hardware entry,
    ``warnings`` one for whatever an operator wrote that has no effect.
    """

    deployments: tuple[Deployment, ...]
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def shipped_configs() -> Path:
    """The folder of the model files that come with the package.

    A wheel has it inside the package, a checkout beside it.
    """
    package = Path(__file__).resolve().parent.parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def load(paths: Sequence[str | PathLike[str]], hardware: str | None = None) -> Loaded:
    """Read every model file in ``paths`` and resolve one hardware entry of each.

    A path is a file, or a directory whose ``*.toml`` are read in order. With
    ``hardware`` each file runs on its entry of that name and files without it are
    skipped; otherwise each runs on its first.

    :raises ConfigError: with one line, for anything the operator can mend.
    """
    given = [str(os.fspath(path)) for path in paths]
    files = [(source, _read_file(source)) for source in _sources(given)]
    if not files:
        raise ConfigError("no configuration: expected at least one file or directory")
    deployments: list[Deployment] = []
    skipped: list[str] = []
    warnings: list[str] = []
    for source, file in files:
        entry = next(iter(file.hardware)) if hardware is None else hardware
        if entry not in file.hardware:
            has = ", ".join(file.hardware)
            skipped.append(f"{source}: skipped, it has no [hardware.{entry}]; it has {has}")
            continue
        deployment = _resolve(source, file, entry)
        deployments.append(deployment)
        warnings.extend(_ignored(source, file, entry))
        warnings.extend(check_deployment(deployment))
    if not deployments:
        there = sorted({entry for _, file in files for entry in file.hardware})
        raise ConfigError(
            f"{', '.join(given)}: no file has a [hardware.{hardware}] entry"
            f"{did_you_mean(str(hardware), there) or ';'} there are {', '.join(there)}"
        )
    return Loaded(
        _named(deployments, dict(files)),
        skipped=tuple(map(one_line, skipped)),
        warnings=tuple(map(one_line, warnings)),
    )


# -- files -------------------------------------------------------------------


def _sources(paths: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for path in paths:
        for source in _toml_files(path) if os.path.isdir(path) else (path,):
            real = os.path.realpath(source)
            if real not in seen:
                seen.add(real)
                yield source


def _toml_files(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    paths = [
        os.path.join(folder, name)
        for name in names
        if name.endswith(".toml") and not name.startswith(".")
    ]
    found = [path for path in paths if not os.path.isdir(path)]
    if not found:
        raise ConfigError(f"{folder}: no model files; expected at least one *.toml")
    return found


def _read_file(source: str) -> ModelFile:
    try:
        text = Path(source).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not TOML: byte {error.start} is not UTF-8") from None
    try:
        table = tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    place = Place(source)
    file = read(ModelFile, table, place)
    # What is not run is checked as well, as far as it is written here.
    _model(file, place)
    check_part(Scheduler, _spelled(file.scheduler), place / "scheduler")
    for name, entry in file.hardware.items():
        _scheduler(file, name, place)
        if isinstance(entry.spec, dict):
            read(Hardware, entry.spec, place / "hardware" / name / "spec")
    return file


# -- resolution --------------------------------------------------------------


def _resolve(source: str, file: ModelFile, name: str) -> Deployment:
    place = Place(source)
    entry = file.hardware[name]
    model = _model(file, place)
    return Deployment(
        name=file.served_name or model.name,
        source=source,
        entry=name,
        model=model,
        hardware=_hardware(entry, name, place),
        scheduler=_scheduler(file, name, place),
        tensor_parallel=entry.tp,
        expert_parallel=entry.ep,
        dp_attention=entry.dp_attention,
        replicas=entry.replicas,
        router=entry.router or file.router or RoundRobin(),
        time_correction=entry.time_correction,
        fault=file.fault,
    )


def _model(file: ModelFile, place: Place) -> Model:
    place /= "model"
    if isinstance(file.model, dict):
        model = read(Model, file.model, place)
        check_model(model, place)
        return model
    try:
        return catalog_model(file.model)
    except KeyError:
        raise place.error(_not_in_catalog(file.model, model_names())) from None


def _hardware(entry: HardwareEntry, name: str, place: Place) -> Hardware:
    place = place / "hardware" / name / "spec"
    if isinstance(entry.spec, dict):
        return read(Hardware, entry.spec, place)
    try:
        return catalog_hardware(name if entry.spec is None else entry.spec)
    except KeyError:
        missing = "missing, and " if entry.spec is None else ""
        known = _not_in_catalog(name if entry.spec is None else entry.spec, hardware_names())
        raise place.error(missing + known) from None


def _not_in_catalog(name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, known)
    return f'"{name}" is not in the catalog{hint or ";"} allowed are {", ".join(known)} or a table'


def _scheduler(file: ModelFile, name: str, place: Place) -> Scheduler:
    shared, own = _spelled(file.scheduler), _spelled(file.hardware[name].scheduler)
    check_part(Scheduler, own, place / "hardware" / name / "scheduler")
    return read(Scheduler, {**shared, **own}, place / "scheduler")


def _spelled(table: dict[str, Any]) -> dict[str, Any]:
    """The table with its policy in the schema's one spelling."""
    policy = table.get("policy")
    if not isinstance(policy, str):
        return table
    lower = policy.lower()
    return {**table, "policy": "sof" if lower == "sjf" else lower}


def _ignored(source: str, file: ModelFile, name: str) -> Iterator[str]:
    entry, place = file.hardware[name], Place(source)
    for key, reason in WITHOUT_EFFECT.items():
        if getattr(file, key) is not None:
            yield f"{place}: [{key}] has no effect: {reason}"
        if getattr(entry, key) is not None:
            yield f"{place}: [hardware.{name}.{key}] has no effect: {reason}"
    if isinstance(entry.spec, dict) and "memory" in entry.spec:
        yield f"{place}: [hardware.{name}.spec.memory] has no effect: {WITHOUT_EFFECT['memory']}"


# -- names -------------------------------------------------------------------


def _named(deployments: list[Deployment], files: Mapping[str, ModelFile]) -> tuple[Deployment, ...]:
    """Refuse names served twice; add the catalog keys as further names.

    A key several files use goes to the first that serves the model under its own name,
    else to the first. A key that is another model's name is left to that model.
    """
    names: dict[str, Deployment] = {}
    for deployment in deployments:
        other = names.setdefault(deployment.name, deployment)
        if other is not deployment:
            raise ConfigError(
                f"{deployment.source}: served_name: {other.source} serves "
                f'"{deployment.name}" as well; set served_name to another name in one of them'
            )
    keys: dict[str, str] = {}
    for deployment in sorted(deployments, key=lambda d: d.name != d.model.name):
        key = files[deployment.source].model
        if isinstance(key, str) and key not in names:
            keys.setdefault(key, deployment.source)
    return tuple(
        evolve(d, aliases=tuple(key for key, source in keys.items() if source == d.source))
        for d in deployments
    )
