"""Make the two screenshots of the web page in the README.

    python benchmarks/pages.py                        # the pretrained models
    python benchmarks/pages.py --run runs/signs       # characters are classified by a run of omniglot-fewshot

Writes docs/figures/page-functions.png and docs/figures/page-characters.png. Random numbers are seeded, so the images
are the same on every machine with the same fonts.
"""

import argparse
from pathlib import Path
from typing import Any

from serve import chromium, server

SIZE = {"width": 1180, "height": 900}
SEEDED = "let state = 7; Math.random = () => (state = (state * 16807) % 2147483647) / 2147483647;"
SETTLED = 400  # milliseconds for the last answer to be painted


def functions(page: Any) -> None:
    """Some points, and where each model would look next."""
    for side in "ab":
        page.wait_for_selector(f".{side} path.mean[d]", state="attached")
    page.locator("#samples").fill("12")
    page.click("#suggest")
    page.wait_for_selector(".b .layer-next line", state="attached")


def characters(page: Any) -> None:
    """Five signs, and one of them by another hand."""
    page.wait_for_function("() => document.querySelector('.verdict').textContent.includes('nats')")


def main() -> None:
    """Take both pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="append", default=[], help="a run folder to serve; may be given several times")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    with server(options.run) as address, chromium() as browser:
        for draw in (functions, characters):
            page = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
            page.add_init_script(SEEDED)
            page.goto(f"{address}/#{draw.__name__}")
            draw(page)
            page.evaluate("document.querySelectorAll('.told').forEach(each => each.textContent = '')")
            page.wait_for_timeout(SETTLED)
            path = options.out / f"page-{draw.__name__}.png"
            page.screenshot(path=path, full_page=True)
            print(f"drew {path}")


if __name__ == "__main__":
    main()
