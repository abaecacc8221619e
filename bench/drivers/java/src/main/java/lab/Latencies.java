package lab;

/**
 * How many operations took how long, in buckets of a thousandth: 1,024 for each power of two, which the lab reads as pairs
 * of nanoseconds and a count. The buckets take no lock: each thread has its own.
 */
final class Latencies {
    private static final int BITS = 10;
    private static final int EACH = 1 << BITS;
    /** Times from 2^42 nanoseconds (73 minutes) on count as that long. */
    private static final long MAX = (1L << 42) - 1;

    private final long[] counts = new long[bucket(MAX) + 1];

    void record(long nanos) {
        counts[bucket(Math.min(Math.max(nanos, 0), MAX))]++;
    }

    void add(Latencies other) {
        for (int at = 0; at < counts.length; at++) {
            counts[at] += other.counts[at];
        }
    }

    private static int bucket(long nanos) {
        int shift = Math.max(0, 63 - Long.numberOfLeadingZeros(nanos | 1) - BITS);
        return (shift << BITS) + (int) (nanos >>> shift);
    }

    /** The largest time that falls into a bucket. */
    private static long top(int bucket) {
        int shift = Math.max(0, (bucket >>> BITS) - 1);
        long step = bucket - ((long) shift << BITS);
        return ((step + 1) << shift) - 1;
    }

    /** As the protocol has it. */
    void write(StringBuilder line) {
        line.append('[');
        boolean first = true;
        for (int at = 0; at < counts.length; at++) {
            if (counts[at] > 0) {
                line.append(first ? "[" : ",[").append(top(at)).append(',').append(counts[at]).append(']');
                first = false;
            }
        }
        line.append(']');
    }
}
