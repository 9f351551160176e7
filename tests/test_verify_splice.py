"""The command ``verify-splice``: files, verdicts, exit codes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from attrs import frozen
from twisted.trial.unittest import SynchronousTestCase

from inference_lab.cli import main
from inference_lab.content.text import answer, token
from tests.live import program


@frozen
class Ran:
    """What a run printed, and its exit code."""

    code: int
    out: str
    err: str


def frames(start: int, stop: int, done: bool = False) -> bytes:
    """A chat recording of tokens ``start`` to ``stop - 1``."""
    payloads = [
        json.dumps({"choices": [{"index": 0, "delta": {"content": token(i)}}]})
        for i in range(start, stop)
    ]
    if done:
        usage = {"prompt_tokens": 4 + start, "completion_tokens": stop - start}
        finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        payloads += [json.dumps(finish), json.dumps({"choices": [], "usage": usage}), "[DONE]"]
    return "".join(f"data: {payload}\n\n" for payload in payloads).encode()


class CommandCase(SynchronousTestCase):
    """Files in a folder of the test's own."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name: str, data: bytes | str) -> str:
        path = self.folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    def run_command(self, *words: str) -> Ran:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err), self.assertRaises(SystemExit) as caught:
            main(["verify-splice", *words])
        code: Any = caught.exception.code
        # What a SystemExit says goes to stderr, and makes the code 1.
        return Ran(code, out.getvalue(), "") if isinstance(code, int) else Ran(1, "", str(code))

    def refused(self, *words: str) -> str:
        ran = self.run_command(*words)
        self.assertEqual((ran.code, ran.out), (1, ""))
        self.assertNotIn("\n", ran.err)
        self.assertTrue(ran.err.startswith("inference-lab verify-splice: "), ran.err)
        return ran.err


class VerdictTests(CommandCase):
    def test_identical_legs(self) -> None:
        golden = self.file("golden", frames(0, 9, done=True))
        legs = [frames(0, 3) + b'data: {"cho', b"", frames(3, 4), frames(4, 9, done=True)]
        paths = [self.file(f"leg{n}", leg) for n, leg in enumerate(legs)]
        flags = [word for path in paths for word in ("--leg", path)]
        ran = self.run_command("--golden", golden, *flags, "--usage", "9")
        self.assertEqual(ran, Ran(0, "identical\n", ""))

    def test_texts_and_the_editor_s_last_line_end(self) -> None:
        recorded = self.file("golden", frames(0, 5, done=True))
        written = self.file("written", answer(0, 5) + "\n")
        text = self.file("text", answer(0, 5))
        for golden in (recorded, written):
            ran = self.run_command("--golden", golden, "--text", text)
            self.assertEqual(ran, Ran(0, "identical\n", ""))

    def test_what_went_wrong(self) -> None:
        golden = self.file("golden", answer(0, 9))
        for text, says in (
            (answer(0, 4) + answer(6, 9), "missing: 2 tokens (4 to 5)"),
            (answer(0, 4) + answer(3, 9), "repeated: 1 token (3)"),
            (answer(0, 4) + answer(0, 9), "restarted: "),
            (answer(0, 4) + answer(5, 6) + answer(4, 5) + answer(6, 9), "reordered: 1 token (4)"),
            (answer(0, 4) + "Sorry, " + answer(4, 9), "foreign text: 'Sorry, '"),
        ):
            ran = self.run_command("--golden", golden, "--text", self.file("text", text))
            self.assertEqual(ran.code, 1)
            self.assertTrue(ran.out.startswith(says), ran.out)

    def test_wrong_usage(self) -> None:
        golden = self.file("golden", frames(0, 9, done=True))
        leg = self.file("leg", frames(0, 9, done=True))
        ran = self.run_command("--golden", golden, "--leg", leg, "--usage", "12")
        self.assertEqual(ran.code, 1)
        self.assertIn("3 too many", ran.out)

    def test_json(self) -> None:
        golden = self.file("golden", answer(0, 9))
        text = self.file("text", answer(0, 4) + answer(6, 9))
        ran = self.run_command("--golden", golden, "--text", text, "--usage", "7", "--json")
        self.assertEqual(ran.code, 1)
        verdict = json.loads(ran.out)
        self.assertIs(verdict["identical"], False)
        kinds = [finding["kind"] for finding in verdict["findings"]]
        self.assertEqual(kinds, ["missing", "usage"])
        self.assertEqual(verdict["findings"][0]["spans"], [[4, 5]])
        self.assertEqual(verdict["findings"][1]["difference"], -2)
        ran = self.run_command("--golden", golden, "--text", golden, "--json")
        self.assertEqual(
            (ran.code, json.loads(ran.out)), (0, {"identical": True, "findings": [], "notes": []})
        )

    def test_the_command_itself(self) -> None:
        golden = self.file("golden", answer(0, 9))
        text = self.file("text", answer(0, 8))
        for other, code in ((golden, 0), (text, 1), (str(self.folder / "nothing"), 1)):
            done = subprocess.run(
                [program("inference-lab"), "verify-splice", "--golden", golden, "--text", other],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
            self.assertEqual(done.returncode, code)
            self.assertNotIn("Traceback", done.stderr)


class RefusedTests(CommandCase):
    def test_flags(self) -> None:
        golden = self.file("golden", answer(0, 9))
        self.assertIn("--golden is required", self.refused("--text", golden))
        for other in ([], ["--text", golden, "--leg", golden]):
            self.assertIn("either", self.refused("--golden", golden, *other))
        for count in ("-1", "x", "1.5", "٣"):
            said = self.refused("--golden", golden, "--text", golden, "--usage", count)
            self.assertIn("--usage", said)
        self.assertIn("stray", self.refused("--golden", golden, "--text", golden, "stray"))
        self.refused("--golden", golden, "--text", golden, "--unknown")

    def test_files(self) -> None:
        golden = self.file("golden", answer(0, 9))
        missing = str(self.folder / "missing")
        self.assertIn(missing, self.refused("--golden", missing, "--text", golden))
        self.assertIn("missing", self.refused("--golden", golden, "--leg", missing))
        said = self.refused("--golden", golden, "--leg", golden)
        self.assertIn("not a recorded response", said)

    def test_a_golden_recording_without_an_answer_proves_nothing(self) -> None:
        error = '{"error":{"message":"no such model","type":"x","param":null,"code":null}}'
        golden = self.file("golden", error)
        said = self.refused("--golden", golden, "--leg", golden)
        self.assertIn("no such model", said)
