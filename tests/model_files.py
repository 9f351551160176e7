"""Model files for tests: valid ones to spoil, and a folder to write them into."""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.loader import ConfigError, Loaded, load

Table = dict[str, Any]

SCHEDULER: Table = {
    "policy": "fcfs",
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "block_size": 16,
    "enable_chunked_prefill": True,
}

MODEL: Table = {
    "name": "Tiny",
    "hidden_dim": 1024,
    "max_seq_len": 4096,
    "weights": [{"precision": "bf16", "active_params": 10**9, "resident_params": 10**9}],
    "layers": [
        {"kind": "attention", "count": 8, "heads": 8, "head_dim": 64, "kv_heads": 2},
        {"kind": "mla", "count": 8, "latent_dim": 512, "rope_dim": 64, "window": 128},
        {"kind": "linear", "count": 4, "state_bytes": 4096},
    ],
}

GPU: Table = {
    "name": "Small",
    "flops_bf16": 1e14,
    "memory_bandwidth": 1e12,
    "memory_capacity": 10**10,
}

FABRIC: Table = {"gpus_per_node": 2, "scale_up": {"bandwidth": 1e11}}


def by_name(**extra: Any) -> Table:
    """A file that names a catalog model and two catalog GPUs."""
    return copy.deepcopy(
        {
            "model": "llama-3.1-8b-instruct",
            "scheduler": SCHEDULER,
            "hardware": {"b200": {}, "h100": {}},
            **extra,
        }
    )


def inline(model: Table | None = None, spec: Table | None = None, **entry: Any) -> Table:
    """A file that spells everything out, with keys of the model, the GPU and the entry."""
    return copy.deepcopy(
        {
            "model": {**MODEL, **(model or {})},
            "scheduler": SCHEDULER,
            "hardware": {"own": {"spec": {**GPU, **(spec or {})}, **entry}},
        }
    )


class ModelFiles(SynchronousTestCase):
    """Tests that write model files."""

    def setUp(self) -> None:
        """Make an empty folder."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        """Where a file of that name lies."""
        return os.path.join(self.folder, name)

    def write(self, content: Mapping[str, Any] | str | bytes, name: str = "x.toml") -> str:
        """Write a file, return its path."""
        data = toml(content) if isinstance(content, Mapping) else content
        with open(self.path(name), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        return self.path(name)

    def only(self, table: Mapping[str, Any], hardware: str | None = None) -> Deployment:
        """The one deployment of a file, which must raise no warning."""
        loaded = self.load(table, hardware)
        self.assertEqual(loaded.warnings, ())
        (deployment,) = loaded.deployments
        return deployment

    def load(self, table: Mapping[str, Any], hardware: str | None = None) -> Loaded:
        """What a file comes to."""
        return load([self.write(table)], hardware)

    def refusal(self, content: Mapping[str, Any] | str | bytes, hardware: str | None = None) -> str:
        """Why a file is refused, one line, without the folder's name."""
        path = self.write(content)
        error = self.assertRaises(ConfigError, load, [path], hardware)
        return self.line(error)

    def line(self, error: ConfigError) -> str:
        """The error's text, checked to be one line, without the folder's name."""
        text = str(error)
        self.assertEqual(text.splitlines(), [text])
        return text.replace(self.folder + os.sep, "")


def toml(table: Mapping[str, Any]) -> str:
    """``table`` as TOML, every value on one line."""
    return "".join(f"{_string(key)} = {_value(value)}\n" for key, value in table.items())


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case Mapping():
            pairs = (f"{_string(key)} = {_value(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
    return str(value)


def _string(text: str) -> str:
    return re.sub(r"\x7f", r"\\u007f", json.dumps(text, ensure_ascii=False))
