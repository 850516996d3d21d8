"""An object store of the tests' own: moto's S3 API on a free port, with one empty bucket, and nothing left of it."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "traces"
SECRET = "hunter2"  # noqa: S105  what must not be shown
_REGION = "eu-west-1"


@contextmanager
def object_store(around: Callable[[Any], Any] = lambda api: api) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield a client of the bucket's server, and the environment, set here, in which it is found."""
    application = pytest.importorskip("moto.moto_server.werkzeug_app")
    serving = pytest.importorskip("werkzeug.serving")
    s3fs, boto3 = pytest.importorskip("s3fs"), pytest.importorskip("boto3")
    api = application.DomainDispatcherApplication(application.create_backend_app)
    server = serving.make_server("127.0.0.1", 0, around(api), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": _REGION,
        "AWS_ENDPOINT_URL": address,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": _REGION})
            yield client, environment
        # moto keeps its buckets in the process, not in the server: the next one would find this one's.
        urllib.request.urlopen(f"{address}/moto-api/reset", data=b"").close()  # noqa: S310  our own
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.shutdown()
        thread.join()
        server.server_close()
