"""Creates the pictures of the README, `docs/images/*.png`, from real runs with Chromium.

    python scripts/make_images.py viewer             # runs an episode and opens the page of `swegym view`
    swe-train report runs/demo0 runs/demo1 runs/demo2 --output report.html
    python scripts/make_images.py report report.html --at ppo   # from the heading `ppo` on

Needs Chromium, which scripts/install_test_tools.sh installs. Pictures have 128 colours to be small.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import gymnasium

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTANCE = "mini__lrucache-001"


def record_episode(folder: Path) -> Path:
    """Run one episode like a careful engineer, and write its page."""
    from swegym_env.cli.main import main as swegym
    from swegym_env.wrappers import RecordTrajectory

    env = gymnasium.make("swegym_env:SWEBench-v0", tools="default", action_format="raw")
    env = RecordTrajectory(env, folder, notes={"agent": "by hand"})
    env.reset(options={"instance_id": INSTANCE})
    gold = env.get_wrapper_attr("task").patch
    path = gold.split("\n")[0].rpartition(" b/")[2]
    for action in (
        "git log --oneline -1 && ls",
        f"view {path} 1 40",
        "run_tests",
        f"git apply - <<'END_OF_PATCH'\n{gold}END_OF_PATCH",
        "run_tests",
        "submit",
    ):
        env.step(action)
    env.close()
    swegym(["view", str(folder)])
    return folder / "view.html"


def photograph(page: Path, picture: Path, *, height: int, click: str = "", at: str = "") -> None:
    """Open a page, click on a text or scroll to one, and save a screenshot."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit("make_images: no Chromium on PATH. Try: scripts/install_test_tools.sh")
    picture.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page(viewport={"width": 1400, "height": height}, color_scheme="light")
        opened.goto(page.absolute().as_uri())
        if click:
            opened.get_by_text(click, exact=True).first.click()
        if at:
            opened.get_by_role("heading", name=at, exact=True).evaluate("at => at.scrollIntoView()")
        opened.wait_for_timeout(500)
        opened.screenshot(path=str(picture))
        browser.close()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(128).save(picture, optimize=True)
    print(f"{picture}: {picture.stat().st_size // 1024} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description="The pictures of the README, of real runs.")
    parser.add_argument("which", choices=["viewer", "report"])
    parser.add_argument("page", nargs="?", type=Path, help="a report of swe-train, for report")
    parser.add_argument("--at", default="", help="a heading to begin at")
    parser.add_argument("--height", type=int, default=860)
    options = parser.parse_args()
    if options.which == "viewer" and (options.page or options.at):
        parser.error("viewer: it takes no page and no --at: it makes its page itself")
    if options.which == "report":
        if options.page is None:
            parser.error("report: expected the file of a report, as swe-train report writes it")
        photograph(options.page, ROOT / "docs/images/report.png", height=options.height, at=options.at)
        return
    with tempfile.TemporaryDirectory() as folder:
        page = record_episode(Path(folder) / "episodes")
        photograph(page, ROOT / "docs/images/viewer.png", height=options.height, click="Final")


if __name__ == "__main__":
    main()
