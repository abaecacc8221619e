"""A program that uses the package etcd3. Its arguments are the host and the port of the server.

When it prints "kill", the server is killed and started again, and the program reads a line.
"""

import sys
import threading
import time

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


def campaign(name):
    """Puts a name where there is none yet, and waits while there is one. It returns the lease that keeps the name."""
    lease = client.lease(60)
    while True:
        won, responses = client.transaction(
            compare=[client.transactions.version("python/leader") == 0],
            success=[client.transactions.put("python/leader", name, lease=lease)],
            failure=[client.transactions.get("python/leader")],
        )
        if won:
            return lease
        _, leader = responses[0][0]
        events, cancel = client.watch("python/leader", start_revision=leader.mod_revision + 1)
        for event in events:
            if isinstance(event, etcd3.events.DeleteEvent):
                break
        cancel()


first = campaign("first")
elected = []
second = threading.Thread(target=lambda: elected.append(campaign("second")))
second.start()
time.sleep(0.1)
assert client.get("python/leader")[0] == b"first" and not elected
first.revoke()
second.join()
assert client.get("python/leader")[0] == b"second"

# A watch of this package ends with its connection. A program begins again after the last revision that it has seen.
revision = client.put("python/resumed", "0").header.revision
events, cancel = client.watch("python/resumed", start_revision=revision)
assert next(events).value == b"0"
print("kill", flush=True)
sys.stdin.readline()
client = etcd3.client(host=sys.argv[1], port=int(sys.argv[2]))
while True:
    try:
        assert client.get("python/resumed")[0] == b"0"
        break
    except etcd3.exceptions.ConnectionFailedError:
        # gRPC waits before it connects again.
        time.sleep(0.1)
assert client.get("python/leader")[0] == b"second"
elected[0].etcd_client = client
assert elected[0].refresh()[0].TTL == 60
for number in range(1, 20):
    client.put("python/resumed", str(number))
events, cancel = client.watch("python/resumed", start_revision=revision + 1)
seen = [int(next(events).value) for _ in range(1, 20)]
cancel()
assert seen == list(range(1, 20)), seen
assert client.delete_prefix("python/").deleted >= 3
print("all as expected")
