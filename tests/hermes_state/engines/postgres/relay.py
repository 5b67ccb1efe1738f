"""A way to a server that keeps back the end of one answer: a process of its own, for who waits may hold up all threads.

It says the port that it listens at. After the line `keep` the next answer is passed on without its end, and it says
`holds`; the rest follows after the line `go`, then it says `free`, or after `PATIENCE_SECONDS`, then it says `late`.
"""

import asyncio
import sys
from contextlib import suppress

PATIENCE_SECONDS = 5.0
READY = b"Z\0\0\0\5I"
"""Last message of an answer: the server waits for the next request."""


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
        await asyncio.gather(
            pass_on(reader, there[1], is_back=False),
            pass_on(there[0], writer, is_back=True),
        )

    def take_order() -> None:
        {"keep": keeps_back, "go": may_go}[sys.stdin.readline().strip()].set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    asyncio.get_running_loop().add_reader(sys.stdin, take_order)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
