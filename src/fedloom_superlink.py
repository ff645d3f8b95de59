"""Flower's SuperLink, of which other machines reach only what clients need.

A SuperLink serves three things at one port: clients (/v1/fleet, where each proves its
key), who starts runs and admits keys (/v1/control) and the processes of a run
(/v1/runtime). Flower asks nobody who he is at the second, and a run is code. So all but
the first is for this machine alone.

This module stands outside of the package, whose import takes seconds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]

FOR_CLIENTS = "/v1/fleet"


class OnlyClientsFromElsewhere:
    """Refuses other machines all but what clients need.

    Args:
        app: what answers the others.
    """

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "lifespan" or is_allowed(
            scope.get("client"), str(scope.get("path", ""))
        ):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": b"For this machine alone.\n"})


def is_allowed(client: Any, path: str) -> bool:
    """Whether somebody may ask for something.

    Args:
        client: his address and port, or None if they are not known.
        path: what he asks for.
    """
    if path == FOR_CLIENTS or path.startswith(f"{FOR_CLIENTS}/"):
        return True
    try:
        address = ipaddress.ip_address(client[0])
    except (TypeError, ValueError, IndexError):
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def main() -> None:
    """Run the SuperLink, with the arguments of `flower-superlink`."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    others = extensions.get_middleware
    ours: Any = OnlyClientsFromElsewhere
    extensions.get_middleware = lambda: (Middleware(ours), *others())
    flower_superlink()


if __name__ == "__main__":
    main()
