"""An object store that speaks as much of S3 as attachments need: objects are put, read and deleted, path-style.

What is signed with another key is refused; signatures are not looked at. `faults` fails requests by their method.
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
    """Objects by name, requests so far, and what goes wrong."""

    url: str = f"s3://{BUCKET}/gateway"
    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Methods and names."""
    faults: dict[str, int | tuple[int, str]] = field(default_factory=dict)
    """Status by method, with or without the document that comes with it; `*` is any method."""

    may_remove: bool = True
    """The keys may remove objects; that they may not is said of each object, in an answer with status 200."""
    breaks_off: bool = False
    """Half of what is read never comes."""

    @property
    def options(self) -> dict[str, str]:
        """Options of a client that is let in."""
        keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET}
        return {"endpoint": self.endpoint, "region": "eu-central-1", **keys}


@contextmanager
def object_store() -> Iterator[FakeObjectStore]:
    """A running object store with one bucket."""
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
            """Deletes several, however few; what was not there is no error."""
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
            if b"<html" not in body and b"<!doctype" not in body:  # what answers with a page is no object store
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
