"""Measure the demo models in headless Chromium; prints one JSON object a line. `./build.sh bench` runs it.

bench.py [--models ID ...] [--threads N ...] [--kernel relaxed|simd] [--prompt N] [--generate N]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from oxinfer_web.cli.serve import start
from playwright.sync_api import sync_playwright

DIST = Path(__file__).resolve().parent.parent / "dist"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
TIMEOUT_MS = 30 * 60 * 1000


def main() -> None:
    """Run every model with every number of threads."""
    models = [entry["id"] for entry in json.loads((DIST / "models" / "index.json").read_text())]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=models)
    parser.add_argument("--threads", nargs="+", type=int, default=[os.cpu_count() or 1])
    parser.add_argument("--kernel", choices=["relaxed", "simd"])
    parser.add_argument("--prompt", type=int, default=150, help="tokens of the prompt")
    parser.add_argument("--generate", type=int, default=48, help="tokens to generate")
    args = parser.parse_args()
    url, stop = start(DIST)
    try:
        with sync_playwright() as playwright:
            chromium = os.environ.get("OXINFER_CHROMIUM") or None
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            for model in args.models:
                for threads in args.threads:
                    options = {
                        "model": f"models/{model}",
                        "threads": threads,
                        "promptTokens": args.prompt,
                        "generate": args.generate,
                    }
                    if args.kernel:
                        options["kernel"] = args.kernel
                    page = browser.new_page()
                    page.set_default_timeout(TIMEOUT_MS)
                    page.on("pageerror", lambda e: print(e, file=sys.stderr))
                    page.goto(url + "bench.html")
                    page.wait_for_function("window.ready")
                    print(json.dumps(page.evaluate("o => window.oxinfer.bench(o)", options)), flush=True)
                    page.close()
            browser.close()
    finally:
        stop()


if __name__ == "__main__":
    main()
