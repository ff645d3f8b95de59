"""A page on this machine only, which follows runs while they go on."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Timer
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.reports.markup import content_policy, render
from fedloom.reports.watch import Watch

HOST = "127.0.0.1"
"""Nobody else can reach it."""

_ASSETS = ("page.css", "live.css", "charts.js", "page.js", "live.js")
"""The style sheets and scripts of all pages here."""

_TIMEOUT_S = 30.0
"""A reader who has not asked, or not taken what it asked for, by then is cut off."""


class Server(ThreadingHTTPServer):
    """Serves one `Watch` on the loopback address.

    Args:
        watch: what to show.
        port: 0 picks a free one.

    Raises:
        ConfigError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, watch: Watch, port: int = 0) -> None:
        self.watch = watch
        policy = content_policy(*_ASSETS)
        self.policy = f"{policy}; connect-src 'self'; frame-ancestors 'none'"
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"view: cannot listen on port {port} ({error}). Leave --port away to "
                "get a free one."
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a reader who went away; anything else is a fault of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"

    @property
    def hosts(self) -> frozenset[str]:
        """What a browser on this machine calls us; a page elsewhere says otherwise."""
        return frozenset(
            {f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"}
        )


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "fedloom", ""
    timeout = _TIMEOUT_S

    def setup(self) -> None:
        super().setup()
        # Bytes that trickle in would each begin the time anew.
        self._patience = Timer(_TIMEOUT_S, self._hang_up)
        self._patience.daemon = True
        self._patience.start()

    def finish(self) -> None:
        self._patience.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._patience.cancel()
        # A name that leads here by a foreign DNS answer must not open the door.
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send("Only for this machine.", "text/plain", HTTPStatus.FORBIDDEN)
            return
        watch = self.server.watch
        try:
            if self.path == "/":
                self._send(render("live.html"), "text/html")
            elif self.path == "/state":
                text = json.dumps(watch.state(), allow_nan=False)
                self._send(text, "application/json")
            elif self.path == "/report":
                self._send(watch.report(), "text/html")
            else:
                self._send("Nothing here.", "text/plain", HTTPStatus.NOT_FOUND)
        except FedloomError as error:
            self._send(str(error), "text/plain", HTTPStatus.CONFLICT)

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of every request."""
