"""Modes from TOML: what is refused and how, what is listed, shown and rendered."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import get_args

import pytest
import tomli

from inference_lab.faults.compounds import Words
from inference_lab.faults.grammar import CHAT, FaultError, parse_header, parse_table
from inference_lab.faults.modes import ModeError, built_in, load_modes, read_mode
from inference_lab.faults.parameters import CORE, SHAPING
from inference_lab.render import render
from tests.live import PATIENCE, REPOSITORY, program

TOP = 'wire = "w"\ncurl = "c"\n'


def refused(text: str, *named: str) -> None:
    """The mode is refused in one line that names all of these."""
    with pytest.raises(ModeError) as caught:
        read_mode(text, "mine", "mine.toml")
    message = str(caught.value)
    assert message.splitlines() == [message]
    for name in ("mine.toml", *named):
        assert name in message, message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("wire = ", ["TOML"]),
        (TOP, ["script"]),
        ('wire = "w"\nscript = []', ["curl"]),
        (TOP + 'script = []\nsene = "x"', ["sene", "seen"]),
        (TOP + 'script = ["contnt"]', ["script[0].do", "contnt", "content"]),
        (TOP + "script = [1]", ["script[0]"]),
        (TOP + "script = [{ count = 3 }]", ["script[0]", "do", "content"]),
        (TOP + 'script = [{ do = "content", cuont = 3 }]', ["script[0]", "cuont", "count"]),
        (TOP + 'script = ["role", { do = "pause", ms = 1.5 }]', ["script[1].ms", "int"]),
        (TOP + 'script = [{ do = "content", count = "$nope" }]', ["$nope", "after_chunks"]),
        (TOP + 'script = [{ do = "comment", text = "${nope}" }]', ["$nope", "after_chunks"]),
        (TOP + 'script = [{ do = "end", how = "bang" }]', ["bang", "clean, fin, rst, hold"]),
        (TOP + 'script = [{ do = "error", dialect = "x" }]', ["'x'", "openai", "vllm"]),
        (TOP + 'script = [{ do = "raw", hex = "zz" }]', ["hex", "zz"]),
        (TOP + 'script = [{ do = "raw", base64 = "*" }]', ["base64"]),
        (TOP + 'script = [{ do = "torn", at = "x", of = ["content"] }]', ["at", "chunk_header"]),
        (TOP + 'script = [{ do = "head", framing = "x" }]', ["script[0].framing", "x"]),
        (TOP + 'script = []\nendpoints = ["x"]', ["endpoints", "chat, completions"]),
        (TOP + 'script = []\n[parameters.a]\ntype = "int"\ndefault = 1', ["a.type", "u32"]),
        (TOP + 'script = []\n[parameters.a]\ntype = "u32"\ndefault = -1', ["a.default", "u32"]),
        (TOP + 'script = []\n[parameters.a]\ntype = "enum"\ndefault = "x"', ["a.allowed"]),
        (TOP + 'script = []\n[parameters.A]\ntype = "u32"\ndefault = 1', ["parameters.A"]),
        (TOP + 'script = []\n[parameters.end]\ntype = "u32"\ndefault = 1', ["end.type", "enum"]),
        (
            TOP + 'script = [{ do = "choose", by = "$a", cases = { x = [] } }]\n'
            '[parameters.a]\ntype = "enum"\nallowed = ["x", "y"]\ndefault = "x"',
            ["choose", "'y'", "x"],
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, named: list[str]) -> None:
    refused(text, *named)


def test_folders(tmp_path: Path) -> None:
    """No folder, a name that is taken, and one that is not."""
    with pytest.raises(ModeError, match="no such folder"):
        load_modes([tmp_path / "nowhere"])
    (tmp_path / "mine.toml").write_text(TOP + 'script = ["content"]')
    (tmp_path / "notes.txt").write_text("not a mode")
    assert set(load_modes([tmp_path])) - set(built_in()) == {"mine"}
    (tmp_path / "reset.toml").write_text(TOP + "script = []")
    with pytest.raises(ModeError, match=r"reset\.toml: name: .*'reset'"):
        load_modes([tmp_path])


def test_every_built_in_can_be_copied() -> None:
    """What `modes show` prints is a mode again, the same one."""
    for name, mode in built_in().items():
        if name != "none":
            assert read_mode(mode.source, name, name) == mode
            assert tomli.loads(mode.source)["wire"] == mode.wire
            assert mode.seen
            assert mode.curl


def test_the_manual() -> None:
    """Its example is a mode, and no word or parameter is left out."""
    manual = (REPOSITORY / "docs" / "modes.rst").read_text()
    example = manual[manual.index("    # incidents/") : manual.index("A test then sends")]
    mode = read_mode(textwrap.dedent(example), "proxy_timeout", "manual")
    modes = {**built_in(), "proxy_timeout": mode}
    rendered = render("proxy_timeout;code=524;after_chunks=2", CHAT, modes)
    assert rendered.wire.startswith(b"HTTP/1.1 103 ")
    assert rendered.wire.endswith(b"<html><h1>524 Gateway Timeout</h1></html>\r\n")
    assert rendered.end == "rst"
    for word in get_args(Words):
        assert f"``{word.__struct_config__.tag}``" in manual
    for parameter in (*CORE, *SHAPING):
        if parameter.name != "utf8":
            assert f"``{parameter.name}``" in manual


PARAMETERS = (
    TOP
    + """
script = [{ do = "comment", text = "${word} ${share} ${on} ${many} ${kind}" }]
[parameters.word]
type = "str"
default = "x"
[parameters.share]
type = "float"
default = 0.5
[parameters.on]
type = "bool"
default = false
[parameters.many]
type = "u64"
default = 1
[parameters.kind]
type = "enum"
allowed = ["a", "b c"]
default = "a"
"""
)


def test_parameters_of_every_type() -> None:
    """In the header and in a table; what differs from the defaults survives a round trip."""
    modes = {"mine": read_mode(PARAMETERS, "mine", "mine.toml")}
    text = 'mine;word="a;b, \\"c\\" \\\\";share=1e-3;on=true;many=18446744073709551615;kind="b c"'
    fault = parse_header(text, modes)
    values = fault.values(modes["mine"].parameters)
    assert values["word"] == 'a;b, "c" \\'
    assert values["share"] == 0.001
    assert (values["on"], values["many"], values["kind"]) == (True, 2**64 - 1, "b c")
    assert parse_header(fault.canonical(), modes) == fault
    table = {key: values[key] for key in ("word", "share", "on", "many", "kind")}
    assert parse_table({"mode": "mine", **table}, modes).fault == fault
    assert parse_header("mine;word=x;share=0.5;on=false", modes).settings == ()
    for wrong in (
        "word=",
        'word="a',
        'word="a"b',
        "share=-1",
        "share=nan",
        'share="1"',
        "on=1",
        "many=18446744073709551616",
        "kind=c",
        "word",
    ):
        with pytest.raises(FaultError, match=wrong.partition("=")[0]):
            parse_header(f"mine;{wrong}", modes)


def test_a_default_of_its_own_for_a_common_parameter() -> None:
    text = TOP + 'script = [{ do = "content", count = "$after_chunks" }]\n'
    modes = {"mine": read_mode(text + "[parameters.after_chunks]\ndefault = 7", "mine", "m")}
    assert parse_header("mine", modes).after_chunks == 7


def modes_command(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [program("inference-lab"), "modes", *words], capture_output=True, timeout=PATIENCE
    )


def test_the_command(tmp_path: Path) -> None:
    """Lists, shows and renders, a user's modes too; complains in one line."""
    (tmp_path / "mine.toml").write_text(TOP + 'script = [{ do = "raw", text = "hello" }]')
    mine = ("--modes", str(tmp_path))
    listed = modes_command(*mine).stdout.decode()
    for name in (*built_in(), "mine"):
        assert name in listed
    shown = modes_command("show", "error_frame")
    assert shown.stdout.decode() == built_in()["error_frame"].source
    rendered = modes_command(*mine, "render", "mine", "--endpoint", "completions")
    assert rendered.stdout.endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert rendered.stderr == b"end: clean\n"
    for words in (("show", "x"), ("render", "reset", "--param", "x=1"), ("--modes", "/nowhere")):
        failed = modes_command(*words)
        assert failed.returncode == 1
        assert len(failed.stderr.decode().splitlines()) == 1


def test_a_bad_folder_ends_the_boot(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TOP + 'script = ["nonesuch"]')
    done = subprocess.run(
        [program("inference-lab"), "serve", "--port", "0", "--modes", str(tmp_path)],
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert b"mine.toml: script[0].do" in done.stderr


def test_a_stream_without_an_end_is_rendered_in_part() -> None:
    rendered = render("stall_keepalive;every_ms=100", CHAT, built_in())
    assert rendered.end == "hold"
    assert rendered.wire.count(b": keep-alive") == 100


def test_repeating_nothing_ends() -> None:
    mode = read_mode(
        TOP + 'script = [{ do = "repeat", of = [{ do = "done", when = false }] }, "done"]',
        "mine",
        "mine.toml",
    )
    wire = render("mine", CHAT, {**built_in(), "mine": mode}).wire
    assert wire.count(b"[DONE]") == 1
