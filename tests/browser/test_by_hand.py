"""The page as a person uses it: everything in mid-flight, many times over, without a reload."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from .host import Host
from .models import endless

LONG = 30_000
"""Tokens of an answer that is not over before the test is."""


def test_by_hand(page: Page, host: Host, complaints: list[str], folders: Path) -> None:
    """Load, stop, load another in mid-answer, cancel, lose the network: twenty times over on one page."""
    endless(folders / "hand-long")
    endless(folders / "hand-rows", "gemma4_e2b")
    page.goto(host.url)
    page.get_by_role("combobox", name="Model").select_option("custom")
    load, cancel = page.get_by_role("button", name="Load"), page.get_by_role("button", name="Cancel")
    generate, stop = page.get_by_role("button", name="Generate"), page.get_by_role("button", name="Stop")
    alert, output = page.get_by_role("alert"), page.locator("#output")
    page.get_by_label("Tokens").evaluate(f"(input) => {{ input.max = input.value = {LONG} }}")
    page.get_by_label("Temperature").fill("1")

    def start(model: str) -> None:
        page.get_by_role("textbox", name="Address").fill(f"made/{model}/")
        load.click()

    def ask() -> None:
        page.get_by_label("Prompt").fill(chr(0x4E01) * 3)
        generate.click()
        expect(output).to_have_text(re.compile("^.{3}.{4}", re.DOTALL))
        expect(stop).to_be_enabled()

    def load_and_cancel(model: str) -> None:
        start(model)
        cancel.click()
        expect(load).to_be_visible()
        expect(generate).to_be_disabled()
        start(model)

    def ask_and_stop(model: str) -> None:
        ask()
        stop.click()
        expect(page.locator("#speed")).to_have_text(re.compile("stopped"))

    def load_in_mid_answer(model: str) -> None:
        ask()
        start(model)

    def lose_the_network(model: str) -> None:
        page.context.set_offline(True)
        start(model)
        expect(alert.or_(cancel)).to_be_visible()
        if cancel.is_visible():
            cancel.click()
        expect(load).to_be_visible()
        page.context.set_offline(False)
        start(model)

    steps = (load_and_cancel, ask_and_stop, load_in_mid_answer, lose_the_network)
    for turn in range(20):
        steps[turn % 4](("hand-long", "hand-rows")[turn % 3 % 2])
        expect(generate).to_be_enabled()
        expect(alert).to_be_hidden()
    ask_and_stop("")
    expect(generate).to_be_enabled()
    # Chromium itself reports what it could not fetch.
    complaints[:] = [c for c in complaints if not re.search("Failed to (load|fetch)", c)]
