"""Modes: named scripts with parameters, read from TOML.

The built-in ones are files beside this one, in ``catalogue/``; a user's are read
the same way from a folder of theirs. What is wrong with a file is one line that
names the file, the key and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import tomli
from attrs import field, frozen

from inference_lab.dialects.base import Identity, Said, Usage
from inference_lab.dialects.chat import Chat
from inference_lab.dialects.completions import Completions
from inference_lab.faults.compounds import Words
from inference_lab.faults.grammar import CHAT, ENDPOINTS, HEALTHY, Fault
from inference_lab.faults.parameters import CORE, SHAPING, TYPES, Parameter
from inference_lab.faults.script import Scene, ScriptError, Word, steps
from inference_lab.faults.steps import Step
from inference_lab.faults.words import HeadWord, NoHeadWord

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*", re.ASCII)
_COMMON = {parameter.name: parameter for parameter in (*CORE, *SHAPING)}

SPECIFIED = (
    "cut_between_frames",
    "cut_mid_frame",
    "reset",
    "stall",
    "error_envelope_200",
    "error_400_in_sse",
    "no_done",
    "no_usage",
    "cancelled_499",
    "mid_reasoning",
    "mid_tool_call",
)
"""The modes of the original interface: their bytes never change."""

TRIAL_STEPS = 300
"""Steps of each script that are tried when it is read."""


class ModeError(ValueError):
    """A mode's file that cannot be used; ``str()`` is the line that says why."""


class _ParameterTable(msgspec.Struct, forbid_unknown_fields=True):
    default: int | float | bool | str
    type: str | None = None
    allowed: list[str] = []
    doc: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    script: list[Words]
    wire: str
    curl: str
    seen: str = ""
    name: str | None = None
    endpoints: list[str] = msgspec.field(default_factory=lambda: list(ENDPOINTS))
    parameters: dict[str, _ParameterTable] = {}


@frozen
class Mode:
    """One way to die.

    ``wire`` says what follows the content frames, ``curl`` what curl makes of it,
    ``seen`` who does so in the wild. ``source`` is the TOML it was read from.
    ``endpoints`` are those where it makes sense. ``own_head`` says that the script
    sends its own head, or none.
    """

    name: str
    script: tuple[Word, ...]
    wire: str
    curl: str
    seen: str = ""
    endpoints: tuple[str, ...] = ENDPOINTS
    parameters: Mapping[str, Parameter] = field(factory=dict)
    own_head: bool = False
    source: str = field(default="", repr=False)

    def steps(self, scene: Scene) -> Iterator[Step]:
        """The steps of this death for one request."""
        scene.values = scene.fault.values(self.parameters)
        return steps(self.script, scene)


def read_mode(text: str, name: str, where: str, trial: bool = True) -> Mode:
    """A mode from its TOML; ``where`` names the file in complaints.

    A ``trial`` plays the beginning of its script, for mistakes that only show then.

    :raises ModeError: saying what is wrong and what is allowed.
    """
    try:
        table = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise ModeError(f"{where}: not valid TOML: {error}") from None
    table["script"] = _spelt_out(table.get("script"), where)
    try:
        read = msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        raise ModeError(f"{where}: {_explained(str(error), table)}") from None
    name = read.name or name
    if not _NAME.fullmatch(name):
        raise ModeError(f"{where}: name: {name!r} must be a-z, 0-9, '_', '-' and '.'")
    for endpoint in read.endpoints:
        if endpoint not in ENDPOINTS:
            raise ModeError(
                f"{where}: endpoints: unknown {endpoint!r}; allowed: {', '.join(ENDPOINTS)}"
            )
    mode = Mode(
        name,
        tuple(read.script),
        read.wire,
        read.curl,
        read.seen,
        tuple(read.endpoints),
        {key: _parameter(key, value, where) for key, value in read.parameters.items()},
        _owns_head(read.script),
        text,
    )
    if trial:
        _try(mode, where)
    return mode


def _parameter(key: str, table: _ParameterTable, where: str) -> Parameter:
    place = f"{where}: parameters.{key}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", key, re.ASCII):
        raise ModeError(f"{place}: a parameter's name must be a-z, 0-9 and '_'")
    common = _COMMON.get(key)
    kind = table.type or (common.kind if common else None)
    if kind not in TYPES:
        raise ModeError(f"{place}.type: {kind!r} is no type; allowed: {', '.join(TYPES)}")
    if common is not None and kind != common.kind:
        raise ModeError(f"{place}.type: this name is taken by a common {common.kind}")
    if kind == "enum" and not (table.allowed or common):
        raise ModeError(f"{place}.allowed: an enum must list its values")
    allowed = tuple(table.allowed) or (common.allowed if common else ())
    low = common.low if common else 0
    parameter = Parameter(key, kind, table.default, allowed, low, table.doc)
    if not parameter.fits(table.default):
        raise ModeError(
            f"{place}.default: {table.default!r} is not allowed: it must be {parameter.describe()}"
        )
    return parameter


def _spelt_out(words: Any, where: str) -> Any:
    """The script with each bare ``"word"`` as a table."""
    if not isinstance(words, list):
        raise ModeError(f"{where}: script: must be an array of words")
    spelt: list[Any] = []
    for word in words:
        if isinstance(word, str):
            spelt.append({"do": word})
        elif isinstance(word, dict):
            word = dict(word)
            if isinstance(word.get("of"), list):
                word["of"] = _spelt_out(word["of"], where)
            if isinstance(word.get("cases"), dict):
                word["cases"] = {k: _spelt_out(v, where) for k, v in word["cases"].items()}
            spelt.append(word)
        else:
            spelt.append(word)
    return spelt


def _tags() -> dict[str, Any]:
    return {kind.__struct_config__.tag: kind for kind in Words.__args__}


def _explained(problem: str, table: Any) -> str:
    """msgspec's complaint with the place first, and what is allowed there."""
    what, _, path = problem.rpartition(" - at `$.")
    if not what:
        return f"{problem}; allowed keys: {', '.join(_File.__struct_fields__)}"
    path = path.rstrip("`")
    if path.endswith(".do") or "missing required field `do`" in what:
        return f"{path}: {what}; allowed words: {', '.join(sorted(_tags()))}"
    there = table
    for step in re.findall(r"[^.\[\]]+", path.replace("[...]", "")):
        try:
            there = there[int(step)] if step.isdigit() else there[step]
        except (KeyError, IndexError, TypeError):
            break
        if isinstance(there, dict) and there.get("do") in _tags():
            last = there["do"]
            keys = ", ".join(("do", *_tags()[last].__struct_fields__))
            what_more = f"; keys of {last}: {keys}"
        else:
            what_more = ""
    else:
        return f"{path}: {what}{what_more}"
    return f"{path}: {what}"


def _owns_head(words: Iterable[Any]) -> bool:
    for word in words:
        if isinstance(word, HeadWord | NoHeadWord):
            return True
        inner = [*getattr(word, "of", ())]
        for case in getattr(word, "cases", {}).values():
            inner += case
        if inner and _owns_head(inner):
            return True
    return False


def trial_scene(mode: Mode, endpoint: str, fault: Fault) -> Scene:
    """A scene of nobody's: to try a script without any request."""
    identity = Identity(f"{endpoint}-0", 1_700_000_000, "model")
    speaker = Chat(identity) if endpoint == CHAT else Completions(identity)
    return Scene(speaker, fault, lambda index: Said(f" {index}é."), Usage(1, 1), True)


def _try(mode: Mode, where: str) -> None:
    """Play the beginning of every variant, so that mistakes show at boot."""
    variants: list[dict[str, Any]] = [{}]
    for parameter in mode.parameters.values():
        if parameter.kind == "enum":
            variants += [{parameter.name: value} for value in parameter.allowed]
        if parameter.kind == "bool":
            variants.append({parameter.name: not parameter.default})
    for endpoint in mode.endpoints:
        for variant in variants:
            core = {p.name: mode.parameters.get(p.name, p).default for p in CORE}
            own = {key: value for key, value in variant.items() if key not in core}
            core |= {key: value for key, value in variant.items() if key in core}
            fault = Fault(mode.name, **core, settings=tuple(own.items()))  # type: ignore[arg-type]
            try:
                for _ in islice(mode.steps(trial_scene(mode, endpoint, fault)), TRIAL_STEPS):
                    pass
            except (ScriptError, UnicodeError, OverflowError, AttributeError) as error:
                raise ModeError(f"{where}: script: {error}") from None


NONE = Mode(
    HEALTHY,
    (),
    wire="a healthy stream, respelt by the common parameters",
    curl="exit 0",
    seen="every server, most of the time",
    source="# No script: a healthy stream. Common parameters apply.\n",
)
"""No death at all."""


@cache
def built_in() -> Mapping[str, Mode]:
    """The catalogue, by name, with `NONE`."""
    modes = {NONE.name: NONE}
    folder = files(__package__).joinpath("catalogue")
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".toml"):
            name = entry.name.removesuffix(".toml")
            # The tests try these; every start of the program need not.
            modes[name] = read_mode(entry.read_text("utf-8"), name, entry.name, trial=False)
    return modes


def load_modes(folders: Iterable[str | Path]) -> Mapping[str, Mode]:
    """The built-in modes and those of every ``*.toml`` in ``folders``.

    :raises ModeError: for a folder, a file or a name that cannot be used.
    """
    modes = dict(built_in())
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ModeError(f"{folder}: no such folder of modes")
        for path in sorted(folder.glob("*.toml")):
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ModeError(f"{path}: {error}") from None
            mode = read_mode(text, path.stem, str(path))
            if mode.name in modes:
                raise ModeError(f"{path}: name: there is a mode {mode.name!r} already")
            modes[mode.name] = mode
    return modes


MODES: Mapping[str, Mode] = {name: built_in()[name] for name in SPECIFIED}
"""The specified eleven, by name."""
