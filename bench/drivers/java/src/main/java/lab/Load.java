package lab;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A load: the pairs and operations that the lab wrote into files, done by some threads on an open store. The clock is read
 * once for each operation, or for each commit of several.
 */
final class Load {
    private static final int PUT = 0;
    private static final int GET = 1;
    private static final int DELETE = 2;
    private static final int GET_ABSENT = 3;
    private static final long STEP_NANOS = 50_000_000;

    private final Store store;
    private final ByteBuffer pairs;
    private final ByteBuffer operations;
    private final int keyBytes;
    private final int valueBytes;
    private final int count;
    private final int workers;
    private final int commit;
    private final long nanos;
    private final AtomicReference<String> wrong = new AtomicReference<>();
    private volatile Throwable failure;
    private volatile boolean ended;
    private long started;

    Load(Store store, String[] words) throws IOException {
        this.store = store;
        pairs = mapped(words[1]);
        keyBytes = Integer.parseInt(words[2]);
        valueBytes = Integer.parseInt(words[3]);
        operations = mapped(words[4]).order(ByteOrder.LITTLE_ENDIAN);
        count = operations.capacity() / 4;
        workers = Integer.parseInt(words[5]);
        commit = (int) Math.min(Long.parseLong(words[6]), Math.max(1, count));
        nanos = Long.parseLong(words[7]);
    }

    /** A file of the lab, every page of it touched, so that this is not in the measured time. */
    static MappedByteBuffer mapped(String path) throws IOException {
        try (FileChannel file = FileChannel.open(Path.of(path), StandardOpenOption.READ)) {
            return file.map(FileChannel.MapMode.READ_ONLY, 0, file.size()).load();
        }
    }

    /** Does it, and returns the answer. */
    String run() throws Exception {
        Worker[] crew = new Worker[workers];
        CyclicBarrier begin = new CyclicBarrier(workers, () -> started = System.nanoTime());
        int each = (count + workers - 1) / workers;
        for (int number = 0; number < workers; number++) {
            int from = (int) Math.min((long) number * each, count);
            crew[number] = new Worker(store.worker(), begin, from, Math.min(from + each, count));
        }
        // Only when all are there: one that is missing would be waited for at the start.
        for (Worker worker : crew) {
            worker.start();
        }
        for (Worker worker : crew) {
            worker.join();
        }
        long elapsed = System.nanoTime() - started;
        if (failure != null) {
            throw new Exception(failure);
        }
        return answer(crew, elapsed);
    }

    private String answer(Worker[] crew, long elapsed) {
        StringBuilder line = new StringBuilder("{\"nanos\":").append(elapsed).append(",\"workers\":[");
        Latencies latencies = new Latencies();
        long[] timeline = new long[0];
        for (int number = 0; number < crew.length; number++) {
            Worker worker = crew[number];
            line.append(number == 0 ? "[" : ",[").append(worker.done).append(',').append(worker.cpuNanos).append(']');
            latencies.add(worker.latencies);
            timeline = Arrays.copyOf(timeline, Math.max(timeline.length, worker.steps));
            for (int step = 0; step < worker.steps; step++) {
                timeline[step] += worker.timeline[step];
            }
        }
        line.append("],\"latencies\":");
        latencies.write(line);
        line.append(",\"timeline\":").append(Arrays.toString(timeline).replace(" ", ""));
        line.append(",\"wrong\":").append(wrong.get()).append('}');
        return line.toString();
    }

    /** One thread with its share of the operations. */
    private final class Worker extends Thread {
        private final Store.Worker access;
        private final CyclicBarrier begin;
        private final int from;
        private final int to;
        private final ByteBuffer key = pairs.duplicate();
        private final ByteBuffer value = pairs.duplicate();
        private final Latencies latencies = new Latencies();
        private long[] timeline = new long[256];
        private int steps;
        private long done;
        private long cpuNanos;

        Worker(Store.Worker access, CyclicBarrier begin, int from, int to) {
            this.access = access;
            this.begin = begin;
            this.from = from;
            this.to = to;
        }

        @Override
        public void run() {
            try (access) {
                begin.await();
                var threads = ManagementFactory.getThreadMXBean();
                long before = threads.getCurrentThreadCpuTime();
                work();
                cpuNanos = threads.getCurrentThreadCpuTime() - before;
            } catch (Throwable error) {
                failure = error;
                ended = true;
            }
        }

        private void work() throws Exception {
            long last = System.nanoTime();
            int at = from;
            while (at < to && !ended && last - started < nanos) {
                int next = (int) Math.min((long) at + commit, to);
                if (commit == 1) {
                    one(at);
                } else {
                    together(at, next);
                }
                long now = System.nanoTime();
                latencies.record(now - last);
                last = now;
                count(now, next - at);
                done += next - at;
                at = next;
            }
        }

        private void count(long now, int operations) {
            int step = (int) ((now - started) / STEP_NANOS);
            if (step >= timeline.length) {
                timeline = Arrays.copyOf(timeline, Math.max(step + 1, timeline.length * 2));
            }
            timeline[step] += operations;
            steps = Math.max(steps, step + 1);
        }

        /** Points the buffers at the pair of an operation, and returns what is done with it. */
        private int pointAt(int number) {
            int word = operations.getInt(number * 4);
            int start = (word & 0x3fff_ffff) * (keyBytes + valueBytes);
            key.limit(start + keyBytes).position(start);
            value.limit(start + keyBytes + valueBytes).position(start + keyBytes);
            return word >>> 30;
        }

        private void one(int number) throws Exception {
            switch (pointAt(number)) {
                case PUT -> access.put(key, value);
                case DELETE -> access.delete(key);
                case GET -> {
                    ByteBuffer found = access.get(key);
                    if (found == null || !found.equals(value)) {
                        wrongAt(number, found);
                    }
                }
                default -> {
                    ByteBuffer found = access.get(key);
                    if (found != null) {
                        wrongAt(number, found);
                    }
                }
            }
        }

        private void together(int first, int end) throws Exception {
            access.begin();
            for (int number = first; number < end; number++) {
                int operation = pointAt(number);
                if (operation == GET || operation == GET_ABSENT) {
                    throw new IllegalArgumentException("reads have no commit");
                }
                if (operation == PUT) {
                    access.add(key, value);
                } else {
                    access.remove(key);
                }
            }
            access.commit();
        }

        /** The first wrong value ends the load. */
        private void wrongAt(int number, ByteBuffer found) {
            String text = found == null ? "null" : '"' + hex(found) + '"';
            wrong.compareAndSet(null, "{\"operation\":" + number + ",\"found\":" + text + "}");
            ended = true;
        }
    }

    private static String hex(ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return HexFormat.of().formatHex(copy);
    }
}
