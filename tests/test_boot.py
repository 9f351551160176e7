"""Booting under each runner: what goes wrong is one line, what goes right is one line, too."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live import (
    CHAT,
    FAULT,
    PATIENCE,
    READY,
    REPOSITORY,
    RawClient,
    Server,
    ask,
    chat_body,
    program,
    request_bytes,
    serve,
)

RUNNERS = {
    "serve": ["inference-lab", "serve"],
    "twistd -n": ["twistd", "-n", "--pidfile=", "inference-lab"],
    "twistd": ["twistd", "--pidfile=daemon.pid", "--logfile=daemon.log", "inference-lab"],
    "twist": ["twist", "--log-format=text", "inference-lab"],
}
every_runner = pytest.mark.parametrize("runner", RUNNERS)
foreground = pytest.mark.parametrize("runner", ["serve", "twistd -n", "twist"])


def command(runner: str) -> list[str]:
    """A runner's words, its program found."""
    name, *words = RUNNERS[runner]
    return [program(name), *words]


MODEL_FILE = """\
model = "deepseek-v4-flash"

[scheduler]
policy = "fcfs"
max_num_batched_tokens = 4096
max_num_seqs = 256
block_size = 64
enable_chunked_prefill = true

[hardware.b200]
tp = 4
"""


# -- what goes wrong -------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Operator files with one mistake each."""
    folder = tmp_path_factory.mktemp("operator")
    for name, text in {
        "good.toml": MODEL_FILE,
        "torn.toml": "model = [",
        "unknown.toml": MODEL_FILE.replace("policy", "polciy"),
        "typed.toml": MODEL_FILE.replace("256", '"many"'),
        "mode.toml": MODEL_FILE + '\n[fault]\nmode = "explode"\n',
        "key.toml": MODEL_FILE + '\n[fault]\nmode = "reset"\nafter = 3\n',
        "type.toml": MODEL_FILE + '\n[fault]\nmode = "reset"\nafter_chunks = "3"\n',
        "range.toml": MODEL_FILE + '\n[fault]\nmode = "reset"\ndelay_ms = -1\n',
        "where.toml": MODEL_FILE + '\n[fault]\nmode = "reset"\nendpoints = ["images"]\n',
        "same.toml": MODEL_FILE,
    }.items():
        (folder / name).write_text(text)
    (folder / "latin.toml").write_bytes(b'model = "\xff"')
    (folder / "empty").mkdir()
    return folder


# The flags, and what the one line must name. `{files}` is the folder above.
MISTAKES = {
    "port no number": (["--port", "http"], ["port", "0 to 65535"]),
    "port out of range": (["--port", "65536"], ["port", "0 to 65535"]),
    "timeout negative": (["--drain-timeout", "-1"], ["drain-timeout", "seconds"]),
    "unknown flag": (["--colour"], ["colour"]),
    "stray word": (["now"], ["now"]),
    "flag without value": (["--hardware"], ["hardware"]),
    "missing file": (["--config", "{files}/none.toml"], ["none.toml"]),
    "empty folder": (["--config", "{files}/empty"], ["empty"]),
    "torn TOML": (["--config", "{files}/torn.toml"], ["torn.toml"]),
    "not UTF-8": (["--config", "{files}/latin.toml"], ["latin.toml", "UTF-8"]),
    "unknown key": (
        ["--config", "{files}/unknown.toml"],
        ["unknown.toml", "[scheduler]", "polciy", "policy"],
    ),
    "wrong type": (
        ["--config", "{files}/typed.toml"],
        ["typed.toml", "[scheduler]", "max_num_seqs", "many"],
    ),
    "no such hardware": (
        ["--config", "{files}/good.toml", "--hardware", "tpu"],
        ["tpu", "b200"],
    ),
    "one id twice": (
        ["--config", "{files}/good.toml", "--config", "{files}/same.toml"],
        ["good.toml", "same.toml", "served_name"],
    ),
    "fault mode": (["--config", "{files}/mode.toml"], ["mode.toml", "[fault]", "mode", "stall"]),
    "fault key": (
        ["--config", "{files}/key.toml"],
        ["key.toml", "[fault]", "after", "after_chunks"],
    ),
    "fault type": (
        ["--config", "{files}/type.toml"],
        ["type.toml", "[fault]", "after_chunks", "4294967295"],
    ),
    "fault range": (
        ["--config", "{files}/range.toml"],
        ["range.toml", "[fault]", "delay_ms", "18446744073709551615"],
    ),
    "fault endpoint": (
        ["--config", "{files}/where.toml"],
        ["where.toml", "[fault]", "endpoints", "images", "chat", "completions"],
    ),
    "bad endpoint": (["--listen", "carrier-pigeon:1"], ["--listen", "carrier-pigeon"]),
    "no such folder for a socket": (["--listen", "unix:/no/such/folder/sock"], ["--listen"]),
    "no such host": (["--host", "203.0.113.77"], ["203.0.113.77"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, files: Path, tmp_path: Path) -> None:
    """One line that names the mistake, exit code 1, and nothing left running; by every runner."""
    flags, named = MISTAKES[mistake]
    words = [flag.format(files=files) for flag in flags]

    def boot(runner: str) -> None:
        folder = tmp_path / runner
        folder.mkdir()
        check_one_line(runner, words, named, folder)

    with ThreadPoolExecutor(len(RUNNERS)) as threads:
        list(threads.map(boot, RUNNERS))


@every_runner
def test_a_taken_port(runner: str, server: Server, tmp_path: Path) -> None:
    """Known before the boot is done, by the daemon's parent, too."""
    port = str(server.address[1])
    check_one_line(runner, ["--port", port], ["127.0.0.1", port, "in use"], tmp_path)


def check_one_line(runner: str, flags: list[str], named: list[str], cwd: Path) -> None:
    done = subprocess.run(
        [*command(runner), *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    for name in named:
        assert name in done.stderr
    assert not (cwd / "daemon.pid").exists()


def test_unknown_commands(tmp_path: Path) -> None:
    done = subprocess.run(
        [program("inference-lab"), "server"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "serve" in done.stderr


# -- what goes right -------------------------------------------------------


@foreground
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_life(runner: str, how: signal.Signals, tmp_path: Path) -> None:
    """Ready, serving from any directory, and gone within 2 seconds, open streams and all."""
    flags = ["--hardware", "b200", "--enable-directives", "--port", "0"]
    with serve(*flags, command=command(runner), cwd=tmp_path) as server:
        matched = READY.fullmatch(server.ready)
        assert matched is not None
        assert "DeepSeek-V4-Flash" in matched["models"].split(",")
        assert (matched["hardware"], matched["directives"]) == ("b200", "on")
        assert ask(server, "/health").status == 200
        with RawClient(server.address) as stalled, RawClient(server.address) as streaming:
            stalled.send(request_bytes(CHAT, chat_body(), {FAULT: "stall"}))
            streaming.send(request_bytes(CHAT, chat_body(max_tokens=100_000)))
            assert stalled.receive()
            assert streaming.receive()
            started = time.monotonic()
            server.process.send_signal(how)
            server.process.wait(PATIENCE)
            assert time.monotonic() - started < 2
        assert "Traceback" not in server.log()
        assert "Unhandled" not in server.log()


def test_a_daemon(tmp_path: Path) -> None:
    """Daemonised by twistd, whose parent has printed the ready line's port by then or not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [*command("twistd"), "--port", str(port), "--config", str(REPOSITORY / "configs")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pid = int(wait_for_file(tmp_path / "daemon.pid"))
    try:
        with RawClient(("127.0.0.1", port)) as client:
            assert client.ask("/health").status == 200
    finally:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 2
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")
    assert "Traceback" not in (tmp_path / "daemon.log").read_text()


def test_a_daemon_on_a_unix_socket(tmp_path: Path) -> None:
    """The socket and its lock go with the daemon that inherited them."""
    path = tmp_path / "lab.sock"
    done = subprocess.run(
        [*command("twistd"), "--listen", f"unix:{path}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0
    pid = int(wait_for_file(tmp_path / "daemon.pid"))
    with RawClient(str(path)) as client:
        assert client.ask("/health").status == 200
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 2
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not path.exists()
    assert "Traceback" not in (tmp_path / "daemon.log").read_text()


def wait_for_file(path: Path) -> str:
    """What a file says as soon as it says something."""
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


@pytest.fixture
def own_configs(tmp_path: Path) -> Iterator[Path]:
    """A folder of an operator's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "a.toml").write_text(MODEL_FILE)
    (folder / "b.toml").write_text(
        MODEL_FILE.replace("deepseek-v4-flash", "gpt-oss-20b").replace("b200", "gh200")
    )
    yield folder


def test_a_file_without_the_hardware_is_skipped_and_says_so(own_configs: Path) -> None:
    with serve("--config", str(own_configs), "--hardware", "b200") as server:
        assert "models=DeepSeek-V4-Flash hardware=b200 directives=off" in server.ready
        assert "b.toml" in server.log()


def test_without_hardware_each_file_runs_on_its_first(own_configs: Path) -> None:
    with serve("--config", str(own_configs)) as server:
        assert "models=DeepSeek-V4-Flash,gpt-oss-20b hardware=b200,gh200" in server.ready


def test_a_relative_config_survives_the_daemons_change_of_directory(own_configs: Path) -> None:
    with serve("--config", "own/a.toml", cwd=own_configs.parent) as server:
        assert "DeepSeek-V4-Flash" in server.ready


def test_directives_beyond_loopback_are_warned_about() -> None:
    with serve("--hardware", "b200", "--enable-directives", "--host", "0.0.0.0") as server:
        assert "not loopback" in server.log()
    with serve("--hardware", "b200", "--enable-directives") as server:
        assert "not loopback" not in server.log()


def test_version_and_help() -> None:
    for words in (["--version"], ["serve", "--version"]):
        said = subprocess.run(
            [program("inference-lab"), *words], capture_output=True, text=True, check=True
        )
        assert re.fullmatch(r"inference-lab \d+\.\d+\.\d+\n", said.stdout)
    said = subprocess.run(
        [program("inference-lab"), "serve", "--help"], capture_output=True, text=True, check=True
    )
    assert "--enable-directives" in said.stdout


# -- a model's own fault ---------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "chat_dies", "completions_die"),
    [("", True, False), ('endpoints = ["chat", "completions"]', True, True)],
)
def test_a_models_own_fault(
    tmp_path: Path, endpoints: str, chat_dies: bool, completions_die: bool
) -> None:
    """`[fault]` needs no flag; the header wins; what is not streamed is served normally."""
    config = tmp_path / "a.toml"
    fault = f'\n[fault]\nmode = "cut_mid_frame"\nafter_chunks = 2\nutf8 = true\n{endpoints}\n'
    config.write_text(MODEL_FILE + fault)
    from tests.live import COMPLETIONS, completions_body

    with serve("--config", str(config)) as server:
        died = ask(server, CHAT, chat_body())
        assert (not died.terminated) is chat_dies
        assert died.body.endswith(b" cedar2.\xc3")
        assert ask(server, COMPLETIONS, completions_body()).terminated is not completions_die
        assert ask(server, CHAT, chat_body(stream=False)).status == 200
        assert ask(server, CHAT, chat_body(), {FAULT: "reset"}).status == 400
    with serve("--config", str(config), "--enable-directives") as server:
        assert ask(server, CHAT, chat_body(), {FAULT: "no_usage"}).terminated
