"""Writes docs/behind_nginx.rst: what a client sees of each death behind a real nginx.

Run ``python -m tests.nginx.table`` with nginx (Debian's) and curl on the path. Nothing in
the table is from memory: all of it follows from what two clients saw, straight and through
nginx. ``behind_nginx.py`` compares the page with another run.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from attrs import frozen

from tests.live import REPOSITORY, curl, serve
from tests.nginx import proxy
from tests.nginx.cases import DIRECTIVES, MODES, OWN
from tests.nginx.fates import WAIT, Fate, by_curl, by_hand
from tests.nginx.meaning import bytes_through, meaning, told_by

PAGE = REPOSITORY / "docs" / "behind_nginx.rst"

TEXT = """\
Behind nginx
============

A gateway often has a proxy between itself and the engine, and a proxy changes how a
stream dies. This page says what a client sees of each directive when nginx stands in
front of inference-lab as a plain streaming proxy. All of it is measured, with
{versions} (Debian's; patch versions do not matter).
``python -m tests.nginx.table`` writes this page, and CI compares it with another run.

The configuration
-----------------

nginx has all of this and nothing else; ``LAB`` and ``NGINX`` are two addresses::

{configuration}

How to read the table
---------------------

*Straight* and *behind nginx* are what a client sees without and with nginx: status, how
the body is framed, and whether it is *complete* by that framing or *cut*; then what the
connection did; then curl's exit code.

============ =====================================================================
word         meaning
============ =====================================================================
``reusable`` the connection took another request
``FIN``      it was closed in order
``RST``      it was reset
``silence``  nothing more came, and the client gave up after {wait:g} seconds
``alive``    bytes kept coming, and the client gave up after as many seconds
============ =====================================================================

*Bytes* are those of the body, framing aside: how many the server sent, and which of them
arrived. *Told by* is how a gateway behind nginx can know: ``the missing end`` is an error
of the transport, ``the body alone`` means that HTTP is content and only the frames can say
what is wrong with them.

Alike behind nginx
------------------

The members of a group differ without nginx. Behind it, status, framing, end and curl's
exit code are the same, and only the bytes of the body differ.

{alike}

The table
---------

.. list-table::
   :header-rows: 1

   * - directive
     - straight
     - behind nginx
     - bytes
     - told by
     - what nginx makes of it
{rows}

Modes of one's own
------------------

The last {count} directives are modes of a user's own (``--modes``), for what no built-in
mode sends:

{own}
"""


@frozen
class Pair:
    """One directive, seen without and with nginx."""

    straight: Fate
    behind: Fate


def measure() -> dict[str, Pair]:
    """All directives, side by side; some take seconds, for somebody waits."""
    flags = ("--hardware", "b200", "--enable-directives", "--modes", str(MODES))
    with (
        serve(*flags) as server,
        proxy.behind_nginx(server) as nginx,
        ThreadPoolExecutor(32) as pool,
    ):
        asked = {
            (directive, peer.url): (
                pool.submit(by_hand, peer.address, directive),
                pool.submit(by_curl, peer.url, directive),
            )
            for directive in DIRECTIVES
            for peer in (server, nginx)
        }
        fates = {key: Fate(*hand.result(), code.result()) for key, (hand, code) in asked.items()}
    return {d: Pair(fates[d, server.url], fates[d, nginx.url]) for d in DIRECTIVES}


def versions() -> str:
    """What the page was measured with; patches of either do not change it."""
    number = curl("--version").out.decode().split(" ", 2)[1].rpartition(".")[0]
    return f"nginx {proxy.version()} and curl {number}"


def seen(fate: Fate) -> str:
    """One cell: what a client saw."""
    received = fate.received
    if received.status is None:
        what = received.framing or "nothing"
    else:
        statuses = (*received.interim, received.status)
        whole = "complete" if received.complete else "cut"
        what = f"{', '.join(map(str, statuses))} {received.framing}, {whole}"
    return f"{what}; {fate.end}; curl {fate.curl}"


def row(directive: str, pair: Pair) -> str:
    """One row of the table."""
    straight, behind = pair.straight, pair.behind
    same = seen(straight) == seen(behind)
    cells = (
        f"``{directive}``",
        seen(straight),
        seen(behind),
        bytes_through(straight, behind),
        told_by(behind),
        meaning(straight, behind, same),
    )
    return "   * - " + "\n     - ".join(cells)


def alike(pairs: Mapping[str, Pair]) -> str:
    """Those that differ straight and are the same behind nginx."""
    groups = defaultdict(list)
    for directive, pair in pairs.items():
        groups[seen(pair.behind)].append(directive)
    return "\n".join(
        textwrap.fill(
            f"- {same}: " + ", ".join(f"``{directive}``" for directive in directives),
            width=88,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for same, directives in groups.items()
        if len({seen(pairs[directive].straight) for directive in directives}) > 1
    )


def indented(text: str) -> str:
    """As a literal block."""
    return "\n".join(f"    {line}" if line else "" for line in text.rstrip().splitlines())


def page(pairs: Mapping[str, Pair], measured_with: str) -> str:
    """The whole document."""
    return TEXT.format(
        versions=measured_with,
        configuration=indented(proxy.CONFIGURATION),
        wait=WAIT,
        alike=alike(pairs),
        rows="\n".join(row(directive, pair) for directive, pair in pairs.items()),
        count=len(OWN),
        own="\n\n".join(
            f"``{name}``::\n\n{indented((MODES / f'{name}.toml').read_text())}" for name in OWN
        ),
    )


if __name__ == "__main__":
    PAGE.write_text(page(measure(), versions()))
