"""A real browser without a window: Debian's chromium through selenium. For tests, pictures, measurements."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--lang=en",
)


def why_no_browser() -> str:
    """Nothing when there is one."""
    if not any(map(shutil.which, NAMES)) or not shutil.which("chromedriver"):
        return "no browser: chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "no browser driver: selenium is not installed (pip install penstock[dev])"
    return ""


class Page:
    """What the tests see of the browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript expression; `arguments` are its arguments."""
        return self.driver.execute_script(f"return ({script})", *arguments)

    def text(self, selector: str) -> str:
        """Of the first element that fits, nothing if there is none."""
        found = self.run("document.querySelector(arguments[0])?.textContent ?? ''", selector)
        return str(found)

    def texts(self, selector: str) -> list[str]:
        return list(self.run("[...document.querySelectorAll(arguments[0])].map(one => one.textContent)", selector))

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def wait(self, holds: Callable[[], Any], seconds: float = 20.0, what: str = "") -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(what or "the page did not come to show it")
            time.sleep(0.1)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """light or dark"""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def complaints(self) -> list[str]:
        """What the console has of errors and warnings since the last time."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last time."""
        messages = [msgspec.json.decode(one["message"])["message"] for one in self.driver.get_log("performance")]
        sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def picture(self, path: Path, selector: str | None = None) -> None:
        if selector is None:
            self.driver.save_screenshot(str(path))
        else:
            self.driver.find_element("css selector", selector).screenshot(str(path))


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Page]:
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, NAMES) if path)
    for flag in (*_FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        page = Page(driver)
        page.resize(width, height)
        yield page
    finally:
        driver.quit()
