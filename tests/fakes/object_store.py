"""Fake object store with the part of S3 that attachments need: path-style PUT, GET and DELETE of objects.

It refuses requests with another key id, and does not check signatures. `faults` makes requests fail by method.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET, KEY_ID, SECRET = "lab", "KEYIDOFTESTS", "s3cr3t-of-the-tests"


_NOT_REMOVED = "<Error><Key>{}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_REFUSAL = f"<Error><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"


@dataclass
class FakeObjectStore:
    """Stored objects by name, received requests, and the faults to simulate."""

    url: str = f"s3://{BUCKET}/gateway"
    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Methods and names of the requests."""
    faults: dict[str, int | tuple[int, str]] = field(default_factory=dict)
    """Response status by method, optionally with a body. `*` applies to any method."""

    may_remove: bool = True
    """False if the keys are not allowed to delete. The error is then reported for each object, in a response with
    status 200."""
    breaks_off: bool = False
    """True if only half of an object is sent."""

    @property
    def options(self) -> dict[str, str]:
        """Options for a client with access."""
        keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
        return {"endpoint": self.endpoint, "region": "eu-central-1", **keys}


@contextmanager
def object_store() -> Iterator[FakeObjectStore]:
    """Run an object store with one bucket."""
    fake = FakeObjectStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            fake.objects[self._name()] = self._body
            self._answer(200)

        def do_GET(self) -> None:
            found = fake.objects.get(self._name())
            self._answer(404 if found is None else 200, found or b"<Error><Code>NoSuchKey</Code></Error>")

        def do_POST(self) -> None:
            """Delete the listed objects. Names that do not exist are no error."""
            names = re.findall(r"<Key>(.*?)</Key>", self._body.decode())
            for name in names if fake.may_remove else ():
                fake.objects.pop(name, None)
            of_each = "<Deleted><Key>{}</Key></Deleted>" if fake.may_remove else _NOT_REMOVED
            self._answer(200, f"<DeleteResult>{''.join(map(of_each.format, names))}</DeleteResult>".encode())

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fake.requests.append(f"{self.command} {self._name()}")
            fault = fake.faults.get(self.command, fake.faults.get("*", 200))
            status, body = fault if isinstance(fault, tuple) else (fault, _REFUSAL)
            if f"Credential={KEY_ID}/" not in self.headers.get("Authorization", ""):
                status = 403
            elif not self.path.startswith(f"/{BUCKET}"):
                status = 404
            if status != 200 or fault != 200:
                self._answer(status, body.encode())
            return status == 200 and fault == 200

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

        def _name(self) -> str:
            return self.path.removeprefix(f"/{BUCKET}").lstrip("/")

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            if b"<html" not in body and b"<!doctype" not in body:  # real stores do not respond with HTML pages
                self.send_header("ETag", '"1"')
                self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if fake.breaks_off and self.command == "GET":
                body, self.close_connection = body[: len(body) // 2], True
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
