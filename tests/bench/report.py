"""Rows of the benchmark: what was measured, what it is compared with, what must hold; as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One comparison. `ours` and `other` have one value a round; the ratio is that of their medians.

    Without `other`, our median itself is held against the target. `most` turns the target into an upper bound.
    """

    section: str
    measure: str
    unit: str
    ours: tuple[float, ...]
    than: str = ""
    other: tuple[float, ...] = field(default=())
    target: float | None = None
    most: bool = False

    @property
    def value(self) -> float:
        """What is held against the target."""
        ours = statistics.median(self.ours)
        return ours / statistics.median(self.other) if self.other else ours

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.most else self.value >= self.target

    def cells(self) -> list[str]:
        """The row as a table shows it."""
        ratio, other = ("", "")
        if self.other:
            ratio, other = f"{self.value:.2f} x", f"{short(statistics.median(self.other))} ({self.than})"
        target = "" if self.target is None else f"{'at most' if self.most else 'at least'} {self.target:g}"
        target += " x" if self.other and target else ""
        holds = {None: "", True: "yes", False: "no"}[self.holds]
        return [self.measure, f"{short(statistics.median(self.ours))} {self.unit}", other, ratio, target, holds]


HEADINGS = ("measure", "here", "compared with", "ratio", "must be", "holds")


def short(x: float) -> str:
    """A figure with about three digits."""
    return f"{x:.0f}" if abs(x) >= 100 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def machine(chromium: str, threads: int, command: str) -> dict[str, Any]:
    """What the figures depend on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        cpu = fields.get("model name", cpu)
        if "model" in fields:
            cpu += f" (family {fields.get('cpu family', '?')}, model {fields['model']})"
    system = platform.system()
    if system == "Linux":
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": system,
        "chromium": chromium,
        "threads": threads,
        "command": command,
    }


def print_rows(rows: Iterable[Row]) -> None:
    """The rows as a table on the terminal."""
    table = Table(*HEADINGS)
    for row in rows:
        style = {None: "", True: "green", False: "red"}[row.holds]
        cells = row.cells()
        table.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/]" if style else "")
    Console(width=None if os.isatty(1) else 140).print(table)


def write_json(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """One JSON object a line: the machine, then the rows with their ratio and whether the target holds."""
    objects = [about, *({**asdict(row), "value": row.value, "holds": row.holds} for row in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in objects))


def read_json(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What write_json wrote."""
    about, *entries = (json.loads(line) for line in path.read_text().splitlines())
    return about, [_row(entry) for entry in entries]


def _row(entry: dict[str, Any]) -> Row:
    known = {k: v for k, v in entry.items() if k not in ("value", "holds")}
    return Row(**{**known, "ours": tuple(entry["ours"]), "other": tuple(entry["other"])})
