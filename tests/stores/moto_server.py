"""An S3 server that keeps its conditions: ``moto`` looks first, then puts, so two may find that nothing is there.

``python moto_server.py -H 127.0.0.1 -p 4711``
"""

import threading

from moto.s3.responses import S3Response

_ONE = threading.Lock()
_put, _complete = S3Response.put_object, S3Response._key_response_post


def _put_alone(self):
    with _ONE:
        return _put(self)


def _complete_alone(self, *given):
    with _ONE:
        return _complete(self, *given)


S3Response.put_object, S3Response._key_response_post = _put_alone, _complete_alone

if __name__ == "__main__":
    from moto.server import main

    main()
