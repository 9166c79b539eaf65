"""Chromium, driven by Playwright: Debian's own package, for the tests and for screenshots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Locator, Page, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 30_000  # for anything to appear, on a machine that does other things too


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    path = shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(
    browser: Browser,
    url: str,
    *,
    language: str = "en",
    look: str = "light",
    wide: int = 1280,
    high: int = 900,
    scripts: bool = True,
    zone: str = "UTC",
) -> Iterator[Page]:
    """A page with cookies of its own, in a language and a look; perhaps of a browser that
    runs no scripts.
    """
    scheme = "dark" if look == "dark" else "light"
    context = browser.new_context(
        base_url=url,
        locale=language,
        timezone_id=zone,
        color_scheme=scheme,
        java_script_enabled=scripts,
        viewport={"width": wide, "height": high},  # a phone is 390 wide
    )
    context.set_default_timeout(WAIT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def log_in(page: Page, name: str, password: str) -> None:
    """Logs in; the overview is shown then."""
    page.goto("/login")
    page.fill("#id_username", name)
    page.fill("#id_password", password)
    page.click("form.card button")
    page.wait_for_selector("main#content")


def fill(page: Page, path: str, **fields: str) -> None:
    """Opens a form, fills it in and asks for the preview."""
    page.goto(path)
    for name, value in fields.items():
        field = page.locator(f'main [name="{name}"]')
        if field.evaluate("one => one.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.click("main form.card button.main-act")


def figure(page: Page, label: str) -> str:
    """Return the value of the tile with this label, as the page shows it."""
    tile = page.locator(".tile", has=page.locator(f".label:text-is('{label}')"))
    return tile.locator(".value").inner_text()


def changes_to(page: Page, setting: str, value: str) -> Locator:
    """Return the rows of the audit log in which a setting got this value (JSON)."""
    change = page.locator(
        f"span:has(> .soft:text-is('{setting}')) > ins:text-is('{value}')"
    )
    return page.locator("main tbody tr", has=change)


def confirm(page: Page) -> None:
    """Confirms what the preview shows; the page that follows says what was done."""
    page.click("[data-confirm]")
    page.wait_for_selector(".note.success")
