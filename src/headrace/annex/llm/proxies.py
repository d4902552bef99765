"""The way between here and a server: the proxy, by the environment, and what fails on it."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from headrace.annex.llm.refusals import Again, ConnectionLost, NoAnswer
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


@contextlib.contextmanager
def on_the_way(where: str, hidden: Callable[[str], str], timeout: float) -> Iterator[None]:
    """Raise what fails between here and a server as errors of ours; ``hidden`` takes the key out of a text."""
    import aiohttp

    began = time.monotonic()
    try:
        yield
    except TimeoutError:
        said = f"no answer in {time.monotonic() - began:,.1f} seconds (timeout={timeout:g})"
        raise Again(NoAnswer, said, overloaded=True, paid=True) from None
    except (
        aiohttp.ClientConnectorCertificateError,
        aiohttp.InvalidURL,
        aiohttp.ClientConnectorSSLError,
    ) as error:
        raise EndpointRefused(f"{where} cannot be asked: {hidden(str(error))}.") from None
    except (aiohttp.ClientError, OSError) as error:
        said = f"{type(error).__name__}: {hidden(str(error)) or type(error).__name__}"
        connected = not isinstance(error, aiohttp.ClientConnectorError)
        closed = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
        raise Again(ConnectionLost, said, paid=connected, closed=closed) from None
