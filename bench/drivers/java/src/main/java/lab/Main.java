package lab;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.HexFormat;
import java.util.List;
import org.lmdbjava.TargetName;
import org.rocksdb.RocksDB;
import org.rocksdb.util.Environment;

/**
 * A driver of the lab: answers requests of the line protocol (docs/lab/drivers.md) for lmdbjava or rocksdbjni. Only answers
 * go to the standard output. With {@code unpack DIRECTORY} in place of a name it puts the libraries of both where the
 * lab's command line tells them to be found.
 */
public final class Main {
    /** Operations of each kind before anything is measured: enough for the compiler of the virtual machine. */
    private static final int WARM_UP = 50_000;
    private static final int CHUNK_BYTES = 1 << 20;

    private final String name;
    private Store store;

    private Main(String name) {
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("unpack")) {
            unpack(Path.of(arguments[1]));
            return;
        }
        PrintStream answers = System.out;
        // A library that prints would print into the protocol.
        System.setOut(System.err);
        System.setProperty("lmdbjava.disable.checks", "true");
        if (arguments[0].equals("rocksdbjni")) {
            RocksDB.loadLibrary();
        }
        Main driver = new Main(arguments[0]);
        var requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.write((driver.answer(line) + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    private static void unpack(Path directory) throws IOException {
        unpack(TargetName.RESOLVED_FILENAME, directory.resolve("liblmdb.so"));
        String rocksdb = Environment.getJniLibraryFileName("rocksdb");
        unpack(rocksdb, directory.resolve(rocksdb));
    }

    private static void unpack(String resource, Path target) throws IOException {
        try (InputStream file = Main.class.getClassLoader().getResourceAsStream(resource)) {
            if (file == null) {
                throw new IOException("there is no library " + resource + " for this machine");
            }
            Files.copy(file, target, StandardCopyOption.REPLACE_EXISTING);
        }
    }

    private String answer(String line) {
        try {
            return answer(line.split("\t", -1));
        } catch (Store.Unsupported reason) {
            return "{\"unsupported\":" + json(reason.getMessage()) + "}";
        } catch (Throwable error) {
            error.printStackTrace();
            return "{\"error\":" + json(error.toString()) + "}";
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "hello":
                return hello();
            case "open":
                open(Path.of(words[1]), words[2], Long.parseLong(words[3]));
                return "{}";
            case "run":
                return new Load(opened(), words).run();
            case "fetch":
                fetch(words[1], Integer.parseInt(words[2]), words[3]);
                return "{}";
            case "list":
                return list(HexFormat.of().parseHex(words[1]), Long.parseLong(words[2]), words[3]);
            case "sync":
                opened().sync();
                return "{}";
            case "compact":
                opened().compact();
                return "{}";
            case "checkpoint":
                opened().checkpoint(Path.of(words[1]));
                return "{}";
            case "close":
                opened().close();
                store = null;
                return "{}";
            default:
                throw new IllegalArgumentException("not a request: " + words[0]);
        }
    }

    private Store opened() {
        if (store == null) {
            throw new IllegalStateException("no store is open");
        }
        return store;
    }

    private void open(Path directory, String durability, long cacheBytes) throws Exception {
        if (store != null) {
            throw new IllegalStateException("a store is open already");
        }
        store = switch (name) {
            case "lmdbjava" -> new LmdbStore(directory, durability);
            case "rocksdbjni" -> new RocksStore(directory, durability, cacheBytes);
            default -> throw new IllegalArgumentException("there is no driver for " + name);
        };
    }

    private String hello() {
        Description description = switch (name) {
            case "lmdbjava" -> LmdbStore.description();
            case "rocksdbjni" -> RocksStore.description();
            default -> throw new IllegalArgumentException("there is no driver for " + name);
        };
        String version = description.version() + ", Java " + Runtime.version();
        StringBuilder classes = new StringBuilder();
        List<String> parts = description.classes();
        for (int at = 0; at < parts.size(); at += 2) {
            classes.append(at == 0 ? "[" : ",[").append(json(parts.get(at))).append(',');
            classes.append(json(parts.get(at + 1))).append(']');
        }
        String options = String.join(",", description.options().stream().map(Main::json).toList());
        return "{\"protocol\":1,\"name\":" + json(name) + ",\"version\":" + json(version) + ",\"classes\":[" + classes
                + "],\"options\":[" + options + "],\"persistent\":true,\"warm_up\":" + WARM_UP + "}";
    }

    /** Reads keys one after another and writes what was found, for the lab to look at. */
    private void fetch(String file, int keyBytes, String out) throws Exception {
        ByteBuffer keys = Load.mapped(file);
        try (Store.Worker access = opened().worker();
                Out found = new Out(out)) {
            for (int start = 0; start < keys.capacity(); start += keyBytes) {
                keys.limit(start + keyBytes).position(start);
                found.write(access.get(keys));
            }
        }
    }

    private String list(byte[] from, long limit, String out) throws Exception {
        try (Out listed = new Out(out)) {
            long count = opened().list(from, limit, (key, value) -> {
                listed.write(key);
                listed.write(value);
            });
            return "{\"count\":" + count + "}";
        }
    }

    /** Bytes in a buffer outside of the Java heap, which libraries read by address. */
    static ByteBuffer direct(byte[] bytes) {
        return ByteBuffer.allocateDirect(bytes.length).put(bytes).flip();
    }

    /** A string of JSON. */
    private static String json(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char letter : String.valueOf(text).toCharArray()) {
            if (letter == '"' || letter == '\\') {
                quoted.append('\\').append(letter);
            } else if (letter < ' ') {
                quoted.append(String.format("\\u%04x", (int) letter));
            } else {
                quoted.append(letter);
            }
        }
        return quoted.append('"').toString();
    }

    /** A file of the lab that takes bytes with their length before them; a length of -1 is nothing. */
    private static final class Out implements AutoCloseable {
        private final FileChannel file;
        private final ByteArrayOutputStream waiting = new ByteArrayOutputStream();
        private final ByteBuffer length = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN);

        Out(String path) throws IOException {
            file = FileChannel.open(Path.of(path), StandardOpenOption.WRITE);
        }

        void write(ByteBuffer bytes) throws IOException {
            waiting.writeBytes(length.putInt(0, bytes == null ? -1 : bytes.remaining()).array());
            if (bytes != null) {
                byte[] copy = new byte[bytes.remaining()];
                bytes.get(copy);
                waiting.writeBytes(copy);
            }
            if (waiting.size() >= CHUNK_BYTES) {
                flush();
            }
        }

        private void flush() throws IOException {
            ByteBuffer bytes = ByteBuffer.wrap(waiting.toByteArray());
            while (bytes.hasRemaining()) {
                file.write(bytes);
            }
            waiting.reset();
        }

        @Override
        public void close() throws IOException {
            flush();
            file.close();
        }
    }
}
