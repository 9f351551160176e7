"""The workload file: how many requests come, when, and how long they are.

The schema is that of the public Rust original, so that its files can be used.  A server does not
choose what is sent to it: of all this it takes the seed and the lengths of answers
(`inference_lab.content.lengths`).  The rest is checked and otherwise left to who sends requests.
"""

from __future__ import annotations

import math
import re
from os import PathLike, fspath
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
import tomli
from msgspec import Meta, Struct

__all__ = [
    "Fixed",
    "LengthDistribution",
    "LogNormal",
    "Normal",
    "Uniform",
    "Workload",
    "WorkloadError",
    "load_workload",
    "parse_workload",
]

Tokens = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Rate = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Pattern = Literal["poisson", "uniform", "fixed_rate", "burst", "closed_loop", "batched"]


class WorkloadError(ValueError):
    """A workload file that cannot be used, in one line: ``file: [table] key: problem``."""


class Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One TOML table: immutable, refusing unknown keys."""


class Fixed(Table, tag_field="type", tag="fixed", frozen=True, kw_only=True):
    """Every length is ``value`` tokens."""

    value: Tokens


class Uniform(Table, tag_field="type", tag="uniform", frozen=True, kw_only=True):
    """``min`` to ``max`` tokens, both included."""

    min: Tokens
    max: Tokens


class Normal(Table, tag_field="type", tag="normal", frozen=True, kw_only=True):
    """A normal variate, in tokens."""

    mean: float
    std_dev: Annotated[float, Meta(ge=0)]


class LogNormal(Table, tag_field="type", tag="lognormal", frozen=True, kw_only=True):
    """The exponential of a normal variate, whose parameters these are."""

    mean: float
    std_dev: Annotated[float, Meta(ge=0)]


LengthDistribution = Fixed | Uniform | Normal | LogNormal


class Sine(Table, tag_field="type", tag="sine", frozen=True, kw_only=True):
    """A rate (requests per second) that swings, from ``min`` at time 0."""

    min: Rate
    max: Rate
    period_secs: Annotated[float, Meta(gt=0)]


class Square(Table, tag_field="type", tag="square", frozen=True, kw_only=True):
    """A rate that is ``high`` for the share ``duty`` of each period, else ``low``."""

    low: Rate
    high: Rate
    period_secs: Annotated[float, Meta(gt=0)]
    duty: Annotated[float, Meta(ge=0, le=1)]


class Trace(Table, tag_field="type", tag="trace", frozen=True, kw_only=True):
    """A rate given at points ``[seconds, rate]``, linear between them."""

    points: Annotated[list[tuple[Seconds, Rate]], Meta(min_length=1)]


class Workload(Table, frozen=True, kw_only=True):
    """The whole file."""

    arrival_pattern: Pattern
    arrival_rate: Annotated[float, Meta(gt=0)] = 1.0
    rate_schedule: Sine | Square | Trace | None = None
    input_len_dist: LengthDistribution
    output_len_dist: LengthDistribution
    num_requests: Count | None = None
    num_concurrent_users: Count | None = None
    closed_loop_jitter_secs: Seconds | None = None
    duration_secs: Seconds | None = None
    seed: Annotated[int, Meta(ge=0)]
    dataset_path: str | None = None
    sessions_path: str | None = None
    num_sessions: Count | None = None
    stationary_start_sessions: bool | Count | None = None
    resample_sessions: bool | None = None


def load_workload(path: str | PathLike[str]) -> Workload:
    """Read a workload file.

    :raises WorkloadError: with one line, for a file that cannot be read or used.
    """
    try:
        with open(path, "rb") as file:
            return parse_workload(file.read(), fspath(path))
    except OSError as error:
        raise WorkloadError(f"{fspath(path)}: {error.strerror}") from None


def parse_workload(data: bytes, source: str) -> Workload:
    """As `load_workload`, from the file's bytes.

    :param source: the file's name, for errors.
    """
    try:
        table = tomli.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{source}: not TOML: byte {error.start} is not UTF-8") from None
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise WorkloadError(f"{source}: not TOML: {error}".replace("\n", " ")) from None
    try:
        workload = msgspec.convert(table, Workload)
    except msgspec.ValidationError as error:
        raise _explained(str(error), table, source) from None
    _check(workload, source)
    return workload


def _check(workload: Workload, source: str) -> None:
    """What concerns more than one value."""
    for name in ("input_len_dist", "output_len_dist", "rate_schedule"):
        part = getattr(workload, name)
        for key in part.__struct_fields__ if part is not None else ():
            value = getattr(part, key)
            if isinstance(value, float) and not math.isfinite(value):
                raise WorkloadError(f"{source}: [{name}] {key}: expected a finite number")
        if isinstance(part, Uniform | Sine) and part.min > part.max:
            raise WorkloadError(f"{source}: [{name}] min: expected at most max ({part.max})")
    schedule = workload.rate_schedule
    if isinstance(schedule, Trace):
        times = [seconds for seconds, _ in schedule.points]
        if times != sorted(times):
            raise WorkloadError(f"{source}: [rate_schedule] points: expected times in order")
    for key in ("arrival_rate", "closed_loop_jitter_secs", "duration_secs"):
        if not math.isfinite(getattr(workload, key) or 0):
            raise WorkloadError(f"{source}: {key}: expected a finite number")


# msgspec's messages, which are its only account of what is wrong.
_MESSAGE: Final = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `([^`]*)`", re.DOTALL)
_TYPES: Final = {
    "input_len_dist": ("fixed", "uniform", "normal", "lognormal"),
    "output_len_dist": ("fixed", "uniform", "normal", "lognormal"),
    "rate_schedule": ("sine", "square", "trace"),
}


def _explained(message: str, table: dict[str, Any], source: str) -> WorkloadError:
    match = _MESSAGE.fullmatch(message)
    problem, path = (match[1], match[2] or "") if match else (message, "")
    name, _, key = path.partition(".")
    if name and not key and name not in _TYPES:
        name, key = "", name
    field = _FIELD.match(problem)
    if field:
        if name and field[1].startswith("contains"):
            keys = sorted(_keys(table[name]))
        else:
            keys = list(Workload.__struct_fields__)
        key = field[2]
        problem = "this key is required"
        if field[1].startswith("contains"):
            problem = f"unknown key; known are {', '.join(keys)}"
    if key == "type" and name:
        problem = f"expected {', '.join(_TYPES[name])}"
    elif key == "arrival_pattern":
        problem = f"expected {', '.join(get_args(Pattern))}"
    problem = problem[:1].lower() + problem[1:]
    where = f"[{name}] {key}" if name and key else f"[{name}]" if name else key
    line = f"{source}: {where}: {problem}".replace("`", "")
    return WorkloadError(line.encode("unicode_escape").decode() if not line.isprintable() else line)


def _keys(table: dict[str, Any]) -> set[str]:
    """The keys of the kind of table that this one says it is."""
    kinds: tuple[type[Struct], ...] = (Fixed, Uniform, Normal, LogNormal, Sine, Square, Trace)
    found: set[str] = set()
    for kind in kinds:
        if kind.__struct_config__.tag == table.get("type"):
            found |= {"type", *kind.__struct_fields__}
    return found
