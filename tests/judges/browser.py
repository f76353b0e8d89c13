"""A headless Chromium, spoken to over its debugging pipe: no package, no port, no network."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")


def found():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One tab. Everything that its console says at level error, and every exception, is kept."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="ebb-browser-")
        to_browser, self.writing = os.pipe()
        self.reading, from_browser = os.pipe()
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", shell, "sh", program, "--headless=new", "--remote-debugging-pipe",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--hide-scrollbars",
             f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.rest, self.events, self.errors = 0, b"", [], []
        self.session = None
        targets = self.ask("Target.getTargets")["targetInfos"]
        tab = next(one for one in targets if one["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=tab["targetId"],
                                flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        os.close(self.writing)
        os.close(self.reading)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.reading, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def note(self, message):
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value")) for one in what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = what["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append("asked the network for " + url)
        self.events.append(message)

    def ask(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.writing, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") != self.number:
                self.note(message)
                continue
            if "error" in message:
                raise RuntimeError(f"{method}: {message['error']['message']}")
            return message["result"]

    def wait_for(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.note(self.message())

    def open(self, path, width=1200, height=900, scheme="light", mobile=False):
        self.errors.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=2 if mobile else 1, mobile=mobile)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait_for("Page.loadEventFired")
        self.settle()

    def settle(self):
        """Until the page has drawn what it was going to draw."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => "
                 "setTimeout(done, 50))))")

    def run(self, script):
        """The value of an expression in the page; of a promise, what it comes to."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def key(self, name, code=0, modifiers=0):
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name,
                     windowsVirtualKeyCode=code, modifiers=modifiers)

    def point(self, x, y):
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def touch(self, x, y):
        self.ask("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def screenshot(self, path, whole=True):
        if whole:
            size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            self.ask("Emulation.setDeviceMetricsOverride", width=int(size["width"]),
                     height=min(int(size["height"]), 6000), deviceScaleFactor=1, mobile=False)
            self.settle()
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))
