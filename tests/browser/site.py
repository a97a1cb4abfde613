"""Opens a built site in Chromium, from file://, and checks what only a browser can tell.

    python3 tests/browser/site.py SITE [--chromium PATH] [--screenshots DIR]

SITE is a folder made by `deltamux report build` (or the example `synthetic_site`) with at least two runs. Needs Chromium
and nothing else: it is driven over its own pipe. Exit code 0 when everything holds; each failure is one line.
"""

import argparse
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse

WAIT_S = 60


class Browser:
    """The DevTools protocol over file descriptors 3 and 4: JSON messages that end with a zero byte."""

    def __init__(self, chromium, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def descriptors():
            # Copies first: one of the ends may itself be number 3 or 4.
            a, b = os.dup(to_browser), os.dup(from_browser)
            a, b = (os.dup(fd) if fd in (3, 4) else fd for fd in (a, b))
            a, b = (os.dup(fd) if fd in (3, 4) else fd for fd in (a, b))
            os.dup2(a, 3)
            os.dup2(b, 4)

        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars "
            "--remote-debugging-pipe"
        )
        self._process = subprocess.Popen(
            [chromium, *flags.split(), f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=descriptors,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._next = 0
        self._events = []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()

    def _message(self):
        end = time.monotonic() + WAIT_S
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("no message from Chromium")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise RuntimeError("Chromium ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **params):
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self._events.append(answer)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + WAIT_S
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never became true: {expression}")
            time.sleep(0.05)

    def open(self, url):
        """Loads a page; gives what it complained of and what it asked for."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
        if self.evaluate("document.querySelector('.chart') !== null"):
            self.until("document.documentElement.dataset.charts === 'drawn'")
        return self.complaints()

    def complaints(self):
        out = []
        for event in self._events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                out.append(details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                out.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                out.append(" ".join(str(arg.get("value")) for arg in params["args"]))
            elif event["method"] == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    out.append(f"asked the network for {url}")
        return out

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        metrics = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": metrics["width"], "height": metrics["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))


class Checks:
    def __init__(self):
        self.done = 0
        self.failures = []

    def that(self, condition, what):
        self.done += 1
        if not condition:
            self.failures.append(what)

    def equal(self, found, expected, what):
        self.that(found == expected, f"{what}: found {found!r}, expected {expected!r}")


COLUMN = """
((n) => Array.from(document.querySelectorAll("#table-runs tbody tr"), (row) => row.cells[n].dataset.value))
"""


def check_list(browser, checks, url):
    checks.equal(browser.open(url), [], f"{url}: no complaint")
    runs = browser.evaluate("document.querySelectorAll('#table-runs tbody tr').length")
    checks.that(runs >= 2, f"{url}: lists at least two runs")

    # The figure column sorts by number, largest first, then smallest first; absent values stay last.
    head = "document.querySelectorAll('#table-runs thead th')[2]"
    for direction, sign in (("descending", -1), ("ascending", 1)):
        browser.evaluate(f"{head}.querySelector('button').click()")
        checks.equal(browser.evaluate(f"{head}.getAttribute('aria-sort')"), direction, f"{url}: aria-sort")
        values = browser.evaluate(COLUMN + "(2)")
        present = [float(v) for v in values if v is not None]
        checks.equal(present, sorted(present, key=lambda v: sign * v), f"{url}: sorted {direction}")
        checks.that(all(v is not None for v in values[: len(present)]), f"{url}: absent values stay last")

    shown = "Array.from(document.querySelectorAll('#table-runs tbody tr')).filter((row) => !row.hidden).length"
    search = "document.querySelector('input[type=search]')"
    for text, expected in (("no such run anywhere", 0), ("", runs)):
        browser.evaluate(
            f"{search}.value = {json.dumps(text)}; {search}.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        )
        checks.equal(browser.evaluate(shown), expected, f"{url}: rows shown for the search {text!r}")
    selects = browser.evaluate("document.querySelectorAll('.filters select').length")
    if selects:
        select = "document.querySelector('.filters select')"
        browser.evaluate(
            f"{select}.selectedIndex = 1; {select}.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        )
        narrowed = browser.evaluate(shown)
        checks.that(0 < narrowed < runs, f"{url}: a filter shows some of the runs, found {narrowed} of {runs}")

    # What the system prefers, then what the reader chose.
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(paper)
    browser.evaluate("document.querySelector('.theme').click()")
    checks.that(browser.evaluate(paper) != light, f"{url}: the theme switch changes the page")
    browser.evaluate("document.querySelector('.theme').click()")
    checks.equal(browser.evaluate(paper), light, f"{url}: the theme switch changes it back")
    browser.evaluate("localStorage.clear()")


def check_run(browser, checks, url):
    checks.equal(browser.open(url), [], f"{url}: no complaint")
    checks.that(browser.evaluate("document.title !== 'broken'"), f"{url}: names are text, not markup")
    checks.equal(browser.evaluate("document.images.length"), 0, f"{url}: no image came from a name")
    charts = browser.evaluate("Array.from(document.querySelectorAll('.chart'), (chart) => chart.id)")
    for chart in charts:
        place = f"{url}#{chart}"
        element = f"document.getElementById({json.dumps(chart)})"
        drawn = f"Array.from({element}.querySelectorAll('svg path')).filter((p) => p.getTotalLength() > 0).length"
        checks.that(browser.evaluate(drawn) > 3, f"{place}: is drawn")
        spec = json.loads(browser.evaluate(f"document.getElementById({element}.dataset.spec).textContent"))
        texts = browser.evaluate(f"Array.from({element}.querySelectorAll('svg text'), (t) => t.textContent)")
        for axis in ("x", "y"):
            title = spec[axis]["label"] + (f" ({spec[axis]['unit']})" if spec[axis]["unit"] else "")
            checks.that(title in texts, f"{place}: names its axis {title!r}")

        # The keyboard reaches a point, says its value and shows it.
        browser.evaluate(f"{element}.focus()")
        browser.key("ArrowRight")
        spoken = browser.evaluate(f"{element}.parentElement.querySelector('[aria-live]').textContent")
        checks.that(any(c.isdigit() for c in spoken), f"{place}: the keyboard says a value, found {spoken!r}")
        tip = browser.evaluate(f"{element}.querySelector('.tip')?.textContent ?? ''")
        checks.that(any(c.isdigit() for c in tip), f"{place}: the hover box holds a value")
        browser.key("Escape")

        # Its table stands in the same exhibit, sorts, and is what the download holds.
        exhibit = f"{element}.closest('.exhibit')"
        rows = browser.evaluate(f"{exhibit}.querySelectorAll('.table-frame tbody tr').length")
        href = browser.evaluate(f"{exhibit}.querySelector('.download').href")
        kind, _, data = href.partition(",")
        checks.equal(kind, "data:text/csv;charset=utf-8", f"{place}: kind of download")
        lines = urllib.parse.unquote(data).strip().split("\r\n")
        checks.equal(len(lines), rows + 1, f"{place}: lines of the CSV")
        checks.that(rows > 0, f"{place}: its table has rows")

        # Hiding the first series takes something away.
        before = browser.evaluate(drawn)
        legend = f"{exhibit}.querySelector('.legend button')"
        browser.evaluate(f"{legend}.click()")
        checks.that(browser.evaluate(drawn) < before, f"{place}: the legend hides a series")
        browser.evaluate(f"{legend}.click()")
        checks.equal(browser.evaluate(drawn), before, f"{place}: the legend shows it again")
    checks.equal(browser.complaints(), [], f"{url}: no complaint after use")
    for chapter in ("profiles", "resources", "evidence", "quality", "speculation", "tokens"):
        there = browser.evaluate(f"document.getElementById('{chapter}') !== null")
        checks.that(there, f"{url}: has the chapter {chapter}")
    return len(charts)


def check_narrow(browser, checks, url):
    browser.size(390, 800)
    browser.open(url)
    overflow = browser.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    checks.that(overflow <= 0, f"{url}: fits a narrow window, found {overflow} px too many")
    browser.size(1440, 1000)


def pages(site):
    """The pages of each language: (list, runs)."""
    folders = [site, *sorted(f for f in site.iterdir() if f.is_dir() and (f / "index.html").is_file())]
    return [(folder / "index.html", sorted((folder / "runs").glob("*.html"))) for folder in folders]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=pathlib.Path)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser"))
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    if not options.chromium:
        parser.error("chromium was not found: install it, or name it with --chromium")
    site = options.site.resolve()
    checks = Checks()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(options.chromium, profile)
        try:
            browser.size(1440, 1000)
            browser.scheme("light")
            charts = 0
            for start, runs in pages(site):
                check_list(browser, checks, start.as_uri())
                check_narrow(browser, checks, start.as_uri())
                for run in runs:
                    charts += check_run(browser, checks, run.as_uri())
                check_narrow(browser, checks, runs[0].as_uri())
            checks.that(charts > 0, "the site has charts")
            browser.open(pages(site)[0][1][0].as_uri())
            pdf = browser.call("Page.printToPDF", printBackground=True)["data"]
            checks.that(base64.b64decode(pdf).startswith(b"%PDF"), "a run's page prints")
            if options.screenshots:
                options.screenshots.mkdir(parents=True, exist_ok=True)
                (options.screenshots / "print.pdf").write_bytes(base64.b64decode(pdf))
                for scheme in ("light", "dark"):
                    browser.scheme(scheme)
                    for width in (1440, 390):
                        browser.size(width, 1000)
                        for number, (start, runs) in enumerate(pages(site)):
                            for page in (start, *runs):
                                browser.open(page.as_uri())
                                name = f"{number}-{page.stem}-{scheme}-{width}.png"
                                browser.screenshot(options.screenshots / name)
        finally:
            browser.close()
    for failure in checks.failures:
        print(f"failed: {failure}")
    print(f"{checks.done - len(checks.failures)} of {checks.done} browser checks hold")
    sys.exit(1 if checks.failures else 0)


if __name__ == "__main__":
    main()
