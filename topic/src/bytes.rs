//! Reading and writing the small binary forms of this crate: messages and records of topics and groups. The bytes come
//! from a file, so everything malformed is damage, never a panic.

use duramen_engine::{Error, Result};

/// Appends a number of at most 64 bits, with seven bits a byte, least significant first.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends bytes after their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads from the front of bytes.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`. `what` names them in error messages.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    pub fn damaged(&self, cause: &str) -> Error {
        Error::damaged(format!("{} {cause}", self.what))
    }

    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.damaged("ends too early"));
        };
        self.rest = rest;
        Ok(bytes)
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub fn number(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7F);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.damaged("has a number of more than 64 bits"))
    }

    /// Reads bytes that follow their length.
    pub fn long(&mut self) -> Result<&'a [u8]> {
        let length = self.number()?;
        self.bytes(usize::try_from(length).unwrap_or(usize::MAX))
    }

    pub fn text(&mut self) -> Result<&'a str> {
        let bytes = self.long()?;
        std::str::from_utf8(bytes).map_err(|_| self.damaged("has a text that is not UTF-8"))
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn end(&self) -> Result<()> {
        match self.rest {
            [] => Ok(()),
            _ => Err(self.damaged("has more bytes than it should")),
        }
    }

    /// Refuses every form except `known`: earlier forms were never released.
    pub fn form(&mut self, known: u8) -> Result<()> {
        match self.byte()? {
            form if form == known => Ok(()),
            form => Err(self.damaged(&format!(
                "has form {form}, and this library reads only form {known}; open the store with the version that wrote it"
            ))),
        }
    }

    /// Refuses forms that are newer than this version.
    pub fn version(&mut self, newest: u8) -> Result<()> {
        match self.byte()? {
            version if (1..=newest).contains(&version) => Ok(()),
            version => Err(self.damaged(&format!("has form {version}, this library reads up to {newest}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let mut numbers: Vec<u64> = (0..64)
            .flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX >> bit])
            .collect();
        numbers.push(0);
        for number in numbers {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut reader = Reader::new(&out, "a test");
            assert_eq!(reader.number().unwrap(), number);
            reader.end().unwrap();
        }
        for wrong in [
            &[0x80][..],
            &[0xFF; 10],
            &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2],
        ] {
            assert!(Reader::new(wrong, "a test").number().is_err());
        }
    }
}
