// A shop on a Duramen server: publishing, a group, a transaction, a watch, a tree, and errors.
//
// Usage: go run . [HOST:PORT]
//
// The program checks each result. Its exit code is 1 when a result is not as expected. It may run many times on one
// server.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/duramen/duramen/examples/go/duramenv1"
)

// retries makes gRPC repeat a call while the server is not available. Each write has an idempotency key, so it takes
// effect once.
const retries = `{"methodConfig": [{
	"name": [{}],
	"retryPolicy": {
		"maxAttempts": 5,
		"initialBackoff": "0.1s",
		"maxBackoff": "2s",
		"backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// timeout is the longest duration of a call with its retries.
const timeout = 10 * time.Second

// server has the services of a server, on one connection.
type server struct {
	maps         pb.MapsClient
	topics       pb.TopicsClient
	transactions pb.TransactionsClient
	trees        pb.TreesClient
	watch        pb.WatchClient
}

func main() {
	address := "127.0.0.1:7420"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(context.Background(), address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("all as expected")
}

func run(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(retries),
		grpc.WithChainUnaryInterceptor(limitTime))
	if err != nil {
		return err
	}
	defer conn.Close()
	s := &server{
		maps:         pb.NewMapsClient(conn),
		topics:       pb.NewTopicsClient(conn),
		transactions: pb.NewTransactionsClient(conn),
		trees:        pb.NewTreesClient(conn),
		watch:        pb.NewWatchClient(conn),
	}
	if err := s.prepare(ctx); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	offsets, err := s.publish(ctx)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := s.pack(ctx, offsets); err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	if err := s.sell(ctx); err != nil {
		return fmt.Errorf("sell: %w", err)
	}
	if err := s.followPrices(ctx); err != nil {
		return fmt.Errorf("follow prices: %w", err)
	}
	if err := s.openTill(ctx); err != nil {
		return fmt.Errorf("open a till: %w", err)
	}
	if err := s.fail(ctx); err != nil {
		return fmt.Errorf("fail: %w", err)
	}
	return nil
}

// limitTime gives each call a deadline.
func limitTime(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return invoke(ctx, method, req, reply, conn, opts...)
}

// once returns the options of a write that takes effect once, although the call may be repeated.
func once() *pb.WriteOptions {
	return &pb.WriteOptions{IdempotencyKey: []byte(rand.Text())}
}

// check returns an error unless a result is as expected.
func check(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("not as expected: "+format, args...)
}

// prepare creates what the shop needs, unless it is there.
func (s *server) prepare(ctx context.Context) error {
	_, err := s.maps.CreateMap(ctx, &pb.CreateMapRequest{Map: "stock", Options: once()})
	if err != nil {
		return err
	}
	for _, topic := range []string{"orders", "sales"} {
		_, err := s.topics.CreateTopic(ctx, &pb.CreateTopicRequest{Topic: topic, IfMissing: true, Options: once()})
		if err != nil {
			return err
		}
	}
	_, err = s.topics.CreateGroup(ctx, &pb.CreateGroupRequest{
		Topic:     "orders",
		Group:     "packers",
		Start:     &pb.Position{At: &pb.Position_Earliest{Earliest: true}},
		IfMissing: true,
		Options:   once(),
	})
	return err
}

// publish publishes one message, and then three in one commit. It returns their offsets.
func (s *server) publish(ctx context.Context) ([]uint64, error) {
	request := &pb.PublishRequest{
		Topic: "orders",
		Message: &pb.Message{
			Payload: []byte("2 apples"),
			Key:     []byte("customer-7"),
			Headers: []*pb.Header{{Name: "content-type", Value: []byte("text/plain")}},
		},
		Options: once(),
	}
	single, err := s.topics.Publish(ctx, request)
	if err != nil {
		return nil, err
	}
	// A program that got no answer sends the same request again. The server answers as before, and publishes nothing.
	repeated, err := s.topics.Publish(ctx, request)
	if err != nil {
		return nil, err
	}
	if err := check(proto.Equal(repeated, single), "a repeated request got %v, and not %v", repeated, single); err != nil {
		return nil, err
	}

	messages := []*pb.Message{
		{Payload: []byte("1 pear")},
		{Payload: []byte("5 plums")},
		{Payload: []byte("3 apples")},
	}
	batch, err := s.topics.PublishBatch(ctx, &pb.PublishBatchRequest{
		Topic:    "orders",
		Messages: messages,
		Options:  once(),
	})
	if err != nil {
		return nil, err
	}
	first := batch.GetFirstOffset()
	if err := check(first > single.GetOffset(), "the batch is at %d, and not after %d", first, single.GetOffset()); err != nil {
		return nil, err
	}
	offsets := []uint64{single.GetOffset()}
	for n := range messages {
		offsets = append(offsets, first+uint64(n))
	}
	fmt.Println("published: offsets", offsets)
	return offsets, nil
}

// pack works as a member of the group until these messages are done. The message with plums fails at first.
func (s *server) pack(ctx context.Context, offsets []uint64) error {
	waiting := make(map[uint64]bool)
	for _, offset := range offsets {
		waiting[offset] = true
	}
	plumsFailed, plumsPacked := false, false
	for len(waiting) > 0 {
		fetched, err := s.topics.Fetch(ctx, &pb.FetchRequest{
			Topic:  "orders",
			Group:  "packers",
			Member: "packer 1",
			WaitMs: 5_000,
		})
		if err != nil {
			return err
		}
		if err := check(len(fetched.Messages) > 0, "the group does not deliver what is not acknowledged"); err != nil {
			return err
		}
		done := &pb.Settlement{Topic: "orders", Group: "packers", Lease: fetched.Lease}
		done.Verdict = &pb.Settlement_Acknowledge{Acknowledge: true}
		failed := &pb.Settlement{Topic: "orders", Group: "packers", Lease: fetched.Lease}
		failed.Verdict = &pb.Settlement_Retry{Retry: &pb.Retry{DelayMs: proto.Uint64(0), Reason: "the box is full"}}
		for _, delivered := range fetched.Messages {
			isPlums := string(delivered.Message.Payload) == "5 plums"
			if isPlums && delivered.Tries == 1 {
				plumsFailed = true
				failed.Offsets = append(failed.Offsets, delivered.Message.Offset)
				continue
			}
			plumsPacked = plumsPacked || isPlums
			done.Offsets = append(done.Offsets, delivered.Message.Offset)
		}
		// A settlement without offsets means all messages of the lease, so an empty one is left out.
		var settlements []*pb.Settlement
		for _, settlement := range []*pb.Settlement{done, failed} {
			if len(settlement.Offsets) > 0 {
				settlements = append(settlements, settlement)
			}
		}
		if _, err := s.topics.Settle(ctx, &pb.SettleRequest{Settlements: settlements, Options: once()}); err != nil {
			return err
		}
		for _, offset := range done.Offsets {
			delete(waiting, offset)
		}
	}
	if err := check(plumsFailed && plumsPacked, "a message that failed is not delivered again"); err != nil {
		return err
	}

	listed, err := s.topics.ListGroups(ctx, &pb.ListGroupsRequest{Topic: "orders"})
	if err != nil {
		return err
	}
	last := offsets[len(offsets)-1]
	for _, group := range listed.Groups {
		if group.Group == "packers" {
			fmt.Printf("packed: every message before offset %d is acknowledged\n", group.Acknowledged)
			return check(group.Acknowledged > last, "the group is at %d, and not after %d", group.Acknowledged, last)
		}
	}
	return errors.New("not as expected: there is no group packers")
}

// sellApple takes an apple from the stock and announces the sale, in one commit. It returns the offset of the
// announcement.
//
// This is an outbox without a table: the stock and the message change together, or not at all.
func (s *server) sellApple(ctx context.Context) (uint64, error) {
	for {
		got, err := s.maps.Get(ctx, &pb.GetRequest{Map: "stock", Key: []byte("apples")})
		if err != nil {
			return 0, err
		}
		apples, err := strconv.Atoi(string(got.Value))
		if err != nil {
			return 0, err
		}
		put := &pb.PutOperation{Map: "stock", Key: []byte("apples"), Value: []byte(strconv.Itoa(apples - 1))}
		publish := &pb.PublishOperation{
			Topic:    "sales",
			Messages: []*pb.Message{{Payload: fmt.Appendf(nil, "1 apple, %d left", apples-1)}},
		}
		request := &pb.CommitRequest{
			Conditions: []*pb.Condition{appleStockIs(got.Value)},
			Then: []*pb.Operation{
				{Change: &pb.Operation_Put{Put: put}},
				{Change: &pb.Operation_Publish{Publish: publish}},
			},
			// The key belongs to this attempt: an attempt with another condition is another request.
			Options: once(),
		}
		committed, err := s.transactions.Commit(ctx, request)
		if err != nil {
			return 0, err
		}
		repeated, err := s.transactions.Commit(ctx, request)
		if err != nil {
			return 0, err
		}
		if err := check(proto.Equal(repeated, committed), "a repeated commit got %v, and not %v", repeated, committed); err != nil {
			return 0, err
		}
		if committed.Succeeded {
			if err := check(len(committed.Results) == 2, "%d results of 2 operations", len(committed.Results)); err != nil {
				return 0, err
			}
			return committed.Results[1].GetFirstOffset(), nil
		}
		// Another client changed the stock after we read it.
	}
}

func appleStockIs(value []byte) *pb.Condition {
	return &pb.Condition{Map: "stock", Key: []byte("apples"), Test: &pb.Condition_ValueIs{ValueIs: value}}
}

// sell sells an apple, and shows that the sale is there once.
func (s *server) sell(ctx context.Context) error {
	stock := &pb.PutRequest{Map: "stock", Key: []byte("apples"), Value: []byte("12"), Options: once()}
	if _, err := s.maps.Put(ctx, stock); err != nil {
		return err
	}
	offset, err := s.sellApple(ctx)
	if err != nil {
		return err
	}
	left, err := s.maps.Get(ctx, &pb.GetRequest{Map: "stock", Key: []byte("apples")})
	if err != nil {
		return err
	}
	if err := check(string(left.Value) == "11", "the stock is %q after a sale", left.Value); err != nil {
		return err
	}

	sale, err := s.saleAt(ctx, offset)
	if err != nil {
		return err
	}
	isSale := sale.Offset == offset && string(sale.Payload) == "1 apple, 11 left"
	if err := check(isSale, "the announcement is %q at offset %d", sale.Payload, sale.Offset); err != nil {
		return err
	}
	described, err := s.topics.DescribeTopic(ctx, &pb.DescribeTopicRequest{Topic: "sales"})
	if err != nil {
		return err
	}
	if err := check(described.NextOffset == offset+1, "the sale is announced more than once"); err != nil {
		return err
	}

	// The stock is no longer 12, so the condition does not hold, and nothing changes.
	drop := &pb.DeleteOperation{Map: "stock", Key: []byte("apples")}
	committed, err := s.transactions.Commit(ctx, &pb.CommitRequest{
		Conditions: []*pb.Condition{appleStockIs([]byte("12"))},
		Then:       []*pb.Operation{{Change: &pb.Operation_Delete{Delete: drop}}},
		Options:    once(),
	})
	if err != nil {
		return err
	}
	fmt.Printf("sold: %s, announced at offset %d\n", sale.Payload, sale.Offset)
	isStopped := !committed.Succeeded && len(committed.Results) == 0
	return check(isStopped, "a condition that does not hold did not stop the commit")
}

// saleAt reads one announcement. A subscription goes on until its context ends.
func (s *server) saleAt(ctx context.Context, offset uint64) (*pb.ReceivedMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	subscription, err := s.topics.Subscribe(ctx, &pb.SubscribeRequest{
		Topic: "sales",
		Start: &pb.SubscribeRequest_Offset{Offset: offset},
	})
	if err != nil {
		return nil, err
	}
	received, err := subscription.Recv()
	if err != nil {
		return nil, err
	}
	if err := check(len(received.Messages) > 0, "a response has no messages"); err != nil {
		return nil, err
	}
	return received.Messages[0], nil
}

// followPrices holds a copy of a map, and keeps it up to date. The watch is broken off and resumed, and misses nothing.
func (s *server) followPrices(ctx context.Context) error {
	// The map keeps its changes for a day.
	_, err := s.maps.CreateMap(ctx, &pb.CreateMapRequest{
		Map:         "prices",
		KeepChanges: &pb.KeepChanges{AgeMs: uint64((24 * time.Hour).Milliseconds())},
		Options:     once(),
	})
	if err != nil {
		return err
	}
	if err := s.setPrice(ctx, "30"); err != nil {
		return err
	}

	// First come all pairs of the map, then its changes.
	prices := make(map[string]string)
	position, err := s.follow(ctx, prices, &pb.WatchRequest{
		Map:   "prices",
		Start: &pb.WatchRequest_Current{Current: true},
	}, func(response *pb.WatchResponse) bool { return response.CurrentComplete })
	if err != nil {
		return err
	}
	if err := check(prices["apples"] == "30", "the copy has the price %q", prices["apples"]); err != nil {
		return err
	}

	// What changes meanwhile comes when the watch goes on after its position.
	price := rand.Text()
	for _, price := range []string{"31", price} {
		if err := s.setPrice(ctx, price); err != nil {
			return err
		}
	}
	position, err = s.follow(ctx, prices, &pb.WatchRequest{
		Map:   "prices",
		Start: &pb.WatchRequest_After{After: position},
	}, func(*pb.WatchResponse) bool { return prices["apples"] == price })
	if err != nil {
		return err
	}
	fmt.Println("followed: the prices up to change", position)
	return nil
}

// follow applies what a watch shows to a copy of the map, until a response ends it. It returns the position that the next
// watch begins after.
func (s *server) follow(ctx context.Context, prices map[string]string, request *pb.WatchRequest,
	isEnd func(*pb.WatchResponse) bool) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	responses, err := s.watch.Watch(ctx, request)
	if err != nil {
		return 0, err
	}
	for {
		response, err := responses.Recv()
		if err != nil {
			return 0, err
		}
		for _, pair := range response.Pairs {
			prices[string(pair.Key)] = string(pair.Value)
		}
		for _, change := range response.Changes {
			old := prices[string(change.Key)]
			if err := check(string(change.OldValue) == old, "change %d has the old value %q", change.Number, change.OldValue); err != nil {
				return 0, err
			}
			if change.NewValue == nil {
				delete(prices, string(change.Key))
				continue
			}
			prices[string(change.Key)] = string(change.NewValue)
		}
		if isEnd(response) {
			return response.Position, nil
		}
	}
}

func (s *server) setPrice(ctx context.Context, price string) error {
	request := &pb.PutRequest{Map: "prices", Key: []byte("apples"), Value: []byte(price), Options: once()}
	_, err := s.maps.Put(ctx, request)
	return err
}

// openTill registers a till in a tree, changes a setting that the till follows, and closes the till.
func (s *server) openTill(ctx context.Context) error {
	if _, err := s.trees.CreateTree(ctx, &pb.CreateTreeRequest{Tree: "shop", Options: once()}); err != nil {
		return err
	}
	// A till that breaks down does not keep its lease alive. The lease ends, and the node of the till goes with it.
	granted, err := s.trees.GrantLease(ctx, &pb.GrantLeaseRequest{Tree: "shop", TtlMs: 60_000, Options: once()})
	if err != nil {
		return err
	}
	lease := granted.Lease.Lease
	till := "tills/" + rand.Text()
	opened, err := s.putNode(ctx, &pb.PutNodeOperation{
		Path:    []byte(till),
		Payload: []byte("open"),
		Mode:    pb.PutMode_PUT_MODE_CREATE,
		Lease:   &pb.PutNodeOperation_Attach{Attach: lease},
	})
	if err != nil {
		return err
	}
	if err := s.keepAlive(ctx, lease); err != nil {
		return err
	}

	// A new discount is stored only where the discount is still the one that was read.
	discount := func(payload string, expected []byte) *pb.PutNodeOperation {
		return &pb.PutNodeOperation{Path: []byte("settings/discount"), Payload: []byte(payload), Expected: expected}
	}
	if _, err := s.putNode(ctx, discount("5", nil)); err != nil {
		return err
	}
	changed, err := s.putNode(ctx, discount("10", []byte("5")))
	if err != nil {
		return err
	}
	if err := check(string(changed.Before.GetPayload()) == "5", "the node before is %v", changed.Before); err != nil {
		return err
	}
	_, err = s.putNode(ctx, discount("20", []byte("5")))
	if err := check(reasonOf(err) == "NODE_MISMATCH", "a put that expects an old payload led to %v", err); err != nil {
		return err
	}

	// Earlier revisions stay readable until the tree is compacted.
	earlier, err := s.trees.GetNode(ctx, &pb.GetNodeRequest{
		Tree:     "shop",
		Path:     []byte("settings/discount"),
		Revision: changed.Revision - 1,
	})
	if err != nil {
		return err
	}
	if err := check(string(earlier.Node.GetPayload()) == "5", "the earlier revision has %v", earlier.Node); err != nil {
		return err
	}

	_, err = s.trees.RevokeLease(ctx, &pb.RevokeLeaseRequest{Tree: "shop", Lease: lease, Options: once()})
	if err != nil {
		return err
	}
	closed, err := s.watchTill(ctx, till, opened.Revision)
	if err != nil {
		return err
	}
	fmt.Printf("till: opened at revision %d, closed at revision %d\n", opened.Revision, closed)
	return nil
}

func (s *server) putNode(ctx context.Context, put *pb.PutNodeOperation) (*pb.PutNodeResponse, error) {
	return s.trees.PutNode(ctx, &pb.PutNodeRequest{Tree: "shop", Put: put, Options: once()})
}

// keepAlive lets a lease last its whole time from now on. A program that holds a lease for long keeps such a stream open.
func (s *server) keepAlive(ctx context.Context, lease uint64) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	leases, err := s.trees.KeepLeasesAlive(ctx)
	if err != nil {
		return err
	}
	if err := leases.Send(&pb.KeepLeaseAliveRequest{Tree: "shop", Lease: lease, Options: once()}); err != nil {
		return err
	}
	kept, err := leases.Recv()
	if err != nil {
		return err
	}
	return check(kept.Lease.GetLease() == lease, "the lease is %v", kept.Lease)
}

// watchTill follows the tree from a revision on until a till is closed. It returns the revision that closed it. A watch may
// begin in the past: it shows each change since then, with the node before it.
func (s *server) watchTill(ctx context.Context, till string, from uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	watches, err := s.trees.WatchNodes(ctx)
	if err != nil {
		return 0, err
	}
	begin := &pb.BeginWatch{Tree: "shop", Watch: 1, FromRevision: from}
	err = watches.Send(&pb.WatchNodesRequest{Request: &pb.WatchNodesRequest_Begin{Begin: begin}})
	if err != nil {
		return 0, err
	}
	var discounts []string
	for {
		response, err := watches.Recv()
		if err != nil {
			return 0, err
		}
		for _, event := range response.GetEvents().GetEvents() {
			switch string(event.Path) {
			case "settings/discount":
				discounts = append(discounts, string(event.Node.GetPayload()))
			case till:
				if event.Node == nil {
					isShown := slices.Equal(discounts, []string{"5", "10"})
					return event.Revision, check(isShown, "the watch shows the discounts %v", discounts)
				}
			}
		}
	}
}

// fail makes calls that the server refuses, and looks at the code and the reason.
func (s *server) fail(ctx context.Context) error {
	_, err := s.maps.Get(ctx, &pb.GetRequest{Map: "no such map", Key: []byte("apples")})
	if err := expect(err, codes.NotFound, "MAP_NOT_FOUND"); err != nil {
		return err
	}

	put := &pb.PutRequest{Map: "stock", Key: []byte("pears"), Value: []byte("30"), Options: once()}
	if _, err := s.maps.Put(ctx, put); err != nil {
		return err
	}
	put.Value = []byte("31") // another request with the key of the first one
	_, err = s.maps.Put(ctx, put)
	return expect(err, codes.InvalidArgument, "KEY_REUSED")
}

// expect checks the code and the reason of a refused call.
func expect(err error, code codes.Code, reason string) error {
	if err == nil {
		return fmt.Errorf("not as expected: the server did not refuse a call with %s", reason)
	}
	if status.Code(err) != code || reasonOf(err) != reason {
		return fmt.Errorf("not as expected: the server refused a call, but not with %v and %s: %w", code, reason, err)
	}
	fmt.Printf("refused: %s: %s\n", reason, status.Convert(err).Message())
	return nil
}

// reasonOf returns the stable reason of an error of the server. An error of the connection has none.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}
