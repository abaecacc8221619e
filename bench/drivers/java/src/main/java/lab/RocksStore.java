package lab;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.List;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.BloomFilter;
import org.rocksdb.Checkpoint;
import org.rocksdb.CompressionType;
import org.rocksdb.FlushOptions;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.ReadOptions;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksDBException;
import org.rocksdb.RocksIterator;
import org.rocksdb.WriteBatch;
import org.rocksdb.WriteOptions;

/**
 * RocksDB through rocksdbjni, with the options of the lab's own peer for RocksDB. {@code written} is RocksDB as it comes;
 * {@code synced} sets {@code sync} in the options of each write.
 */
final class RocksStore implements Store {
    private final LRUCache cache;
    private final BloomFilter filter;
    private final Options options;
    private final WriteOptions writeOptions;
    private final ReadOptions readOptions;
    private final RocksDB database;

    RocksStore(Path directory, String durability, long cacheBytes) throws RocksDBException {
        cache = new LRUCache(cacheBytes);
        filter = new BloomFilter(10, false);
        options = new Options()
                .setCreateIfMissing(true)
                .setTableFormatConfig(new BlockBasedTableConfig().setBlockCache(cache).setFilterPolicy(filter))
                .setCompressionType(CompressionType.LZ4_COMPRESSION)
                .setIncreaseParallelism(Runtime.getRuntime().availableProcessors());
        writeOptions = new WriteOptions().setSync(durability.equals("synced"));
        readOptions = new ReadOptions();
        database = RocksDB.open(options, directory.toString());
    }

    static Description description() {
        return new Description(
                "RocksDB " + RocksDB.rocksdbVersion() + " through rocksdbjni " + Description.built("Rocksdbjni-Version"),
                List.of("synced", "WriteOptions.sync", "written", "as it comes"),
                List.of(
                        "bloom filter of 10 bits a key: what everybody who reads at random sets",
                        "block cache as for every store that has a cache",
                        "LZ4, which fjall has by default too",
                        "background threads: one for each processor",
                        "keys and values in direct buffers: no copy into the Java heap"));
    }

    @Override
    public Worker worker() {
        return new Thread();
    }

    @Override
    public void sync() throws RocksDBException {
        database.flushWal(true);
    }

    @Override
    public void compact() throws RocksDBException {
        try (FlushOptions flush = new FlushOptions()) {
            database.flush(flush);
        }
        database.compactRange();
    }

    @Override
    public void checkpoint(Path directory) throws RocksDBException {
        try (Checkpoint checkpoint = Checkpoint.create(database)) {
            checkpoint.createCheckpoint(directory.toString());
        }
    }

    @Override
    public long list(byte[] from, long limit, Pairs taker) throws Exception {
        try (RocksIterator iterator = database.newIterator(readOptions)) {
            iterator.seek(from);
            long count = 0;
            while (iterator.isValid() && count < limit) {
                taker.pair(ByteBuffer.wrap(iterator.key()), ByteBuffer.wrap(iterator.value()));
                count++;
                iterator.next();
            }
            iterator.status();
            return count;
        }
    }

    @Override
    public void close() throws RocksDBException {
        database.flushWal(true);
        database.closeE();
        readOptions.close();
        writeOptions.close();
        options.close();
        filter.close();
        cache.close();
    }

    /** One thread: its batch and its buffer for values are used again. */
    private final class Thread implements Worker {
        private final WriteBatch batch = new WriteBatch();
        private ByteBuffer value = ByteBuffer.allocateDirect(4096);

        @Override
        public void put(ByteBuffer key, ByteBuffer value) throws RocksDBException {
            database.put(writeOptions, key, value);
        }

        @Override
        public void delete(ByteBuffer key) throws RocksDBException {
            database.delete(writeOptions, key);
        }

        @Override
        public ByteBuffer get(ByteBuffer key) throws RocksDBException {
            int start = key.position();
            value.clear();
            int length = database.get(readOptions, key, value);
            if (length == RocksDB.NOT_FOUND) {
                return null;
            }
            if (length > value.capacity()) {
                // The buffer was too small, and got a part only.
                value = ByteBuffer.allocateDirect(length);
                key.position(start);
                database.get(readOptions, key, value);
            }
            return value;
        }

        @Override
        public void begin() {
            batch.clear();
        }

        @Override
        public void add(ByteBuffer key, ByteBuffer value) throws RocksDBException {
            batch.put(key, value);
        }

        @Override
        public void remove(ByteBuffer key) throws RocksDBException {
            batch.delete(key);
        }

        @Override
        public void commit() throws RocksDBException {
            database.write(writeOptions, batch);
        }

        @Override
        public void close() {
            batch.close();
        }
    }
}
