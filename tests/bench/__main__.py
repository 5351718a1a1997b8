"""Measure the engine beside its peers in one headless Chromium; `./build.sh bench` runs it.

Needs the built site with the demo models. Native llama.cpp takes part where this Python has llama_cpp, or the one that
$OXINFER_LLAMA_CPP_PYTHON names.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from . import docs, report, sections
from .browser import DIST, ROOT, browser
from .kernels import GEMM_TOKENS

ON_REQUEST = "shapes"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./build.sh bench", description=__doc__)
    known = list(sections.SECTIONS)
    parser.add_argument("--only", metavar="SECTION,...", help=f"of {', '.join(known)}")
    parser.add_argument("--shapes", action="store_true", help="also models of E2B's and E4B's shape (7 GB of disk)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write a JSON object a line; with --only, keep others"
    )
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md and README.md's table")
    parser.add_argument("--dist", type=Path, default=DIST, help="the built site")
    args = parser.parse_args()
    args.sections = args.only.split(",") if args.only else [name for name in known if name != ON_REQUEST]
    if args.shapes and ON_REQUEST not in args.sections:
        args.sections.append(ON_REQUEST)
    for name in args.sections:
        if name not in known:
            parser.error(f"--only: no section {name!r}; there are {', '.join(known)}")
    return args


def main() -> None:
    """Run the sections, one after the other; print, write, and say whether all targets hold by the exit status."""
    args = arguments()
    settings = sections.Settings(args.threads, args.rounds)
    with browser(sections.links(), args.dist) as chromium:
        about = report.machine(chromium.version, args.threads, command(args))
        about |= {
            "rounds": args.rounds,
            "prompt": sections.PROMPT_TOKENS,
            "generate": sections.GENERATE,
            "gemm_tokens": GEMM_TOKENS,
            "idle_s": sections.IDLE_S,
            "shape_context": sections.SHAPE_CONTEXT,
            "shape_prompt": sections.SHAPE_PROMPT,
        }
        kept: list[report.Row] = []
        if args.only and args.json and args.json.exists():
            before, kept = report.read_json(args.json)
            about = joined(before, about)
        rows: list[report.Row] = []
        for name in args.sections:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            for row in sections.SECTIONS[name](chromium, settings):
                print(f"  {' | '.join(row.cells())}", file=sys.stderr, flush=True)
                rows.append(row)
    report.print_rows(rows)
    rows = merged(kept, rows)
    if args.json:
        report.write_json(args.json, about, rows)
    if args.write_docs:
        docs.write_docs(ROOT / "docs" / "benchmarks.md", about, rows)
        docs.write_readme(ROOT / "README.md", rows)
    sys.exit(any(row.holds is False for row in rows))


def command(args: argparse.Namespace) -> str:
    """The command that gives the same rows, without where they are written."""
    words = ["./build.sh", "bench"]
    if args.only:
        words += ["--only", args.only]
    if args.shapes:
        words.append("--shapes")
    return shlex.join([*words, *(["--rounds", str(args.rounds)] if args.rounds != 3 else [])])


def joined(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What two runs on one machine have in common, and both commands. Raises SystemExit if they differ."""
    for key, value in now.items():
        if key != "command" and before.get(key) != value:
            raise SystemExit(f"--json: the file has {key} {before.get(key)!r}, this run {value!r}; name another file")
    return {**now, "command": f"{before['command']}; {now['command']}"}


def merged(old: list[report.Row], new: list[report.Row]) -> list[report.Row]:
    """The old rows with the sections that were measured again in their place."""
    again = {row.section for row in new}
    by_section = {name: [r for r in (new if name in again else old) if r.section == name] for name in sections.SECTIONS}
    return [row for of_it in by_section.values() for row in of_it]


if __name__ == "__main__":
    main()
