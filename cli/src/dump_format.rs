//! The text format of `duramen dump` and `duramen load`, both ways, streaming.
//!
//! `docs/reference/dump-format.md` is its definition. In short:
//!
//! ```text
//! #duramen-dump 1
//! #map<TAB>orders<TAB>2             every map, with the number of its pairs
//! #pairs<TAB>orders                 the pairs of this map follow
//! o-1<TAB>apples
//! \x23-2<TAB>plums                  a key that begins with '#' has it escaped
//! #end<TAB>pairs=2<TAB>xxh3=6f...   count and checksum of all lines before: what has no end was cut off
//! ```
//!
//! The reader keeps one key and one value in memory, whatever the length of a line. It believes nothing: every
//! deviation is a failure that names the line.

use std::io::{self, BufRead, Write};

use duramen::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use xxhash_rust::xxh3::Xxh3;

use crate::exit::{Failure, Outcome};
use crate::text::{Notation, counted, escape, write_escapes};

const MAGIC: &str = "#duramen-dump ";
const VERSION: u32 = 1;
/// Maximum length of a line that begins with '#'. A name of 255 bytes, all escaped, fits well.
const DIRECTIVE_BYTES_MAX: usize = 4096;

/// A map as announced in the head of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedMap {
    pub name: String,
    /// `None` when the dump was written by hand and gives no count.
    pub pairs: Option<u64>,
}

/// Writes a dump.
pub struct DumpWriter<W> {
    out: Hashed<W>,
    pairs: u64,
}

/// Passes bytes on and hashes them.
struct Hashed<W> {
    out: W,
    hash: Xxh3,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> DumpWriter<W> {
    /// Writes the head.
    pub fn new(out: W, maps: &[AnnouncedMap]) -> io::Result<DumpWriter<W>> {
        let mut out = Hashed { out, hash: Xxh3::new() };
        writeln!(out, "{MAGIC}{VERSION}")?;
        for map in maps {
            write!(out, "#map\t{}", Notation::Escapes.show(map.name.as_bytes()))?;
            match map.pairs {
                Some(pairs) => writeln!(out, "\t{pairs}")?,
                None => writeln!(out)?,
            }
        }
        Ok(DumpWriter { out, pairs: 0 })
    }

    /// Starts the pairs of a map.
    pub fn map(&mut self, name: &str) -> io::Result<()> {
        writeln!(self.out, "#pairs\t{}", Notation::Escapes.show(name.as_bytes()))
    }

    pub fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.pairs += 1;
        let rest = match key.strip_prefix(b"#") {
            Some(rest) => {
                self.out.write_all(b"\\x23")?;
                rest
            }
            None => key,
        };
        write_escapes(&mut self.out, rest)?;
        self.out.write_all(b"\t")?;
        write_escapes(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Writes the end. Returns the number of pairs written.
    pub fn finish(mut self) -> io::Result<u64> {
        let hash = self.out.hash.digest();
        writeln!(self.out, "#end\tpairs={}\txxh3={hash:016x}", self.pairs)?;
        Ok(self.pairs)
    }
}

/// The next item of a dump.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// The pairs of this map follow.
    Map(String),
    /// A pair, available in [`DumpReader::key`] and [`DumpReader::value`].
    Pair,
    /// The end of the dump; count and checksum match.
    End,
}

/// Reads a dump.
pub struct DumpReader<R> {
    input: R,
    hash: Xxh3,
    /// Number of the line that the reader started last.
    line: u64,
    pairs: u64,
    has_map: bool,
    maps: Vec<AnnouncedMap>,
    /// The line that ended the head.
    pending: Option<String>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl<R: BufRead> DumpReader<R> {
    /// Reads the head.
    pub fn new(input: R) -> Outcome<DumpReader<R>> {
        let mut reader = DumpReader {
            input,
            hash: Xxh3::new(),
            line: 0,
            pairs: 0,
            has_map: false,
            maps: Vec::new(),
            pending: None,
            key: Vec::new(),
            value: Vec::new(),
        };
        reader.version()?;
        while reader.pending.is_none() && reader.peek()? == b'#' {
            let line = reader.directive()?;
            match line.strip_prefix("#map\t") {
                Some(fields) => reader.announced_map(&line, fields)?,
                None => reader.pending = Some(line),
            }
        }
        Ok(reader)
    }

    /// Returns the maps that the head announces.
    pub fn maps(&self) -> &[AnnouncedMap] {
        &self.maps
    }

    fn version(&mut self) -> Outcome<()> {
        let line = self.directive().unwrap_or_default();
        match line.strip_prefix(MAGIC).map(str::parse) {
            Some(Ok(VERSION)) => {
                self.hash_line(&line);
                Ok(())
            }
            Some(Ok(version)) if version > VERSION => Err(Failure::wrong_call(format!(
                "the dump has format {version}, this program reads up to {VERSION}; use a newer one"
            ))),
            _ => Err(Failure::wrong_call(format!(
                "this is not a dump: its first line is not `{MAGIC}{VERSION}`"
            ))),
        }
    }

    fn announced_map(&mut self, line: &str, fields: &str) -> Outcome<()> {
        self.hash_line(line);
        let (name, pairs) = match fields.split_once('\t') {
            Some((name, pairs)) => (name, Some(pairs.parse())),
            None => (fields, None),
        };
        let name = self.name(name)?;
        let pairs = pairs
            .transpose()
            .map_err(|_| self.problem("the number of pairs is not a number"))?;
        if self.maps.iter().any(|map| map.name == name) {
            return Err(self.problem(format!("the map {name:?} is announced twice")));
        }
        self.maps.push(AnnouncedMap { name, pairs });
        Ok(())
    }

    /// Reads the next item.
    pub fn next(&mut self) -> Outcome<Item> {
        let line = match self.pending.take() {
            Some(line) => line,
            None if self.peek()? == b'#' => self.directive()?,
            None if self.has_map => {
                self.pair()?;
                return Ok(Item::Pair);
            }
            None => return Err(self.problem("pairs before the first `#pairs` line")),
        };
        if let Some(name) = line.strip_prefix("#pairs\t") {
            self.hash_line(&line);
            let name = self.name(name)?;
            return self.begin_map(name);
        }
        match line.strip_prefix("#end") {
            Some(fields) if fields.is_empty() || fields.starts_with('\t') => self.end(fields),
            _ => Err(self.problem(format!("{line:?} is no line of this format"))),
        }
    }

    fn begin_map(&mut self, name: String) -> Outcome<Item> {
        if !self.maps.iter().any(|map| map.name == name) {
            return Err(self.problem(format!("the map {name:?} was not announced by a `#map` line")));
        }
        self.has_map = true;
        Ok(Item::Map(name))
    }

    /// Compares the count and checksum in the end line with those of the lines read.
    fn end(&mut self, fields: &str) -> Outcome<Item> {
        for field in fields.split('\t').skip(1) {
            let (what, found, announced) = match field.split_once('=') {
                Some(("pairs", announced)) => ("pairs", self.pairs.to_string(), announced),
                Some(("xxh3", announced)) => ("checksum", format!("{:016x}", self.hash.digest()), announced),
                _ => return Err(self.problem(format!("{field:?} is no part of an end line"))),
            };
            if announced != found {
                return Err(self.problem(format!(
                    "the dump was changed: {what} {found}, its end says {announced}"
                )));
            }
        }
        match fill(&mut self.input)? {
            [] => Ok(Item::End),
            _ => Err(self.problem("something follows after the end line")),
        }
    }

    fn pair(&mut self) -> Outcome<()> {
        self.line += 1;
        let mut key = std::mem::take(&mut self.key);
        let mut value = std::mem::take(&mut self.value);
        self.field(b'\t', "key", KEY_BYTES_MAX as u64, &mut key)?;
        self.field(b'\n', "value", VALUE_BYTES_MAX, &mut value)?;
        (self.key, self.value) = (key, value);
        self.pairs += 1;
        Ok(())
    }

    /// Reads up to `end`, and replaces escapes by the bytes they represent.
    fn field(&mut self, end: u8, what: &str, bytes_max: u64, field: &mut Vec<u8>) -> Outcome<()> {
        field.clear();
        loop {
            let stop = self.buffered(field)?;
            if field.len() as u64 > bytes_max {
                return Err(self.problem(format!("the {what} is longer than {bytes_max} bytes")));
            }
            match stop {
                None => {}
                Some(b'\\') => field.push(self.split_escape()?),
                Some(byte) if byte == end => return Ok(()),
                Some(b'\n') => return Err(self.problem("the line has no tab between key and value")),
                Some(byte) => return Err(self.problem(format!("a raw byte 0x{byte:02x} in the {what}"))),
            }
        }
    }

    /// Takes plain bytes and whole escapes from the buffer. Returns `None` at the end of the buffer. Otherwise it stops
    /// at the first byte that is neither, takes that byte too, and returns it.
    fn buffered(&mut self, field: &mut Vec<u8>) -> Outcome<Option<u8>> {
        let buffer = fill(&mut self.input)?;
        if buffer.is_empty() {
            return Err(self.cut_off());
        }
        let mut taken = 0;
        let stop = loop {
            let rest = &buffer[taken..];
            let plain = rest.iter().position(|&byte| byte < b' ' || byte == b'\\');
            let Some(plain) = plain else {
                field.extend_from_slice(rest);
                taken = buffer.len();
                break None;
            };
            field.extend_from_slice(&rest[..plain]);
            taken += plain + 1;
            match (rest[plain], escape(&rest[plain + 1..])) {
                (b'\\', Some((value, length))) => {
                    field.push(value);
                    taken += length;
                }
                (byte, _) => break Some(byte),
            }
        };
        self.hash.update(&buffer[..taken]);
        self.input.consume(taken);
        Ok(stop)
    }

    /// Reads what follows a backslash when the escape crosses the end of a buffer.
    fn split_escape(&mut self) -> Outcome<u8> {
        let mut text = [0; 3];
        for length in 1..=text.len() {
            text[length - 1] = self.byte()?;
            if let Some((value, _)) = escape(&text[..length]) {
                return Ok(value);
            }
            if text[0] != b'x' {
                break;
            }
        }
        Err(self.problem("a backslash that begins no escape"))
    }

    fn byte(&mut self) -> Outcome<u8> {
        let byte = self.peek()?;
        self.hash.update(&[byte]);
        self.input.consume(1);
        Ok(byte)
    }

    /// Reads a line that begins with '#'. The caller hashes it, because the end line is not part of its own checksum.
    fn directive(&mut self) -> Outcome<String> {
        self.line += 1;
        let mut line = Vec::new();
        loop {
            let buffer = fill(&mut self.input)?;
            if buffer.is_empty() {
                return Err(self.cut_off());
            }
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(buffer.len());
            line.extend_from_slice(&buffer[..taken.min(DIRECTIVE_BYTES_MAX + 1)]);
            self.input.consume(taken + end.is_some() as usize);
            if line.len() > DIRECTIVE_BYTES_MAX {
                return Err(self.problem("a line that is far too long"));
            }
            if end.is_some() {
                return String::from_utf8(line).map_err(|_| self.problem("a line that is not UTF-8"));
            }
        }
    }

    fn hash_line(&mut self, line: &str) {
        self.hash.update(line.as_bytes());
        self.hash.update(b"\n");
    }

    fn name(&self, text: &str) -> Outcome<String> {
        let name = Notation::Escapes
            .parse("map", text)
            .map_err(|failure| self.problem(failure.message))?;
        String::from_utf8(name).map_err(|_| self.problem("the name of a map is not UTF-8"))
    }

    fn peek(&mut self) -> Outcome<u8> {
        match fill(&mut self.input)?.first() {
            Some(&byte) => Ok(byte),
            None => Err(self.cut_off()),
        }
    }

    fn cut_off(&self) -> Failure {
        Failure::damaged(format!(
            "the dump was cut off: it ends after line {} and {} without its end line",
            self.line,
            counted(self.pairs, "pair")
        ))
    }

    fn problem(&self, problem: impl std::fmt::Display) -> Failure {
        Failure::damaged(format!("line {} of the dump: {problem}", self.line))
    }
}

/// Returns more input; the result is empty at the end.
fn fill(input: &mut impl BufRead) -> Outcome<&[u8]> {
    loop {
        // The second call exists because the borrow checker cannot see that no buffer survives an interruption.
        match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::of_io("reading the dump", &error)),
            Ok(_) => break,
        }
    }
    input
        .fill_buf()
        .map_err(|error| Failure::of_io("reading the dump", &error))
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;
    use crate::exit::Exit;

    type Pairs = Vec<(String, Vec<u8>, Vec<u8>)>;

    fn sample() -> Pairs {
        let pair = |map: &str, key: &[u8], value: &[u8]| (map.to_string(), key.to_vec(), value.to_vec());
        vec![
            pair("a\u{301}", b"", b""),
            pair("a\u{301}", b"#end", b"#\n\t\\"),
            pair("a\u{301}", b"\x00\xff", &[0; 300]),
            pair("z", "gr\u{fc}n".as_bytes(), b"x"),
        ]
    }

    fn written(pairs: &Pairs) -> Vec<u8> {
        let announced = ["a\u{301}", "empty", "z"].map(|name| AnnouncedMap {
            name: name.into(),
            pairs: Some(pairs.iter().filter(|pair| pair.0 == name).count() as u64),
        });
        let mut bytes = Vec::new();
        let mut writer = DumpWriter::new(&mut bytes, &announced).unwrap();
        for map in &announced {
            writer.map(&map.name).unwrap();
            let of_map = pairs.iter().filter(|pair| pair.0 == map.name);
            of_map.for_each(|(_, key, value)| writer.pair(key, value).unwrap());
        }
        assert_eq!(writer.finish().unwrap(), pairs.len() as u64);
        bytes
    }

    /// Reads with a given buffer length. The tests try many lengths, so a buffer boundary falls on every position.
    fn read(bytes: &[u8], buffer_bytes: usize) -> Outcome<Pairs> {
        let mut reader = DumpReader::new(BufReader::with_capacity(buffer_bytes, bytes))?;
        let (mut pairs, mut map) = (Vec::new(), String::new());
        loop {
            match reader.next()? {
                Item::Map(name) => map = name,
                Item::Pair => pairs.push((map.clone(), reader.key.clone(), reader.value.clone())),
                Item::End => return Ok(pairs),
            }
        }
    }

    #[test]
    fn what_was_written_is_read_whatever_the_buffer() {
        let bytes = written(&sample());
        for buffer_bytes in (1..40).chain([bytes.len(), 1 << 16]) {
            assert_eq!(read(&bytes, buffer_bytes).unwrap(), sample());
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let bytes = written(&sample());
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length], 16).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let bytes = written(&sample());
        for place in 0..bytes.len() {
            for change in [1, 0x20, 0x80] {
                let mut changed = bytes.clone();
                changed[place] ^= change;
                assert!(read(&changed, 16).is_err(), "byte {place} ^ {change}");
            }
        }
    }

    #[test]
    fn a_dump_written_by_hand_needs_no_counts() {
        let by_hand = b"#duramen-dump 1\n#map\tstock\n#pairs\tstock\nplums\t3\n#end\n";
        assert_eq!(
            read(by_hand, 16).unwrap(),
            [("stock".into(), b"plums".to_vec(), b"3".to_vec())]
        );
    }

    #[test]
    fn a_newer_format_is_not_called_damage() {
        assert_eq!(
            read(b"#duramen-dump 2\n#whatever\n", 16).unwrap_err().exit,
            Exit::WrongCall
        );
        assert_eq!(read(b"PNG\0\0", 16).unwrap_err().exit, Exit::WrongCall);
        assert_eq!(read(b"#duramen-dump 1\n", 16).unwrap_err().exit, Exit::Damaged);
    }

    #[test]
    fn a_problem_names_its_line() {
        let dump = b"#duramen-dump 1\n#map\ta\n#pairs\ta\nb\tc\nno tab here\n#end\n";
        let message = read(dump, 16).unwrap_err().message;
        assert!(
            message.starts_with("line 5 of the dump: the line has no tab"),
            "{message}"
        );
    }
}
