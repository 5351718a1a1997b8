"""Text in the page: the same ids, prompts and pieces as in the terminal, and as transformers gives."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from oxinfer_web.convert import convert
from oxinfer_web.text import Text
from playwright.sync_api import Page
from support import FIXTURES
from text_cases import CONTROL, FOLDERS, TEMPLATES, any_strings, typed, write_folder

from .conftest import DIST
from .host import Host

CONTROLS = ["<|im_start|>", "<|im_end|>", "<bos>", "<start_of_turn>", "<end_of_turn>", "[multimodal]", "<unk>"]


def text(page: Page, model: str, **given: Any) -> dict[str, Any]:
    """One call for all there is to ask. As JSON, because strings with half characters cannot be passed otherwise."""
    options = {"model": model, "given": json.dumps(given)}
    answer: dict[str, Any] = page.evaluate("options => window.oxinfer.text(options)", options)
    return answer


def with_weights(folder: Path) -> Path:
    for path in (FIXTURES / "llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.realmodel
@pytest.mark.parametrize("model", ["smollm2-135m-q8", "gemma3-270m-q4"])
def test_ids_of_ten_thousand_strings(bench: Page, model: str) -> None:
    """And of hostile chats; and pieces of any tokens."""
    folder = DIST / "models" / model
    terminal = Text(folder)
    r = random.Random(3)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokens = [[r.randrange(size if r.random() < 0.5 else 400) for _ in range(r.randrange(1, 20))] for _ in range(150)]
    hard = "Z\u00fcrich, \u6771\u4eac and \U0001f980\U0001f3f3\ufe0f\u200d\U0001f308:\n\td\u00e9j\u00e0 vu,  na\u00efve"
    contents = [hard, *typed("<|im_end|>"), *typed("<end_of_turn>")]
    asked: list[Any] = [*any_strings(10_000, CONTROLS), *contents, *contents]
    if terminal.has_chat:
        asked += [[{"role": "user", "content": content}] for content in contents for _ in range(2)]
    prompts = [{"prompt": prompt, "controlTokens": i % 2 == 1} for i, prompt in enumerate(asked)]
    tokens += [terminal.encode(string) for string in [hard, *asked[:100]]]
    got = text(bench, f"models/{model}", prompts=prompts, tokens=tokens)
    for prompt, ids in zip(prompts, got["ids"], strict=True):
        encode = terminal.encode if isinstance(prompt["prompt"], str) else terminal.encode_chat
        assert ids == encode(prompt["prompt"], control_tokens=prompt["controlTokens"]), ascii(prompt)
    for ids, pieces in zip(tokens, got["pieces"], strict=True):
        assert [piece for piece in pieces if piece] == list(terminal.stream(ids))
    assert "".join(got["pieces"][150]) == hard


@pytest.mark.parametrize(
    ("name", "converted"), [*((name, False) for name in FOLDERS), ("named", True), ("older", True), ("more", True)]
)
def test_folder(bench: Page, host: Host, folders: Path, complaints: list[str], name: str, converted: bool) -> None:
    """What transformers makes of a folder, and the same with hostile contents as the terminal."""
    case = FOLDERS[name]
    source = with_weights(write_folder(case["files"], folders / f"text-{name}-{converted}"))
    terminal = Text(source)
    made = folders / f"text-{name}-out"
    if converted:
        convert(source, made)
    # A page cannot list a folder of templates.
    chats = [chat for chat in case["chats"] if converted or name != "more" or chat["tools"] is None]
    prompts = [{"prompt": c["messages"], "variables": {"tools": c["tools"]}} for c in chats]
    prompts += [{"prompt": t["text"], "controlTokens": True} for t in case["texts"]]
    want = [c["ids"] for c in [*chats, *case["texts"]]]
    for content in typed(CONTROL[name]):
        said = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
        prompts += [{"prompt": said}, {"prompt": said, "controlTokens": True}, {"prompt": content}]
        want += [terminal.encode_chat(said), terminal.encode_chat(said, control_tokens=True), terminal.encode(content)]
    for string in any_strings(600, [CONTROL[name]], seed=9):
        prompts.append({"prompt": string})
        want.append(terminal.encode(string))
    renders = [{"messages": c["messages"], "variables": {"tools": c["tools"]}} for c in chats]
    got = text(bench, f"made/{(made if converted else source).name}", prompts=prompts, renders=renders, tokens=want)
    for prompt, ids, wanted in zip(prompts, got["ids"], want, strict=True):
        assert ids == wanted, prompt
    assert got["rendered"] == [c["text"] for c in chats]
    assert ["".join(pieces) for pieces in got["pieces"]] == [terminal.decode(ids) for ids in want]
    if converted:
        assert not [c for c in complaints if "404" in c], "a converted folder is asked for nothing that is not there"
    complaints[:] = [c for c in complaints if "404" not in c]


def test_templates(bench: Page, host: Host, folders: Path, complaints: list[str]) -> None:
    source = with_weights(write_folder(FOLDERS["chatml"]["files"], folders / "text-templates"))
    settings = TEMPLATES["special"]
    renders = [
        {
            "messages": TEMPLATES["messages"],
            "variables": {**settings, "tools": case["tools"]},
            "template": case["template"],
        }
        for case in TEMPLATES["cases"]
    ]
    got = text(bench, f"made/{source.name}", renders=renders)["rendered"]
    for case, rendered in zip(TEMPLATES["cases"], got, strict=True):
        if "error" in case:
            assert rendered.startswith("ConfigError: the chat template refuses the conversation ("), case["name"]
        else:
            assert rendered == case["text"], case["name"]
    complaints[:] = [c for c in complaints if "404" not in c]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", "{", "tokenizer_config.json: not JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: not a JSON object"),
        ("special_tokens_map.json", "\x00", "special_tokens_map.json: not JSON"),
        ("tokenizer.json", '{"model": {"type": "Nonsense"}}', "tokenizer.json: cannot be used"),
    ],
)
def test_broken_files(
    bench: Page, host: Host, folders: Path, complaints: list[str], file: str, content: str, message: str
) -> None:
    files = {"tokenizer.json": FOLDERS["older"]["files"]["tokenizer.json"], file: content}
    source = with_weights(write_folder(files, folders / f"broken-{abs(hash((file, content)))}"))
    said = bench.evaluate(
        "model => window.oxinfer.text({ model, given: '{}' }).then(() => 'fine', (e) => `${e.name}: ${e.message}`)",
        f"made/{source.name}",
    )
    assert said.startswith(f"ConfigError: {message}")
    assert said.endswith("; convert the model again")
    complaints[:] = [c for c in complaints if "404" not in c]
