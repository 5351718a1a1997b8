"""The commands as a user runs them, and how their errors look."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import oxinfer_web as ox
import pytest
from click.testing import Result
from gguf_writer import byte_level, write_gguf
from oxinfer_web.cli import main
from oxinfer_web.cli.app import app
from oxinfer_web.cli.console import parse_size, show_size
from oxinfer_web.cli.inspect import examine
from oxinfer_web.errors import CheckpointError, OxinferError
from oxinfer_web.text import Text
from support import FIXTURES
from typer.testing import CliRunner


def run(*args: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("cli")
    result = run("convert", write_gguf(folder / "tiny.gguf", "llama", byte_level), folder / "out", "--quant", "q8")
    assert result.exit_code == 0, result.output
    return folder / "out"


def test_convert(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(
        *("convert", FIXTURES / "gemma4_e2b", out, "--quant", "q4", "--table-quant", "q8", "--head-quant", "bf16"),
        *("--shard-size", "64KiB"),
    )
    assert result.exit_code == 0, result.output
    assert "shards" in result.stdout
    assert "note: no tokenizer.json" in result.stderr
    report = examine(out)
    quants = {(group.kind, group.quant) for group in report.groups}
    assert {("linear layers", "q4"), ("further embeddings", "q8"), ("LM head", "bf16")} <= quants
    assert max(report.shards.values()) <= 65536


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("convert", "nothing", "out"), "error: nothing: not found; give a Hugging Face folder or a .gguf file"),
        (("convert", FIXTURES / "llama", "out", "--shard-size", "big"), "error: size 'big' is not understood"),
        (("inspect", "nothing"), "error: config.json: not in nothing; is this a model's folder?"),
        (("generate", FIXTURES / "llama", "hi"), "error: tokenizer.json: not in"),
        (("perplexity", FIXTURES / "llama"), "error: give the text to measure"),
        (("perplexity", FIXTURES / "llama", "--ids", "nothing"), "error: nothing: cannot be read"),
        (("serve", "nothing"), "error: nothing: not a folder"),
    ],
)
def test_errors_are_one_line(
    args: tuple[Any, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_wrong_usage() -> None:
    assert run("convert", "a", "b", "--quant", "q3").exit_code == 2
    assert run("nonsense").exit_code == 2


def test_inspect(model: Path) -> None:
    result = run("inspect", model, "--json")
    report = json.loads(result.stdout)
    assert report["family"] == "llama"
    assert report["config"]["num_hidden_layers"] == 4
    assert report["total_bytes"] == sum(group["bytes"] for group in report["groups"])
    engine = ox.load(model)
    assert report["streamed_bytes"] == engine.streamed_bytes
    [table] = report["host_tables"]
    assert (table["rows"], table["row_bytes"]) == (512, 192 + 4 * 6)
    assert report["shards"] == {path.name: path.stat().st_size for path in model.glob("*.safetensors")}
    shown = run("inspect", model)
    assert shown.exit_code == 0
    for text in ("llama", "streamed from memory", "linear layers", "q8", "model-00001-of-00001.safetensors"):
        assert text in shown.stdout


def test_inspect_an_unconverted_model() -> None:
    report = examine(FIXTURES / "gemma4_e2b")
    assert {group.quant for group in report.groups} == {"bf16"}
    assert len(report.host_tables) == 2


@pytest.mark.parametrize("kernel", ["numpy", "simd"])
def test_generate(model: Path, kernel: str) -> None:
    text = Text(model)
    session = ox.Session(ox.load_reference(model) if kernel == "numpy" else ox.load(model, kernel="simd"))
    want = text.decode(list(ox.generate_sync(session, text.encode("the1"), max_tokens=12)))
    args = ("generate", model, "the1", "--max-tokens", "12", "--kernel", kernel, "--stats")
    result = run(*args)  # its chat template gives the message as it is
    assert result.exit_code == 0, result.output
    assert result.stdout == want
    assert "generated 12 tokens" in result.stderr
    assert run(*args, "--raw").stdout == result.stdout
    answer = json.loads(run(*args, "--json").stdout)
    assert (answer["text"], answer["reason"], answer["completion_tokens"]) == (want, "length", 12)
    assert text.decode(answer["tokens"]) == want
    assert answer["prompt_tokens"] == len(text.encode("the1"))
    sampled = [run(*args, "--temperature", "1.5", "--seed", seed).stdout for seed in ("1", "1", "2")]
    assert sampled[0] == sampled[1] != sampled[2]


def test_perplexity(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the the 1 2 3 the")
    ids = Text(model).encode("the the 1 2 3 the")
    (tmp_path / "ids.json").write_text(json.dumps({"input_ids": ids}))
    (tmp_path / "one.json").write_text("[1]")
    session = ox.Session(ox.load(model))
    want = session.nll(ids)
    for args in (("--text", tmp_path / "text.txt"), ("--ids", tmp_path / "ids.json")):
        result = json.loads(run("perplexity", model, *args, "--json").stdout)
        assert result["nll"] == pytest.approx(sum(want) / len(want))
        assert result["tokens"] == len(ids) - 1
    assert "perplexity" in run("perplexity", model, "--ids", tmp_path / "ids.json", "--kernel", "numpy").stdout
    assert "at least 2 are needed" in run("perplexity", model, "--ids", tmp_path / "one.json").stderr


def test_text(model: Path, tmp_path: Path) -> None:
    text = Text(model)
    ids = text.encode("the \u00e9 the")
    assert "".join(text.stream(ids)) == text.decode(ids)
    assert text.encode_chat([{"role": "user", "content": "the"}]) == text.encode("the")

    def with_template(template: str | None) -> Text:
        (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": "<s>"}))
        return Text(tmp_path)

    with pytest.raises(OxinferError, match="no chat template; use --raw"):
        with_template(None).encode_chat([])
    refusing = with_template("{{ raise_exception('no system role') }}")
    with pytest.raises(OxinferError, match=r"refuses the conversation \(no system role\)"):
        refusing.encode_chat([{"role": "user", "content": "the"}])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        Text(tmp_path)


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", "llama")
    original = builtins.__import__

    def without_gguf(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gguf":
            raise ModuleNotFoundError("No module named 'gguf'", name="gguf")
        return original(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "oxinfer_web.convert.gguf_file")
    monkeypatch.setattr(builtins, "__import__", without_gguf)
    result = run("convert", path, tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.strip() == "error: package gguf is missing; pip install 'oxinfer-web[convert]'"


def test_missing_command_line_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "oxinfer_web.cli.app")
    monkeypatch.setitem(sys.modules, "typer", None)  # what makes an import of it fail
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == "error: package typer is missing; pip install 'oxinfer-web[native]'"


def test_as_a_module_and_serve(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    command = [sys.executable, "-m", "oxinfer_web", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        with urllib.request.urlopen(url) as response:
            assert response.read() == b"hello"
        server.terminate()


@pytest.mark.parametrize(
    ("text", "size"), [("32MiB", 32 << 20), ("20KB", 20_000), ("4096", 4096), ("1.5 gib", 3 << 29), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "MiB", "3 apples", "1e6"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(OxinferError, match="is not understood"):
        parse_size(text)


def test_show_size() -> None:
    shown = [show_size(n) for n in (5, 2048, 3 << 20, 5 << 30)]
    assert shown == ["5 B", "2.0 KiB", "3.0 MiB", "5.00 GiB"]
