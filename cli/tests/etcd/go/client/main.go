// A program that uses etcd's Go client: it does what programs of etcd do, and checks each answer.
//
// The first argument is the place of the server. When the program prints "kill", the server is killed and started again, and
// the program reads a line.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func check(err error) {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
}

func expect(holds bool, what string) {
	if !holds {
		log.Output(2, what)
		os.Exit(1)
	}
}

func main() {
	log.SetFlags(log.Lshortfile)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 5 * time.Second})
	check(err)
	defer client.Close()
	revisions(ctx, client)
	transactions(ctx, client)
	leases(ctx, client)
	locks(ctx, client)
	elections(ctx, client)
	watches(ctx, client)
	fmt.Println("all as expected")
}

func revisions(ctx context.Context, client *clientv3.Client) {
	first, err := client.Put(ctx, "fruit/apple", "1")
	check(err)
	second, err := client.Put(ctx, "fruit/apple", "2", clientv3.WithPrevKV())
	check(err)
	expect(second.Header.Revision == first.Header.Revision+1, "a put has the next revision")
	expect(string(second.PrevKv.Value) == "1", "the value before")
	past, err := client.Get(ctx, "fruit/apple", clientv3.WithRev(first.Header.Revision))
	check(err)
	expect(string(past.Kvs[0].Value) == "1" && past.Kvs[0].Version == 1, "a value at a revision")
	_, err = client.Get(ctx, "fruit/apple", clientv3.WithRev(second.Header.Revision+1))
	expect(errors.Is(err, rpctypes.ErrFutureRev), "a future revision")
	_, err = client.Compact(ctx, second.Header.Revision)
	check(err)
	_, err = client.Get(ctx, "fruit/apple", clientv3.WithRev(first.Header.Revision))
	expect(errors.Is(err, rpctypes.ErrCompacted), "a compacted revision")
	_, err = client.Put(ctx, "", "x")
	expect(errors.Is(err, rpctypes.ErrEmptyKey), "an empty key")
}

func transactions(ctx context.Context, client *clientv3.Client) {
	buy := func() *clientv3.TxnResponse {
		response, err := client.Txn(ctx).
			If(clientv3.Compare(clientv3.Value("fruit/apple"), "=", "2")).
			Then(clientv3.OpPut("fruit/apple", "1"), clientv3.OpPut("sold/apple", "1")).
			Else(clientv3.OpGet("fruit/", clientv3.WithPrefix(), clientv3.WithCountOnly())).
			Commit()
		check(err)
		return response
	}
	expect(buy().Succeeded, "the comparison holds")
	again := buy()
	expect(!again.Succeeded && again.Responses[0].GetResponseRange().Count == 1, "the comparison does not hold any more")
	_, err := client.Txn(ctx).Then(clientv3.OpPut("a", "1"), clientv3.OpPut("a", "2")).Commit()
	expect(errors.Is(err, rpctypes.ErrDuplicateKey), "a key that is put twice")
}

func leases(ctx context.Context, client *clientv3.Client) {
	granted, err := client.Grant(ctx, 60)
	check(err)
	_, err = client.Put(ctx, "session/1", "here", clientv3.WithLease(granted.ID))
	check(err)
	alive, err := client.KeepAliveOnce(ctx, granted.ID)
	check(err)
	expect(alive.TTL == 60, "a lease that is kept alive has its whole time")
	left, err := client.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys())
	check(err)
	expect(len(left.Keys) == 1 && left.GrantedTTL == 60, "the keys of a lease")
	_, err = client.Revoke(ctx, granted.ID)
	check(err)
	gone, err := client.Get(ctx, "session/1")
	check(err)
	expect(gone.Count == 0, "a key ends with its lease")
	_, err = client.KeepAliveOnce(ctx, granted.ID)
	expect(errors.Is(err, rpctypes.ErrLeaseNotFound), "a lease that has ended")
}

func locks(ctx context.Context, client *clientv3.Client) {
	first, err := concurrency.NewSession(client)
	check(err)
	second, err := concurrency.NewSession(client)
	check(err)
	mine, other := concurrency.NewMutex(first, "lock"), concurrency.NewMutex(second, "lock")
	check(mine.Lock(ctx))
	expect(errors.Is(other.TryLock(ctx), concurrency.ErrLocked), "a lock that is held")
	locked := make(chan error)
	go func() { locked <- other.Lock(ctx) }()
	time.Sleep(100 * time.Millisecond)
	check(mine.Unlock(ctx))
	check(<-locked)
	check(other.Unlock(ctx))
	check(first.Close())
	check(second.Close())
}

func elections(ctx context.Context, client *clientv3.Client) {
	session, err := concurrency.NewSession(client)
	check(err)
	election := concurrency.NewElection(session, "leader")
	check(election.Campaign(ctx, "me"))
	leader, err := election.Leader(ctx)
	check(err)
	expect(string(leader.Kvs[0].Value) == "me", "the leader")
	check(election.Proclaim(ctx, "still me"))
	check(election.Resign(ctx))
	_, err = election.Leader(ctx)
	expect(errors.Is(err, concurrency.ErrElectionNoLeader), "no leader")
	check(session.Close())
}

// watches sees each change once and in order, although the server is killed in between.
func watches(ctx context.Context, client *clientv3.Client) {
	before, err := client.Get(ctx, "watched")
	check(err)
	const puts = 200
	events := client.Watch(ctx, "watched/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(before.Header.Revision+1))
	put := func(number int) {
		key := fmt.Sprintf("watched/%d", number%7)
		for {
			_, err := client.Put(ctx, key, fmt.Sprint(number))
			if err == nil {
				return
			}
			// The server is on its way back. The put is repeated, so the watch may see it twice.
			time.Sleep(20 * time.Millisecond)
			check(ctx.Err())
		}
	}
	for number := 0; number < puts/2; number++ {
		put(number)
	}
	fmt.Println("kill")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
	for number := puts / 2; number < puts; number++ {
		put(number)
	}
	revision, next := before.Header.Revision, 0
	for response := range events {
		check(response.Err())
		for _, event := range response.Events {
			expect(event.Kv.ModRevision == revision+1, "each change comes once and in order")
			revision = event.Kv.ModRevision
			if string(event.Kv.Value) == fmt.Sprint(next) {
				next++
			}
			expect(string(event.Kv.Value) == fmt.Sprint(next-1), "no change is missing")
			expect(event.PrevKv == nil == event.IsCreate(), "the value before")
		}
		if next == puts {
			return
		}
	}
	expect(false, "the watch ended")
}
