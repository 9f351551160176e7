"""A tokenizer's file and a workload, on a real server: legs line up all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from inference_lab.content.splice import verify
from tests.live import CHAT, COMPLETIONS, MODEL, Server, ask, serve
from tests.middleware import Relay
from tests.test_resume_live import Upstream, every_way, request

WORKLOAD = """\
arrival_pattern = "poisson"
seed = 42

[input_len_dist]
type = "fixed"
value = 100

[output_len_dist]
type = "uniform"
min = 20
max = 60
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Prompts counted by a vocabulary of 300, lengths from a workload."""
    folder = tmp_path_factory.mktemp("flags")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["Say something long, and then some more."] * 4, trainer)
    trained.save(str(folder / "tokenizer.json"))
    (folder / "workload.toml").write_text(WORKLOAD)
    flags = ["--tokenizer", "tokenizer.json", "--workload", "workload.toml"]
    common = ["--hardware", "b200", "--enable-directives", "--speed", "0"]
    with serve(*common, *flags, cwd=folder) as running:
        yield running


def post(server: Server, path: str, **body: Any) -> Any:
    """A JSON answer."""
    return ask(server, path, {"model": MODEL, **body}).json


@every_way
@pytest.mark.parametrize("most", [15, 100])
def test_legs_line_up(server: Server, path: str, form: str, most: int) -> None:
    """The drawn length is the whole answer's, whatever leg it ends on."""
    body = request(path, max_tokens=most)
    whole = ask(server, path, body).body
    relay = Relay(
        Upstream(server, ["reset;after_chunks=4", "cut_mid_frame;after_chunks=6"]), path, body, form
    ).run()
    found = verify(whole, legs=relay.legs, usage=relay.usage)
    assert found.identical, str(found)
    assert relay.finish_reason == ("stop" if most == 100 else "length")
    assert 20 <= relay.usage <= 60 or most == 15


def test_ids_of_answers_start_above_the_vocabulary(server: Server) -> None:
    """Prompts are counted by the file; answers have ids of their own."""
    words = "Say something long."
    found = post(server, COMPLETIONS, prompt=words, max_tokens=3, seed=1, return_token_ids=True)
    (choice,) = found["choices"]
    assert max(choice["prompt_token_ids"]) < 288
    assert choice["token_ids"] == [288 + 32 * i + 1 for i in range(3)]
    assert found["usage"]["prompt_tokens"] == len(choice["prompt_token_ids"]) < len(words)
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    assert post(server, "/detokenize", tokens=ids)["prompt"] == words + choice["text"]
    again = post(server, "/tokenize", prompt=words + choice["text"])
    assert again["tokens"] == ids


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_cached_tokens(server: Server, path: str) -> None:
    """A prompt sent again comes from the cache in whole blocks; the sum stays as it is."""
    words = f"{path} " + "tell me more " * 200
    prompt: dict[str, Any] = {"prompt": words}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": words}]}
    body = {"model": MODEL, "max_tokens": 5, **prompt}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    first = ask(server, path, body).json["usage"]
    again = ask(server, path, body).json["usage"]
    streamed = ask(server, path, body | streaming).events[-2]["usage"]
    assert "prompt_tokens_details" not in first
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < first["prompt_tokens"]
    assert cached % 64 == 0
    assert streamed == again == first | {"prompt_tokens_details": {"cached_tokens": cached}}
