"""The fault directive: what a header or a ``[fault]`` table may say.

Both spell the same things, so both end in one `Fault`. A refusal names the
faulty part and lists the modes there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from attrs import frozen

from inference_lab.faults.parameters import CORE, SHAPING, Parameter, Value, spell, split, unquote

CHAT = "chat"
COMPLETIONS = "completions"
ENDPOINTS = (CHAT, COMPLETIONS)

HEALTHY = "none"
"""The mode that is none: a healthy stream, which `SHAPING` may still respell."""

_BLANK = " \t"
_UTF8_MODE = "cut_mid_frame"
_CORE = {parameter.name: parameter for parameter in CORE}
_COMMON = {parameter.name: parameter for parameter in (*CORE, *SHAPING)}


class FaultError(ValueError):
    """A directive that cannot be honoured; ``str()`` says which part and why.

    ``key`` is the parameter at fault, where there is one.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class Parametrized(Protocol):
    """As much of a mode as the grammar must know."""

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Its own parameters, and the common ones that it has other defaults for."""


Modes = Mapping[str, Parametrized] | Collection[str]
"""The modes of a server by name; bare names are modes without parameters of their own."""


@frozen
class Fault:
    """One valid directive.

    ``after_chunks`` counts content-bearing frames before the death, ``delay_ms``
    is the pacing between frames, ``utf8`` (`cut_mid_frame` only) cuts inside a
    two-byte character. ``settings`` are the other parameters that differ from
    their defaults, by name.
    """

    mode: str
    after_chunks: int = 3
    delay_ms: int = 10
    utf8: bool = False
    settings: tuple[tuple[str, Value], ...] = ()

    def canonical(self) -> str:
        """The directive spelt in full, as a header value."""
        text = self.mode
        if text != HEALTHY:
            # Health has no death to count towards.
            text += f";after_chunks={self.after_chunks};delay_ms={self.delay_ms}"
        if self.utf8:
            text += ";utf8=true"
        return text + "".join(f";{key}={spell(value)}" for key, value in self.settings)

    def values(self, own: Mapping[str, Parameter] | None = None) -> dict[str, Value]:
        """Every parameter's value, for a mode whose ``own`` parameters these are."""
        known = _COMMON | dict(own or {})
        found = {name: parameter.default for name, parameter in known.items()}
        core = {"after_chunks": self.after_chunks, "delay_ms": self.delay_ms, "utf8": self.utf8}
        return found | core | dict(self.settings)


@frozen
class ModelFault:
    """A model's own `Fault` and the endpoints whose streams it strikes."""

    fault: Fault
    endpoints: frozenset[str] = frozenset({CHAT})


def parse_header(value: str, modes: Modes) -> Fault:
    """Read ``<mode>[;key=value]...``.

    Names are case-sensitive; blanks around parts and values, and empty parts,
    are skipped. Text may be double-quoted, and means itself inside the quotes.

    :raises FaultError: naming the part that is wrong.
    """
    parts = [part.strip(_BLANK) for part in split(value, ";")]
    mode, *settings = [part for part in parts if part] or [""]
    _check_mode(mode, modes)
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key, text = key.strip(_BLANK), text.strip(_BLANK)
        parameter = _parameter(key, mode, modes)
        if key in found:
            raise _refusal(f"the parameter {key!r} is given twice", modes, key)
        try:
            if not equals:
                raise ValueError
            found[key] = parameter.parse(*unquote(text))
        except ValueError:
            raise _refusal(
                f"{_shown(setting)} is not valid: {key} is {parameter.describe()}", modes, key
            ) from None
    return _fault(mode, found, modes)


def parse_table(table: Mapping[str, Any], modes: Modes) -> ModelFault:
    """Read a model's ``[fault]`` table.

    :raises FaultError: naming the key that is wrong, and what is allowed.
    """
    rest = dict(table)
    if "mode" not in rest:
        raise _refusal("mode is missing", modes, "mode")
    mode = rest.pop("mode")
    if not isinstance(mode, str):
        raise _refusal(f"mode must be a string, not {_shown(mode)}", modes, "mode")
    _check_mode(mode, modes)
    endpoints = parse_endpoints(rest.pop("endpoints", [CHAT]))
    for key, value in rest.items():
        parameter = _parameter(key, mode, modes, also=("mode", "endpoints"))
        if not parameter.fits(value):
            raise FaultError(f"{key} must be {parameter.describe()}, not {_shown(value)}", key)
    return ModelFault(_fault(mode, rest, modes), endpoints)


def parse_endpoints(value: Any) -> frozenset[str]:
    """Which endpoints a table says that it strikes.

    :raises FaultError: for anything but a list of some.
    """
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(e, str) and e in ENDPOINTS for e in value)
    ):
        raise FaultError(
            f"endpoints must be a list of {' and '.join(ENDPOINTS)}, not {_shown(value)}",
            "endpoints",
        )
    return frozenset(value)


def parameters(mode: str, modes: Modes) -> dict[str, Parameter]:
    """Every parameter that ``mode`` takes, the common ones first."""
    own = modes[mode].parameters if isinstance(modes, Mapping) else {}
    return _COMMON | dict(own)


def _fault(mode: str, found: Mapping[str, Any], modes: Modes) -> Fault:
    own = modes[mode].parameters if isinstance(modes, Mapping) else {}
    if found.get("utf8") and mode != _UTF8_MODE and "utf8" not in own:
        raise _refusal(f"utf8=true goes with {_UTF8_MODE} only, not with {mode}", modes, "utf8")
    known = parameters(mode, modes)
    core = {name: found.get(name, known[name].default) for name in _CORE}
    settings = {
        name: float(value) if known[name].kind == "float" else value
        for name, value in sorted(found.items())
        if name not in _CORE and value != known[name].default
    }
    return Fault(mode, **core, settings=tuple(settings.items()))


def _check_mode(mode: str, modes: Modes) -> None:
    if not mode:
        raise _refusal("no mode is given", modes, "mode")
    if mode not in modes:
        raise _refusal(f"unknown mode {_shown(mode)}", modes, "mode")


def _parameter(key: str, mode: str, modes: Modes, also: tuple[str, ...] = ()) -> Parameter:
    known = parameters(mode, modes)
    if key not in known:
        names = ", ".join((*also, *known))
        raise _refusal(f"unknown parameter {_shown(key)} of {mode} (known: {names})", modes, key)
    return known[key]


def _refusal(problem: str, modes: Modes, key: str | None) -> FaultError:
    return FaultError(f"{problem}. Valid modes: {', '.join(sorted(modes))}", key)


def _shown(value: object) -> str:
    """``value`` for a one-line message: quoted, and cut where a client went on and on."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
