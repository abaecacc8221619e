package lab;

import java.nio.ByteBuffer;
import java.nio.file.Path;

/**
 * What a driver asks of a store that is open. Buffers that come in are direct, and their position and limit are the bytes
 * that are meant; a store may move the position.
 */
interface Store extends AutoCloseable {
    /** What one thread works with, from its first operation to its last. */
    Worker worker() throws Exception;

    /** Returns when everything acknowledged so far survives power loss. */
    void sync() throws Exception;

    /** Makes the files as small as the store can. */
    void compact() throws Exception;

    /** Keeps the present state as a store in a directory that does not exist yet. */
    void checkpoint(Path directory) throws Exception;

    /** Hands on pairs in key order, from the first key that is not below {@code from}; returns how many. */
    long list(byte[] from, long limit, Pairs pairs) throws Exception;

    @Override
    void close() throws Exception;

    /** Takes one pair. */
    interface Pairs {
        void pair(ByteBuffer key, ByteBuffer value) throws Exception;
    }

    /** One thread's access. Each call is a commit of its own, but for those between {@code begin} and {@code commit}. */
    interface Worker extends AutoCloseable {
        void put(ByteBuffer key, ByteBuffer value) throws Exception;

        void delete(ByteBuffer key) throws Exception;

        /** The value, valid until the next call; null when there is none. */
        ByteBuffer get(ByteBuffer key) throws Exception;

        void begin() throws Exception;

        void add(ByteBuffer key, ByteBuffer value) throws Exception;

        void remove(ByteBuffer key) throws Exception;

        void commit() throws Exception;

        @Override
        void close() throws Exception;
    }

    /** The error of what a store cannot do. It is shown as n/a and fails nothing. */
    final class Unsupported extends Exception {
        Unsupported(String reason) {
            super(reason);
        }
    }
}
