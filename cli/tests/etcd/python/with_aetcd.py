"""A program that uses the package aetcd. Its arguments are the host and the port of the server.

When it prints "kill", the server is killed and started again, and the program reads a line.
"""

import asyncio
import sys

import aetcd


async def main():
    async with aetcd.Client(host=sys.argv[1], port=int(sys.argv[2])) as client:
        await client.put(b"async/a", b"1")
        first = await client.get(b"async/a")
        await client.put(b"async/a", b"2")
        assert (await client.get(b"async/a")).value == b"2"
        assert (await client.get(b"async/a")).create_revision == first.mod_revision

        lease = await client.lease(60)
        await client.put(b"async/session", b"here", lease=lease)
        await lease.revoke()
        assert await client.get(b"async/session") is None

        done, _ = await client.transaction(
            compare=[client.transactions.value(b"async/a") == b"2"],
            success=[client.transactions.put(b"async/b", b"new")],
            failure=[],
        )
        assert done

        watch = await client.watch_prefix(b"async/watched/")
        for number in range(20):
            await client.put(b"async/watched/key", str(number).encode())
        seen = []
        async for event in watch:
            seen.append(int(event.kv.value))
            if len(seen) == 20:
                await watch.cancel()
        assert seen == list(range(20)), seen
        revision = (await client.get(b"async/watched/key")).mod_revision

    print("kill", flush=True)
    sys.stdin.readline()
    async with aetcd.Client(host=sys.argv[1], port=int(sys.argv[2])) as client:
        watch = await client.watch_prefix(b"async/watched/", start_revision=revision)
        await client.put(b"async/watched/key", b"20")
        seen = []
        async for event in watch:
            seen.append(int(event.kv.value))
            if len(seen) == 2:
                await watch.cancel()
        assert seen == [19, 20], seen
        assert (await client.delete_prefix(b"async/")).deleted == 3
    print("all as expected")


asyncio.run(main())
