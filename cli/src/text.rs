//! Keys and values as text: escapes (the default) and hexadecimal.
//!
//! Escaped text shows printable characters as they are and everything else as `\xNN`. It parses back to exactly the
//! original bytes: `parse(show(bytes)) == bytes` for all bytes. It contains no control characters, so a tab or a line
//! end outside an escape is always a separator.

use std::io::{self, Write};
use std::time::SystemTime;

use crate::exit::{Failure, Outcome};

/// Whether the text is a pattern: no topic name has these characters.
pub fn is_pattern(topic: &str) -> bool {
    topic.contains(['*', '>'])
}

/// How long ago something was, for people.
pub fn ago(then: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(then).unwrap_or_default().as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("{} {name} ago", seconds / unit)
}

/// Notation in which bytes are written as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notation {
    #[default]
    Escapes,
    Hexadecimal,
}

impl Notation {
    /// Parses text into the bytes it represents. `what` names the text in the error.
    pub fn parse(self, what: &str, text: &str) -> Outcome<Vec<u8>> {
        match self {
            Notation::Escapes => parse_escapes(text),
            Notation::Hexadecimal => parse_hexadecimal(text),
        }
        .map_err(|problem| Failure::wrong_call(format!("{what} {text:?}: {problem}")))
    }

    /// Formats bytes as text.
    pub fn show(self, bytes: &[u8]) -> String {
        let mut text = Vec::with_capacity(bytes.len());
        self.write(&mut text, bytes).expect("memory takes every write");
        String::from_utf8(text).expect("both notations are UTF-8")
    }

    /// Writes bytes as text.
    pub fn write(self, out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
        match self {
            Notation::Escapes => write_escapes(out, bytes),
            Notation::Hexadecimal => write_hexadecimal(out, bytes),
        }
    }
}

/// Length of the pieces in which text is assembled. Writing it byte by byte costs several times as much.
const PIECE_BYTES: usize = 8 << 10;

/// Writes bytes with escapes.
pub fn write_escapes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    if bytes.iter().all(|&byte| is_plain_ascii(byte)) {
        return out.write_all(bytes);
    }
    let mut piece = Vec::with_capacity(PIECE_BYTES.min(bytes.len() * 4));
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            push_character(&mut piece, character);
            pass_on(out, &mut piece, PIECE_BYTES)?;
        }
        chunk.invalid().iter().for_each(|&byte| push_escape(&mut piece, byte));
        pass_on(out, &mut piece, PIECE_BYTES)?;
    }
    pass_on(out, &mut piece, 0)
}

fn write_hexadecimal(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    let mut piece = Vec::with_capacity(PIECE_BYTES.min(bytes.len() * 2));
    for &byte in bytes {
        push_digits(&mut piece, byte);
        pass_on(out, &mut piece, PIECE_BYTES)?;
    }
    pass_on(out, &mut piece, 0)
}

/// Writes the piece to `out` once it has at least `from_bytes` bytes.
fn pass_on(out: &mut dyn Write, piece: &mut Vec<u8>, from_bytes: usize) -> io::Result<()> {
    if piece.len() >= from_bytes {
        out.write_all(piece)?;
        piece.clear();
    }
    Ok(())
}

fn is_plain_ascii(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\\'
}

fn push_character(piece: &mut Vec<u8>, character: char) {
    let mut buffer = [0; 4];
    let encoded = character.encode_utf8(&mut buffer).as_bytes();
    match character {
        '\\' => piece.extend(b"\\\\"),
        '\n' => piece.extend(b"\\n"),
        '\r' => piece.extend(b"\\r"),
        '\t' => piece.extend(b"\\t"),
        // Escapes show invisible and combining characters more clearly than the characters themselves.
        _ if is_printable(character) => piece.extend(encoded),
        _ => encoded.iter().for_each(|&byte| push_escape(piece, byte)),
    }
}

fn push_escape(piece: &mut Vec<u8>, byte: u8) {
    piece.extend(b"\\x");
    push_digits(piece, byte);
}

fn push_digits(piece: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    piece.extend([DIGITS[(byte >> 4) as usize], DIGITS[(byte & 15) as usize]]);
}

fn is_printable(character: char) -> bool {
    matches!(character, ' '..='~') || character.escape_debug().eq([character])
}

fn parse_escapes(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (value, length) = escape(rest).ok_or_else(|| {
            let place = text.len() - rest.len();
            format!("the backslash at place {place} begins no escape; there are \\\\ \\n \\r \\t \\0 and \\xNN")
        })?;
        bytes.push(value);
        rest = &rest[length..];
    }
    Ok(bytes)
}

/// Returns the byte that an escape represents, and the number of bytes after its backslash.
pub fn escape(after_backslash: &[u8]) -> Option<(u8, usize)> {
    Some(match after_backslash {
        [b'\\', ..] => (b'\\', 1),
        [b'n', ..] => (b'\n', 1),
        [b'r', ..] => (b'\r', 1),
        [b't', ..] => (b'\t', 1),
        [b'0', ..] => (0, 1),
        [b'x', high, low, ..] => (digit(*high)? << 4 | digit(*low)?, 3),
        _ => return None,
    })
}

fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

fn parse_hexadecimal(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err("hexadecimal takes two digits a byte; one is missing".into());
    }
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
    bytes.ok_or_else(|| "only the digits 0-9 and a-f make hexadecimal".into())
}

/// Formats a number with thousands separators: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a byte count in a suitable unit: `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} bytes");
    }
    let mut size = count as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// Formats a count with its noun: `1 pair`, `2 pairs`.
pub fn counted(count: u64, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {word}{plural}", grouped(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed() -> u64 {
        std::env::var("DURAMEN_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"))
    }

    #[test]
    fn every_byte_string_comes_back_from_both_notations() {
        let seed = seed();
        println!("DURAMEN_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..5_000 {
            let alphabet: &[u8] = random
                .choice([&b"\\x0nrt\t\n#a"[..], "\u{e9}\u{301}\u{200b}z\\".as_bytes(), &[]])
                .unwrap();
            let byte = |random: &mut fastrand::Rng| match alphabet {
                [] => random.u8(..),
                _ => random.choice(alphabet.iter().copied()).unwrap(),
            };
            let bytes: Vec<u8> = (0..random.usize(..20)).map(|_| byte(&mut random)).collect();
            for notation in [Notation::Escapes, Notation::Hexadecimal] {
                let text = notation.show(&bytes);
                assert!(!text.chars().any(char::is_control), "{text:?}");
                assert_eq!(notation.parse("key", &text).unwrap(), bytes, "{text:?}");
            }
        }
    }

    #[test]
    fn readable_text_stays_as_it_is() {
        for text in ["apples", "it's \"5\" o'clock #1", "Grüße, 世界"] {
            assert_eq!(Notation::Escapes.show(text.as_bytes()), text);
        }
    }

    #[test]
    fn broken_escapes_are_refused_with_their_place() {
        for text in ["a\\", "\\q", "\\x", "\\x1", "\\xzz"] {
            assert_eq!(
                Notation::Escapes.parse("key", text).unwrap_err().exit,
                crate::exit::Exit::WrongCall,
                "{text}"
            );
        }
        let message = Notation::Escapes.parse("key", "ab\\q").unwrap_err().message;
        assert!(message.contains("at place 3"), "{message}");
        assert!(Notation::Hexadecimal.parse("key", "abc").is_err());
        assert!(Notation::Hexadecimal.parse("key", "+1").is_err());
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }
}
