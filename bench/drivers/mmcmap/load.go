package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// What is done with a pair, in the upper two bits of a word.
const (
	put = iota
	get
	remove
	getAbsent
)

// What has to be in a word beside that: the place of the pair.
const placeMask = 1<<30 - 1

// One step of the timeline.
const step = 50 * time.Millisecond

// A load: the pairs and operations that the lab wrote into files, done by some goroutines on an open store. The clock is
// read once for each operation.
type load struct {
	store      *store
	pairs      []byte
	operations []byte
	keyBytes   int
	valueBytes int
	count      int
	workers    int
	nanos      int64
	started    time.Time
	isOver     atomic.Bool
	wrong      atomic.Pointer[wrong]
	failure    atomic.Pointer[error]
}

// The first wrong value.
type wrong struct {
	Operation int     `json:"operation"`
	Found     *string `json:"found"`
}

type ran struct {
	Nanos     int64       `json:"nanos"`
	Workers   [][2]int64  `json:"workers"`
	Latencies [][2]uint64 `json:"latencies"`
	Timeline  []uint64    `json:"timeline"`
	Wrong     *wrong      `json:"wrong"`
}

// One goroutine with its share of the operations.
type worker struct {
	load      *load
	from, to  int
	done      int64
	latencies *latencies
	timeline  []uint64
}

// Does what the words of a request say, without the first of them.
func run(store *store, words []string) (*ran, error) {
	numbers := make(map[int]int64)
	for _, at := range []int{1, 2, 4, 5, 6} {
		number, err := strconv.ParseInt(words[at], 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[at] = number
	}
	pairs, err := mapped(words[0])
	if err != nil {
		return nil, err
	}
	defer unmap(pairs)
	operations, err := mapped(words[3])
	if err != nil {
		return nil, err
	}
	defer unmap(operations)
	l := &load{
		store:      store,
		pairs:      pairs,
		operations: operations,
		keyBytes:   int(numbers[1]),
		valueBytes: int(numbers[2]),
		count:      len(operations) / 4,
		workers:    int(numbers[4]),
		nanos:      numbers[6],
	}
	if l.keyBytes <= 0 || l.valueBytes < 0 || l.workers <= 0 {
		return nil, errors.New("a load has keys and threads")
	}
	if err := l.possible(numbers[5]); err != nil {
		return nil, err
	}
	return l.run()
}

// A file of the lab, every page of it touched, so that this is not in the measured time.
func mapped(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	information, err := file.Stat()
	if err != nil || information.Size() == 0 {
		return nil, err
	}
	flags := syscall.MAP_SHARED | syscall.MAP_POPULATE
	return syscall.Mmap(int(file.Fd()), 0, int(information.Size()), syscall.PROT_READ, flags)
}

func unmap(bytes []byte) {
	if bytes != nil {
		// What cannot be unmapped stays mapped; the process ends soon.
		_ = syscall.Munmap(bytes)
	}
}

// Looks through the operations before the clock starts: refuses what the store cannot do, and what is no load.
func (l *load) possible(commit int64) error {
	places := len(l.pairs) / (l.keyBytes + l.valueBytes)
	var kinds [4]bool
	for number := 0; number < l.count; number++ {
		kind, place := l.word(number)
		if place >= places {
			return fmt.Errorf("an operation names pair %d of %d", place, places)
		}
		kinds[kind] = true
	}
	// One operation is a commit of its own, whatever the size that was asked for.
	if commit > 1 && l.count > 1 {
		return hasNoCommits
	}
	if (kinds[put] || kinds[remove]) && l.store.torn != nil {
		return l.store.torn
	}
	if kinds[remove] {
		return l.store.canDelete()
	}
	return nil
}

func (l *load) word(number int) (kind, place int) {
	word := binary.LittleEndian.Uint32(l.operations[number*4:])
	return int(word >> 30), int(word & placeMask)
}

func (l *load) run() (*ran, error) {
	each := (l.count + l.workers - 1) / l.workers
	crew := make([]*worker, l.workers)
	var ready, ended sync.WaitGroup
	begin := make(chan struct{})
	for number := range crew {
		from := min(number*each, l.count)
		one := &worker{load: l, from: from, to: min(from+each, l.count), latencies: new(latencies)}
		crew[number] = one
		ready.Add(1)
		ended.Add(1)
		go func() {
			defer ended.Done()
			ready.Done()
			<-begin
			if err := one.work(); err != nil {
				l.failure.CompareAndSwap(nil, &err)
				l.isOver.Store(true)
			}
		}()
	}
	ready.Wait()
	before := processorNanos()
	l.started = time.Now()
	close(begin)
	ended.Wait()
	elapsed := time.Since(l.started)
	used := processorNanos() - before
	if failure := l.failure.Load(); failure != nil {
		return nil, *failure
	}
	return l.answer(crew, elapsed, used), nil
}

func (l *load) answer(crew []*worker, elapsed time.Duration, used int64) *ran {
	answer := &ran{Nanos: int64(elapsed), Timeline: []uint64{}, Wrong: l.wrong.Load()}
	all := new(latencies)
	for _, one := range crew {
		answer.Workers = append(answer.Workers, [2]int64{one.done, used / int64(len(crew))})
		all.add(one.latencies)
		for at, count := range one.timeline {
			if at == len(answer.Timeline) {
				answer.Timeline = append(answer.Timeline, 0)
			}
			answer.Timeline[at] += count
		}
	}
	answer.Latencies = all.counted()
	return answer
}

// The processor time of all threads so far: a goroutine has none of its own.
func processorNanos() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func (w *worker) work() error {
	l := w.load
	// One clock for all: nanoseconds since the common start.
	last := int64(time.Since(l.started))
	for at := w.from; at < w.to && last < l.nanos && !l.isOver.Load(); at++ {
		if err := w.one(at); err != nil {
			return err
		}
		now := int64(time.Since(l.started))
		w.latencies.record(now - last)
		last = now
		w.done++
		now /= int64(step)
		for len(w.timeline) <= int(now) {
			w.timeline = append(w.timeline, 0)
		}
		w.timeline[now]++
	}
	return nil
}

func (w *worker) one(number int) error {
	l := w.load
	kind, place := l.word(number)
	start := place * (l.keyBytes + l.valueBytes)
	key := l.pairs[start : start+l.keyBytes]
	value := l.pairs[start+l.keyBytes : start+l.keyBytes+l.valueBytes]
	switch kind {
	case put:
		return l.store.put(key, value)
	case remove:
		return l.store.delete(key)
	}
	found, err := l.store.get(key)
	if err != nil {
		return err
	}
	if kind == get && (found == nil || !bytes.Equal(found, value)) || kind == getAbsent && found != nil {
		l.wrongAt(number, found)
	}
	return nil
}

// The first wrong value ends the load.
func (l *load) wrongAt(number int, found []byte) {
	first := &wrong{Operation: number}
	if found != nil {
		text := hex.EncodeToString(found)
		first.Found = &text
	}
	l.wrong.CompareAndSwap(nil, first)
	l.isOver.Store(true)
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}
