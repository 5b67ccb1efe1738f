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


@dataclass
class FakeObjectStore:
    """Objects by name, requests so far, and what goes wrong."""

    url: str = f"s3://{BUCKET}/gateway"
    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Methods and names."""
    faults: dict[str, int] = field(default_factory=dict)
    """Status by method."""

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
            for name in names:
                fake.objects.pop(name, None)
            deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fake.requests.append(f"{self.command} {self._name()}")
            status = fake.faults.get(self.command, 200)
            if f"Credential={KEY_ID}/" not in self.headers.get("Authorization", ""):
                status = 403
            elif not self.path.startswith(f"/{BUCKET}"):
                status = 404
            if status != 200:
                self._answer(status, f"<Error><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>".encode())
            return status == 200

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

        def _name(self) -> str:
            return self.path.removeprefix(f"/{BUCKET}").lstrip("/")

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
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
