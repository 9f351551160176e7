"""``inference-lab modes``: list them, show one's script, render one's bytes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from rich.console import Console
from rich.table import Table

from inference_lab.faults.grammar import CHAT, ENDPOINTS, FaultError, parse_header
from inference_lab.faults.modes import Mode, ModeError, load_modes
from inference_lab.options import BootError


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with 1."""
        raise BootError(message)


def _parser() -> argparse.ArgumentParser:
    folders = _Parser(add_help=False)
    folders.add_argument(
        "--modes", action="append", default=[], metavar="DIR", help="a folder of modes of your own"
    )
    parser = _Parser("inference-lab modes", description="The ways to die.", parents=[folders])
    commands = parser.add_subparsers(dest="command", parser_class=_Parser)
    # A default here would undo what was given before the command.
    folders.set_defaults(modes=None)
    more = _Parser(add_help=False)
    more.add_argument("--modes", action="append", dest="more", default=[], metavar="DIR")
    show = commands.add_parser("show", parents=[more], help="print a mode's script as TOML")
    show.add_argument("name")
    render = commands.add_parser("render", parents=[more], help="print a mode's exact bytes")
    render.add_argument("name")
    render.add_argument("--endpoint", choices=ENDPOINTS, default=CHAT)
    render.add_argument(
        "--param", action="append", default=[], metavar="KEY=VALUE", help="repeatable"
    )
    render.add_argument("--model", default=None, help="a bundled configuration's model")
    return parser


def main(argv: Sequence[str]) -> None:
    """Run ``inference-lab modes ...``.

    :raises BootError: with the one line that says what is wrong.
    """
    asked = _parser().parse_args(argv)
    try:
        modes = load_modes([*(asked.modes or ()), *getattr(asked, "more", ())])
        match asked.command:
            case "show":
                print(_mode(asked.name, modes).source, end="")
            case "render":
                _render(asked, modes)
            case _:
                _list(modes)
    except (ModeError, FaultError) as error:
        raise BootError(error) from None


def _mode(name: str, modes: Mapping[str, Mode]) -> Mode:
    if name not in modes:
        raise BootError(f"unknown mode {name!r}; modes: {', '.join(sorted(modes))}")
    return modes[name]


def _list(modes: Mapping[str, Mode]) -> None:
    table = Table(show_lines=True)
    for title in ("name", "parameters", "wire", "curl", "seen"):
        table.add_column(title, overflow="fold")
    for name, mode in sorted(modes.items()):
        parameters = "\n".join(
            f"{p.name}={p.default}" + (f" ({', '.join(p.allowed)})" if p.allowed else "")
            for p in mode.parameters.values()
        )
        table.add_row(name, parameters, mode.wire, mode.curl, mode.seen)
    # A pipe has no width of its own, and should lose nothing.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)


def _render(asked: argparse.Namespace, modes: Mapping[str, Mode]) -> None:
    from inference_lab.render import render

    mode = _mode(asked.name, modes)
    if asked.endpoint not in mode.endpoints:
        raise BootError(f"{mode.name} is for {', '.join(mode.endpoints)} only")
    directive = ";".join([asked.name, *asked.param])
    parse_header(directive, modes)
    rendered = render(directive, asked.endpoint, modes, asked.model)
    sys.stdout.buffer.write(rendered.wire)
    sys.stdout.flush()
    print(f"end: {rendered.end}", file=sys.stderr)
