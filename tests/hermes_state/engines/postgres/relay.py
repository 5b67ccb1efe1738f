"""A relay to a server that holds back the end of one answer. A separate process, because a wait may block all threads.

It prints its port. After the line `keep` it passes on the next answer without its end and prints `holds`. The rest
follows after the line `go` (it then prints `free`) or after `PATIENCE_SECONDS` (it then prints `late`).
"""

import asyncio
import sys
from contextlib import suppress

PATIENCE_SECONDS = 5.0
READY = b"Z\0\0\0\5I"
"""End of an answer: the server is ready for the next request."""


async def main(target: int) -> None:
    keeps_back, may_go = asyncio.Event(), asyncio.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_back: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if is_back and keeps_back.is_set() and data.endswith(READY):
                    keeps_back.clear()
                    writer.write(data[: -len(READY)])
                    print("holds", flush=True)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(may_go.wait(), PATIENCE_SECONDS)
                    print("free" if may_go.is_set() else "late", flush=True)
                    data = READY
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pass_on(reader, there[1], is_back=False), pass_on(there[0], writer, is_back=True))

    def take_order() -> None:
        {"keep": keeps_back, "go": may_go}[sys.stdin.readline().strip()].set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    asyncio.get_running_loop().add_reader(sys.stdin, take_order)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
