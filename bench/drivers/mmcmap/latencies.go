package main

import "math/bits"

// 1,024 buckets for each power of two: none is wider than a thousandth.
const bucketBits = 10

// Times from 2^42 nanoseconds (73 minutes) on count as that long.
const nanosMax = 1<<42 - 1

// How many operations took how long, which the lab reads as pairs of nanoseconds and a count. The buckets take no lock:
// each goroutine has its own.
type latencies [(42-bucketBits)<<bucketBits + 1<<bucketBits]uint64

func (l *latencies) record(nanos int64) {
	if nanos < 0 {
		nanos = 0
	}
	if nanos > nanosMax {
		nanos = nanosMax
	}
	l[bucket(uint64(nanos))]++
}

func (l *latencies) add(other *latencies) {
	for at, count := range other {
		l[at] += count
	}
}

func bucket(nanos uint64) int {
	shift := bits.Len64(nanos|1) - 1 - bucketBits
	if shift < 0 {
		shift = 0
	}
	return shift<<bucketBits + int(nanos>>shift)
}

// The largest time that falls into a bucket.
func top(bucket int) uint64 {
	shift := bucket>>bucketBits - 1
	if shift < 0 {
		shift = 0
	}
	return uint64(bucket-shift<<bucketBits+1)<<shift - 1
}

// As the protocol has it.
func (l *latencies) counted() [][2]uint64 {
	counted := [][2]uint64{}
	for at, count := range l {
		if count > 0 {
			counted = append(counted, [2]uint64{top(at), count})
		}
	}
	return counted
}
