"""A program that uses the package etcd3. Its arguments are the host and the port of the server."""

import sys
import threading

import etcd3

client = etcd3.client(host=sys.argv[1], port=int(sys.argv[2]))
client.put("python/a", "1")
revision = client.get("python/a")[1].response_header.revision
client.put("python/a", "2")
assert client.get("python/a")[0] == b"2"

done, responses = client.transaction(
    compare=[client.transactions.value("python/a") == "2", client.transactions.version("python/b") == 0],
    success=[client.transactions.put("python/b", "new"), client.transactions.get("python/a")],
    failure=[],
)
assert done and responses[1][0][0] == b"2", responses
assert [value for value, _ in client.get_prefix("python/")] == [b"2", b"new"]

lease = client.lease(60)
client.put("python/session", "here", lease=lease)
assert lease.refresh()[0].TTL == 60
lease.revoke()
assert client.get("python/session")[0] is None

events, cancel = client.watch_prefix("python/watched/", start_revision=revision)
numbers = [str(number).encode() for number in range(50)]
writer = threading.Thread(target=lambda: [client.put("python/watched/key", number) for number in numbers])
writer.start()
seen = []
for event in events:
    seen.append(event.value)
    if len(seen) == len(numbers):
        cancel()
writer.join()
assert seen == numbers, seen

with client.lock("python", ttl=10) as lock:
    assert lock.is_acquired()
assert client.delete_prefix("python/").deleted >= 3
print("all as expected")
