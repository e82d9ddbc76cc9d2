"""Moto's server on 127.0.0.1, one request at a time, for s3fence's tests.

moto_server itself answers every request in its own thread, and its UpdateItem
is not atomic across threads: two callers of one counter got the same number.
"""

import os
import signal
import sys

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

port = int(sys.argv[1])

# Nothing is kept, so nothing is worth an orderly end. Even a request that is
# being answered must not delay it.
for sig in (signal.SIGTERM, signal.SIGINT):
    signal.signal(sig, lambda *_: os._exit(0))

# What run_simple(threaded=False) does, except that this can say when the port
# is really its own: by then make_server has bound it.
server = make_server(
    "127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=False
)
print("s3fence: moto is listening", flush=True)
server.serve_forever()
