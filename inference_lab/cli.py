"""The ``inference-lab`` command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from inference_lab import __version__

USAGE = """\
usage: inference-lab COMMAND [options]

commands:
  serve          run the server in the foreground (the same as `twistd -n inference-lab`)
  modes          list the ways to die; `modes show NAME`, `modes render NAME`
  explain        price one step of a model on its GPUs, without a server
  verify-splice  compare a resumed answer with the one that never died

`inference-lab COMMAND --help` lists a command's options.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with 1 and one line when it cannot."""
    words = list(sys.argv[1:] if argv is None else argv)
    match words:
        case ["serve", *rest]:
            serve(rest)
        case ["explain", *rest]:
            from inference_lab import explain_command

            raise SystemExit(explain_command.main(rest))
        case ["verify-splice", *rest]:
            from inference_lab import verify_splice

            raise SystemExit(verify_splice.main(rest))
        case ["modes", *rest]:
            from inference_lab.modes_command import main as modes

            modes(rest)
        case [] | ["--help" | "-h" | "help", *_]:
            print(USAGE, end="")
        case ["--version", *_]:
            print(f"inference-lab {__version__}")
        case [unknown, *_]:
            raise SystemExit(
                f"inference-lab: unknown command {unknown!r}; "
                "allowed: serve, modes, explain, verify-splice"
            )


def serve(argv: Sequence[str]) -> None:
    """Run the server until SIGINT or SIGTERM; the log goes to stderr."""
    from twisted.logger import globalLogBeginner, textFileLogObserver

    from inference_lab.options import Options

    options = Options()
    options.parseOptions(argv)
    # A shell's `&` leaves SIGINT ignored, and Twisted would leave it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from twisted.internet import reactor

    from inference_lab.service import makeService

    service = makeService(options)
    # Only now: a boot that fails says one line and no more.
    globalLogBeginner.beginLoggingTo(
        [textFileLogObserver(sys.stderr)], redirectStandardIO=False, discardBuffer=True
    )
    service.privilegedStartService()  # type: ignore[no-untyped-call]
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()
