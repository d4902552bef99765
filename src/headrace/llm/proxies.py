"""The proxy between here and a server, by the environment."""

from __future__ import annotations

import contextlib
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from headrace.errors import EndpointRefused


def proxy_of(server: SplitResult, where: str) -> str | None:
    """Return the proxy that the environment names for a server; raises ``EndpointRefused`` for no HTTP proxy."""
    proxy = getproxies().get(server.scheme, "")
    if not proxy or proxy_bypass(server.hostname or "") or proxy_bypass(server.netloc):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    with contextlib.suppress(ValueError):
        parts = urlsplit(proxy)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0):
            return proxy
    # The value may hold a password: it is not shown.
    raise EndpointRefused(
        f"{where} cannot be asked: the environment variable {server.scheme}_proxy holds no address of an HTTP proxy, "
        "such as http://proxy:3128. Nothing was sent. Correct it, or name the server in no_proxy."
    )
