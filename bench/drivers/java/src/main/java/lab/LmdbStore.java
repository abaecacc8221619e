package lab;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.lmdbjava.Cursor;
import org.lmdbjava.Dbi;
import org.lmdbjava.DbiFlags;
import org.lmdbjava.Env;
import org.lmdbjava.EnvFlags;
import org.lmdbjava.GetOp;
import org.lmdbjava.Meta;
import org.lmdbjava.Txn;

/**
 * LMDB through lmdbjava. {@code synced} is LMDB as it comes; {@code written} is MDB_NOSYNC without MDB_WRITEMAP: commits
 * go to the file by write calls and are never synced.
 */
final class LmdbStore implements Store {
    /** As the lab's own peer for LMDB: it takes no disk space. */
    private static final long MAP_BYTES = 64L << 30;
    private static final int READERS = 200;

    private final Env<ByteBuffer> environment;
    private final Dbi<ByteBuffer> pairs;

    LmdbStore(Path directory, String durability) {
        EnvFlags[] flags = durability.equals("synced") ? new EnvFlags[0] : new EnvFlags[] {EnvFlags.MDB_NOSYNC};
        environment = Env.create().setMapSize(MAP_BYTES).setMaxReaders(READERS).open(directory.toFile(), flags);
        pairs = environment.openDbi((String) null, DbiFlags.MDB_CREATE);
    }

    static Description description() {
        Meta.Version lmdb = Meta.version();
        return new Description(
                "LMDB " + lmdb.major + "." + lmdb.minor + "." + lmdb.patch + " through lmdbjava "
                        + Description.built("Lmdbjava-Version"),
                List.of("synced", "as it comes", "written", "MDB_NOSYNC; a power cut may lose the whole store"),
                List.of(
                        "map size " + (MAP_BYTES >> 30) + " GiB: the default of 1 MiB is too small for any load",
                        READERS + " reader slots: the default of 126 is less than some workloads need",
                        "a read transaction for each thread, renewed for each read: cheaper than a new one",
                        "--add-opens of java.nio and sun.nio.ch: lmdbjava reads the addresses of buffers there",
                        "lmdbjava.disable.checks: no checks of arguments, as callers from C have none",
                        "no cache of its own: the kernel's page cache"));
    }

    @Override
    public Worker worker() {
        return new Thread();
    }

    @Override
    public void sync() {
        environment.sync(true);
    }

    @Override
    public void compact() throws Unsupported {
        throw new Unsupported("cannot be compacted");
    }

    @Override
    public void checkpoint(Path directory) throws Exception {
        Files.createDirectory(directory);
        environment.copy(directory.toFile());
        try (var file = java.nio.channels.FileChannel.open(
                directory.resolve("data.mdb"), java.nio.file.StandardOpenOption.WRITE)) {
            file.force(true);
        }
    }

    @Override
    public long list(byte[] from, long limit, Pairs taker) throws Exception {
        try (Txn<ByteBuffer> moment = environment.txnRead();
                Cursor<ByteBuffer> cursor = pairs.openCursor(moment)) {
            // LMDB refuses the empty key that stands for the beginning.
            boolean found = from.length == 0 ? cursor.first() : cursor.get(Main.direct(from), GetOp.MDB_SET_RANGE);
            long count = 0;
            while (found && count < limit) {
                taker.pair(cursor.key(), cursor.val());
                count++;
                found = cursor.next();
            }
            return count;
        }
    }

    @Override
    public void close() {
        environment.close();
    }

    /** One thread: its transaction for reading is made once and renewed. */
    private final class Thread implements Worker {
        private Txn<ByteBuffer> reading;
        private Txn<ByteBuffer> writing;

        @Override
        public void put(ByteBuffer key, ByteBuffer value) {
            begin();
            add(key, value);
            commit();
        }

        @Override
        public void delete(ByteBuffer key) {
            begin();
            remove(key);
            commit();
        }

        @Override
        public ByteBuffer get(ByteBuffer key) {
            if (reading == null) {
                reading = environment.txnRead();
            } else {
                reading.reset();
                reading.renew();
            }
            return pairs.get(reading, key);
        }

        @Override
        public void begin() {
            writing = environment.txnWrite();
        }

        @Override
        public void add(ByteBuffer key, ByteBuffer value) {
            pairs.put(writing, key, value);
        }

        @Override
        public void remove(ByteBuffer key) {
            pairs.delete(writing, key);
        }

        @Override
        public void commit() {
            writing.commit();
            writing.close();
            writing = null;
        }

        @Override
        public void close() {
            if (writing != null) {
                writing.close();
            }
            if (reading != null) {
                reading.close();
            }
        }
    }
}
