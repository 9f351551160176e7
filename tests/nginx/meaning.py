"""What the difference between two fates means for who writes a gateway, in words."""

from __future__ import annotations

from collections.abc import Iterator

from tests.nginx.fates import Fate, Received


def bytes_through(straight: Fate, behind: Fate) -> str:
    """How many bytes of the body were sent, and which of them arrived."""
    sent, got = straight.received, behind.received
    if by_nginx(got):
        lost = f"none of {len(sent.payload)}; " if sent.payload else ""
        return f"{lost}a page of nginx's"
    if straight.end == "alive":
        shorter, longer = sorted((sent.payload, got.payload), key=len)
        return "all, endlessly" if longer.startswith(shorter) else "others, endlessly"
    if sent.payload != got.payload:
        return f"{len(got.payload)} in place of {len(sent.payload)}"
    if not sent.payload:
        return "none were sent"
    torn = f", {sent.torn} of them after the last whole frame" if sent.torn else ""
    return f"all {len(sent.payload)}{torn}"


def meaning(straight: Fate, behind: Fate, same: bool) -> str:
    """One or more sentences, each true of these two; ``same`` says that they look alike."""
    sent, got = straight.received, behind.received
    if by_nginx(got):
        said = [f"A whole answer, nginx's own {got.status}. How the server failed does not show."]
    elif same:
        said = ["As without nginx."]
    elif got.complete:
        said = list(complete(straight, behind))
    else:
        said = list(cut(straight, behind))
    if straight.end == behind.end == "alive":
        said.append("Each byte starts nginx's timeout anew, so it never ends this.")
    if sent.beyond and not got.beyond and sent.payload == got.payload:
        said.append(f"The {sent.beyond} bytes beyond the length are gone.")
    if sent.trailers and not got.trailers:
        said.append("The trailer fields are gone.")
    for name in ("retry-after", "content-encoding"):
        if value := sent.header(name):
            passed = "passes" if got.header(name) == value else "is lost"
            said.append(f"``{name}: {value}`` {passed}.")
    return " ".join(said)


def told_by(behind: Fate) -> str:
    """What says behind nginx that this was not, or may not have been, a whole answer."""
    if behind.received.status is None:
        return "the missing head"
    if behind.end in ("silence", "alive"):
        return "a timeout of one's own"
    if not behind.received.complete:
        return "the missing end"
    return "the status" if behind.received.status >= 400 else "the body alone"


def by_nginx(received: Received) -> bool:
    """Whether this is a page that nginx wrote."""
    return b"<center>nginx</center>" in received.payload


def complete(straight: Fate, behind: Fate) -> Iterator[str]:
    """Whole behind nginx, but not as it was sent."""
    sent, got = straight.received, behind.received
    if got.interim and got.header("server") != "nginx":
        yield "nginx takes the interim head for the last, and passes on the next one as its body."
    if (sent.framing, got.framing) == ("until FIN", "chunked"):
        yield "The FIN has become a terminator."
    if sent.payload != got.payload:
        yield "nginx and the client differ about where the body ends."
    if (straight.end, behind.end) == ("RST", "reusable"):
        yield "The RST after the end is gone."
    if (straight.end, behind.end) == ("FIN", "reusable"):
        yield "nginx keeps its client's connection."
    if (straight.end, behind.end) == ("reusable", "FIN"):
        yield "nginx takes no other request on the connection."


def cut(straight: Fate, behind: Fate) -> Iterator[str]:
    """Not whole behind nginx, and seen otherwise than it was sent."""
    sent, got = straight.received, behind.received
    if got.framing == "no head":
        yield "nginx passes on what is no HTTP."
    if (sent.framing, got.framing) == ("until FIN", "chunked"):
        yield "The body is chunked now, and its end is missing."
    match straight.end, behind.end:
        case "RST", "FIN":
            yield "The RST has become a FIN."
        case "silence", "FIN":
            yield "nginx cuts what is silent for ``proxy_read_timeout``: a FIN, no silence."
        case "FIN", "silence":
            yield "The FIN is lost: the connection stays open."
        case "FIN", "FIN" if straight.curl != behind.curl:
            yield "What is no chunk is gone: an ordinary cut."
