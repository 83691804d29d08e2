"""cutter.py PORT TARGET: a way to a store of one replica alone. Stopped (SIGSTOP) it is a network that carries nothing."""

import asyncio
import sys


async def copy(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def carry(target, reader, writer):
    try:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target)
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))


async def main(port, target):
    server = await asyncio.start_server(lambda *ends: carry(target, *ends), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
