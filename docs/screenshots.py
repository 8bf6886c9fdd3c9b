"""The pictures of the dashboard in docs/, of the real thing: `penstock up` on this machine, under traffic.

.venv/bin/python docs/screenshots.py [serve CONFIG [--plan PLAN]]

Takes some minutes, more when the demo's models have to be made first. Needs chromium and chromedriver (`make browser`).
With arguments, of the server that `penstock` starts with them; it must lend devices to a job.
"""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness.browser import Page, browser, why_no_browser

HERE = Path(__file__).parent
PENSTOCK = [sys.executable, "-m", "serving.cli"]
START_S = 1200.0
COLOURS = 64


def main() -> None:
    if why_no_browser():
        sys.exit(why_no_browser())
    with tempfile.TemporaryFile() as log:
        what = sys.argv[1:] or ["up"]
        command = [*PENSTOCK, *what, "--listen", "127.0.0.1:8123", "--logs", "json"]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            url = wait_for_url(server, log)
            link = subprocess.run([*PENSTOCK, "dashboard", "--url", url], check=True, capture_output=True, text=True)
            with browser(1280, 900) as page:
                take_pictures(page, url, link.stdout.strip())
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def wait_for_url(server: subprocess.Popen[bytes], log: io.IOBase) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        log.seek(0)
        found = re.search(rb"Penstock serves .* at (http://\S+)", log.read())
        if found:
            return found.group(1).decode()
        time.sleep(0.5)
    sys.exit("the server did not start")


def take_pictures(page: Page, url: str, link: str) -> None:
    page.open(link)
    page.wait(lambda: page.texts("#models-table tbody tr"), 30)
    load(url, "--rate", "6", "--cv", "3", "--duration", "40s")
    page.wait(lambda: ", of g" in page.text("#device-names"), 90, "no device was lent")
    load(url, "--rate", "400", "--cv", "3", "--duration", "6s")
    load(url, "--rate", "3", "--cv", "1", "--duration", "30s")
    page.wait(lambda: ", of g" in page.text("#device-names"), 90, "no device was lent again")
    load(url, "--rate", "200", "--cv", "4", "--duration", "8s")
    time.sleep(2)
    picture(page, "dashboard.png")
    page.run("document.getElementById('models').scrollIntoView()")
    time.sleep(1)
    picture(page, "dashboard_models.png")
    page.run("window.scrollTo(0, 0)")
    page.run(
        "[...document.querySelectorAll('#happened button')].find(b => b.textContent == 'Decided to take back').click()"
    )
    time.sleep(0.5)
    picture(page, "dashboard_why.png", "#dialog")
    page.click("#dialog-close")
    page.click("#ask-planner")
    page.wait(lambda: "The planner says" in page.text("#planner-result"), 120)
    page.resize(1280, 3000)  # all of it is seen at once
    time.sleep(2)
    picture(page, "dashboard_planner.png", "#planner")
    page.resize(390, 844, 1.25)
    page.prefer("dark")
    page.run("window.scrollTo(0, 0)")
    time.sleep(2)
    picture(page, "dashboard_phone.png")


def load(url: str, *options: str) -> None:
    subprocess.run([*PENSTOCK, "load", "--url", url, *options], check=False, capture_output=True)


def picture(page: Page, name: str, selector: str | None = None) -> None:
    """In few colours: half a page of text needs no more, and the repository keeps every picture for ever."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        page.picture(path, selector)
        with Image.open(path) as whole:
            whole.convert("RGB").quantize(COLOURS).save(HERE / name, optimize=True)


if __name__ == "__main__":
    main()
