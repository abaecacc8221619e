"""A shop on a Duramen server: publishing, a group, a transaction, a watch, a tree, and errors.

Usage: python shop.py [HOST:PORT]

The program checks each result. Its exit code is 1 when a result is not as expected. It may run many times on one server.
"""

import json
import sys
import uuid

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from duramen.v1 import common_pb2 as common
from duramen.v1 import groups_pb2 as groups
from duramen.v1 import maps_pb2 as maps
from duramen.v1 import maps_pb2_grpc
from duramen.v1 import topics_pb2 as topics
from duramen.v1 import topics_pb2_grpc
from duramen.v1 import transactions_pb2 as transactions
from duramen.v1 import transactions_pb2_grpc
from duramen.v1 import trees_pb2 as trees
from duramen.v1 import trees_pb2_grpc
from duramen.v1 import watch_pb2 as watch
from duramen.v1 import watch_pb2_grpc

# The longest duration of a call with its retries, in seconds.
TIMEOUT = 10

# gRPC repeats a call while the server is not available. Each write has an idempotency key, so it takes effect once.
RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


class Server:
    """The services of a server, on one channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.maps = maps_pb2_grpc.MapsStub(channel)
        self.topics = topics_pb2_grpc.TopicsStub(channel)
        self.transactions = transactions_pb2_grpc.TransactionsStub(channel)
        self.trees = trees_pb2_grpc.TreesStub(channel)
        self.watch = watch_pb2_grpc.WatchStub(channel)


def once() -> common.WriteOptions:
    """Returns the options of a write that takes effect once, although the call may be repeated."""
    return common.WriteOptions(idempotency_key=uuid.uuid4().bytes)


def check(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(f"not as expected: {what}")


def prepare(server: Server) -> None:
    """Creates what the shop needs, unless it is there."""
    server.maps.CreateMap(maps.CreateMapRequest(map="stock", options=once()), timeout=TIMEOUT)
    for topic in ("orders", "sales"):
        request = topics.CreateTopicRequest(topic=topic, if_missing=True, options=once())
        server.topics.CreateTopic(request, timeout=TIMEOUT)
    request = groups.CreateGroupRequest(
        topic="orders",
        group="packers",
        start=groups.Position(earliest=True),
        if_missing=True,
        options=once(),
    )
    server.topics.CreateGroup(request, timeout=TIMEOUT)


def publish(server: Server) -> list[int]:
    """Publishes one message, and then three in one commit. Returns their offsets."""
    request = topics.PublishRequest(
        topic="orders",
        message=topics.Message(
            payload=b"2 apples",
            key=b"customer-7",
            headers=[common.Header(name="content-type", value=b"text/plain")],
        ),
        options=once(),
    )
    single = server.topics.Publish(request, timeout=TIMEOUT).offset
    # A program that got no answer sends the same request again. The server answers as before, and publishes nothing.
    repeated = server.topics.Publish(request, timeout=TIMEOUT).offset
    check(repeated == single, "a repeated request has the offset of the first one")

    payloads = [b"1 pear", b"5 plums", b"3 apples"]
    batch = topics.PublishBatchRequest(
        topic="orders",
        messages=[topics.Message(payload=payload) for payload in payloads],
        options=once(),
    )
    first = server.topics.PublishBatch(batch, timeout=TIMEOUT).first_offset
    check(first > single, "the batch comes after the single message")
    offsets = [single, *range(first, first + len(payloads))]
    print(f"published: offsets {offsets}")
    return offsets


def pack(server: Server, offsets: list[int]) -> None:
    """Works as a member of the group until these messages are done. The message with plums fails at first."""
    waiting = set(offsets)
    plums_failed = plums_packed = False
    while waiting:
        request = groups.FetchRequest(topic="orders", group="packers", member="packer 1", wait_ms=5_000)
        fetched = server.topics.Fetch(request, timeout=TIMEOUT)
        check(bool(fetched.messages), "the group delivers what is not acknowledged")
        done, failed = [], []
        for delivered in fetched.messages:
            message = delivered.message
            if message.payload == b"5 plums" and delivered.tries == 1:
                plums_failed = True
                failed.append(message.offset)
            else:
                plums_packed |= message.payload == b"5 plums" and delivered.tries > 1
                done.append(message.offset)
        settlements = []
        if done:
            settlements.append(settlement(fetched.lease, done, acknowledge=True))
        if failed:
            retry = groups.Retry(delay_ms=0, reason="the box is full")
            settlements.append(settlement(fetched.lease, failed, retry=retry))
        server.topics.Settle(groups.SettleRequest(settlements=settlements, options=once()), timeout=TIMEOUT)
        waiting.difference_update(done)
    check(plums_failed and plums_packed, "a message that failed is delivered again")

    listed = server.topics.ListGroups(groups.ListGroupsRequest(topic="orders"), timeout=TIMEOUT)
    packers = next(group for group in listed.groups if group.group == "packers")
    check(packers.acknowledged > max(offsets), "the group is past these messages")
    print(f"packed: every message before offset {packers.acknowledged} is acknowledged")


def settlement(lease: bytes, offsets: list[int], **verdict) -> groups.Settlement:
    return groups.Settlement(topic="orders", group="packers", lease=lease, offsets=offsets, **verdict)


def sell_apple(server: Server) -> int:
    """Takes an apple from the stock and announces the sale, in one commit. Returns the offset of the announcement.

    This is an outbox without a table: the stock and the message change together, or not at all.
    """
    while True:
        got = server.maps.Get(maps.GetRequest(map="stock", key=b"apples"), timeout=TIMEOUT)
        left = int(got.value) - 1
        request = transactions.CommitRequest(
            conditions=[transactions.Condition(map="stock", key=b"apples", value_is=got.value)],
            then=[
                transactions.Operation(
                    put=transactions.PutOperation(map="stock", key=b"apples", value=str(left).encode())
                ),
                transactions.Operation(
                    publish=transactions.PublishOperation(
                        topic="sales",
                        messages=[topics.Message(payload=f"1 apple, {left} left".encode())],
                    )
                ),
            ],
            # The key belongs to this attempt: an attempt with another condition is another request.
            options=once(),
        )
        committed = server.transactions.Commit(request, timeout=TIMEOUT)
        repeated = server.transactions.Commit(request, timeout=TIMEOUT)
        check(repeated == committed, "a repeated commit gets the first answer")
        if committed.succeeded:
            return committed.results[1].first_offset
        # Another client changed the stock after we read it.


def sell(server: Server) -> None:
    """Sells an apple, and shows that the sale is there once."""
    stock = maps.PutRequest(map="stock", key=b"apples", value=b"12", options=once())
    server.maps.Put(stock, timeout=TIMEOUT)
    offset = sell_apple(server)
    left = server.maps.Get(maps.GetRequest(map="stock", key=b"apples"), timeout=TIMEOUT).value
    check(left == b"11", "one apple is sold, although the commit was sent twice")

    # A subscription goes on until the client ends it.
    request = topics.SubscribeRequest(topic="sales", offset=offset)
    subscription = server.topics.Subscribe(request, timeout=TIMEOUT)
    sale = next(subscription).messages[0]
    subscription.cancel()
    check(sale.offset == offset and sale.payload == b"1 apple, 11 left", "the sale is announced")
    described = server.topics.DescribeTopic(topics.DescribeTopicRequest(topic="sales"), timeout=TIMEOUT)
    check(described.next_offset == offset + 1, "the sale is announced once")

    # The stock is no longer 12, so the condition does not hold, and nothing changes.
    stale = transactions.CommitRequest(
        conditions=[transactions.Condition(map="stock", key=b"apples", value_is=b"12")],
        then=[transactions.Operation(delete=transactions.DeleteOperation(map="stock", key=b"apples"))],
        options=once(),
    )
    committed = server.transactions.Commit(stale, timeout=TIMEOUT)
    check(not committed.succeeded and not committed.results, "a condition that does not hold stops the commit")
    print(f"sold: {sale.payload.decode()}, announced at offset {sale.offset}")


def follow_prices(server: Server) -> None:
    """Holds a copy of a map, and keeps it up to date. The watch is broken off and resumed, and misses nothing."""
    # The map keeps its changes for a day.
    kept = maps.KeepChanges(age_ms=24 * 60 * 60 * 1000)
    server.maps.CreateMap(maps.CreateMapRequest(map="prices", keep_changes=kept, options=once()), timeout=TIMEOUT)
    set_price(server, b"apples", b"30")

    copy: dict[bytes, bytes] = {}
    # First come all pairs of the map, then its changes.
    request = watch.WatchRequest(map="prices", current=True)
    responses = server.watch.Watch(request, timeout=TIMEOUT)
    for response in responses:
        copy.update((pair.key, pair.value) for pair in response.pairs)
        position = response.position
        if response.current_complete:
            break
    responses.cancel()
    check(copy[b"apples"] == b"30", "the copy has the pairs of the map")

    # What changes meanwhile comes when the watch goes on after its position.
    price = uuid.uuid4().hex.encode()
    set_price(server, b"apples", b"31")
    set_price(server, b"apples", price)
    responses = server.watch.Watch(watch.WatchRequest(map="prices", after=position), timeout=TIMEOUT)
    for response in responses:
        for change in response.changes:
            check(change.old_value == copy.get(change.key, b""), "a change has the value before it")
            if change.HasField("new_value"):
                copy[change.key] = change.new_value
            else:
                copy.pop(change.key, None)
        position = response.position
        if copy[b"apples"] == price:
            break
    responses.cancel()
    print(f"followed: the prices up to change {position}")


def set_price(server: Server, fruit: bytes, price: bytes) -> None:
    server.maps.Put(maps.PutRequest(map="prices", key=fruit, value=price, options=once()), timeout=TIMEOUT)


def open_till(server: Server) -> None:
    """Registers a till in a tree, changes a setting that the till follows, and closes the till."""
    server.trees.CreateTree(trees.CreateTreeRequest(tree="shop", options=once()), timeout=TIMEOUT)
    # A till that breaks down does not keep its lease alive. The lease ends, and the node of the till goes with it.
    grant = trees.GrantLeaseRequest(tree="shop", ttl_ms=60_000, options=once())
    lease = server.trees.GrantLease(grant, timeout=TIMEOUT).lease.lease
    till = b"tills/" + uuid.uuid4().hex.encode()
    opened = put_node(server, path=till, payload=b"open", mode=trees.PUT_MODE_CREATE, attach=lease)
    keep = trees.KeepLeaseAliveRequest(tree="shop", lease=lease, options=once())
    kept = next(server.trees.KeepLeasesAlive(iter([keep]), timeout=TIMEOUT))
    check(kept.lease.lease == lease, "the lease lasts its whole time again")

    # A new discount is stored only where the discount is still the one that was read.
    put_node(server, path=b"settings/discount", payload=b"5")
    changed = put_node(server, path=b"settings/discount", payload=b"10", expected=b"5")
    check(changed.before.payload == b"5", "a put returns the node before")
    try:
        put_node(server, path=b"settings/discount", payload=b"20", expected=b"5")
    except grpc.RpcError as error:
        check(reason_of(error) == "NODE_MISMATCH", f"the reason, {reason_of(error)}")
    else:
        check(False, "a put that expects an old payload is refused")

    # Earlier revisions stay readable until the tree is compacted.
    read = trees.GetNodeRequest(tree="shop", path=b"settings/discount", revision=changed.revision - 1)
    check(server.trees.GetNode(read, timeout=TIMEOUT).node.payload == b"5", "an earlier revision can be read")

    revoke = trees.RevokeLeaseRequest(tree="shop", lease=lease, options=once())
    server.trees.RevokeLease(revoke, timeout=TIMEOUT)

    # A watch may begin in the past. It shows each change since the till was opened, with the node before it.
    begin = trees.BeginWatch(tree="shop", watch=1, from_revision=opened.revision)
    responses = server.trees.WatchNodes(iter([trees.WatchNodesRequest(begin=begin)]), timeout=TIMEOUT)
    discounts: list[bytes] = []
    closed = 0
    while not closed:
        for event in next(responses).events.events:
            if event.path == b"settings/discount":
                discounts.append(event.node.payload)
            if event.path == till and not event.HasField("node"):
                closed = event.revision
    responses.cancel()
    check(discounts == [b"5", b"10"], f"the watch shows the discounts, {discounts}")
    print(f"till: opened at revision {opened.revision}, closed at revision {closed}")


def put_node(server: Server, **put) -> trees.PutNodeResponse:
    request = trees.PutNodeRequest(tree="shop", put=trees.PutNodeOperation(**put), options=once())
    return server.trees.PutNode(request, timeout=TIMEOUT)


def reason_of(error: grpc.RpcError) -> str:
    """Returns the stable reason of an error of the server. An error of the connection has none."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info.reason
    return ""


def fail(server: Server) -> None:
    """Makes calls that the server refuses, and looks at the code and the reason."""
    try:
        server.maps.Get(maps.GetRequest(map="no such map", key=b"apples"), timeout=TIMEOUT)
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.NOT_FOUND, f"the code, {error.code()}")
        check(reason_of(error) == "MAP_NOT_FOUND", f"the reason, {reason_of(error)}")
        print(f"refused: {reason_of(error)}: {error.details()}")
    else:
        check(False, "a read of a missing map is refused")

    put = maps.PutRequest(map="stock", key=b"pears", value=b"30", options=once())
    server.maps.Put(put, timeout=TIMEOUT)
    put.value = b"31"
    try:
        server.maps.Put(put, timeout=TIMEOUT)
    except grpc.RpcError as error:
        check(error.code() == grpc.StatusCode.INVALID_ARGUMENT, f"the code, {error.code()}")
        check(reason_of(error) == "KEY_REUSED", f"the reason, {reason_of(error)}")
        print(f"refused: {reason_of(error)}: {error.details()}")
    else:
        check(False, "another request with a known idempotency key is refused")


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7420"
    options = [("grpc.service_config", json.dumps(RETRIES))]
    with grpc.insecure_channel(address, options=options) as channel:
        server = Server(channel)
        prepare(server)
        pack(server, publish(server))
        sell(server)
        follow_prices(server)
        open_till(server)
        fail(server)
    print("all as expected")


if __name__ == "__main__":
    main()
