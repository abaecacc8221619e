//! Filters: which messages a group wants, by their keys and headers.

use duramen_engine::Result;

use crate::bytes::{Reader, put_bytes, put_number};
use crate::error::TopicError;
use crate::limits::{FILTER_BYTES_MAX, FILTER_HEADERS_MAX};
use crate::messages::Received;

/// Selects messages by key and headers. A message that does not match is never delivered to the group, and counts as
/// acknowledged. All conditions must hold. The group evaluates them before it delivers, so filtered messages cost
/// members nothing.
///
/// In a condition `*` stands for any number of bytes, including none. Every other byte stands for itself.
///
/// ```
/// use duramen_topic::{Filter, GroupOptions};
///
/// let european = Filter::new().key("order-*").header("region", "eu-*");
/// let options = GroupOptions::new().filter(european);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    key: Option<String>,
    headers: Vec<(String, String)>,
}

impl Filter {
    /// Selects every message.
    pub fn new() -> Filter {
        Filter::default()
    }

    /// Selects messages that have a key, and whose key matches.
    pub fn key(mut self, wanted: &str) -> Filter {
        self.key = Some(wanted.into());
        self
    }

    /// Selects messages that have a header of this name with a value that matches.
    pub fn header(mut self, name: &str, wanted: &str) -> Filter {
        self.headers.push((name.into(), wanted.into()));
        self
    }

    /// The condition on keys, if there is one.
    pub fn wanted_key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The conditions on headers: names and values.
    pub fn wanted_headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, wanted)| (&**name, &**wanted))
    }

    /// Whether the filter selects every message.
    pub fn is_empty(&self) -> bool {
        self.key.is_none() && self.headers.is_empty()
    }

    /// Whether the filter selects a message.
    pub fn matches(&self, message: &Received<'_>) -> bool {
        let has_key = self.key.as_ref().is_none_or(|wanted| {
            let key = message.key();
            key.is_some_and(|key| is_like(key, wanted.as_bytes()))
        });
        has_key
            && self.headers.iter().all(|(name, wanted)| {
                let mut headers = message.headers();
                headers.any(|(found, value)| found == name && is_like(value, wanted.as_bytes()))
            })
    }

    pub(super) fn check(&self) -> Result<()> {
        let refused = |cause| Err(TopicError::InvalidOptions { cause }.into());
        let bytes = self
            .key
            .iter()
            .chain(self.headers.iter().flat_map(|(name, wanted)| [name, wanted]));
        if bytes.map(String::len).sum::<usize>() > FILTER_BYTES_MAX {
            return refused(format!(
                "a filter has {FILTER_BYTES_MAX} bytes at most; shorten its conditions"
            ));
        }
        if self.headers.len() > FILTER_HEADERS_MAX {
            return refused(format!(
                "a filter has {FILTER_HEADERS_MAX} conditions on headers at most"
            ));
        }
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.key.is_some()));
        put_bytes(out, self.key.as_deref().unwrap_or("").as_bytes());
        put_number(out, self.headers.len() as u64);
        for (name, wanted) in &self.headers {
            put_bytes(out, name.as_bytes());
            put_bytes(out, wanted.as_bytes());
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Filter> {
        let has_key = reader.byte()? != 0;
        let key = Some(reader.text()?).filter(|_| has_key).map(String::from);
        let count = reader.number()?;
        if count > FILTER_HEADERS_MAX as u64 {
            return Err(reader.damaged("has too many conditions"));
        }
        let headers = (0..count).map(|_| Ok((reader.text()?.into(), reader.text()?.into())));
        let headers = headers.collect::<Result<Vec<_>>>()?;
        Ok(Filter { key, headers })
    }
}

/// Whether bytes match a text in which `*` stands for any bytes. The cost is at most the product of both lengths, since
/// only the last `*` is ever tried again.
fn is_like(bytes: &[u8], wanted: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Position of the last `*`, and the end of the bytes that it matches.
    let mut star: Option<(usize, usize)> = None;
    while at < bytes.len() {
        match wanted.get(place) {
            Some(b'*') => {
                star = Some((place, at));
                place += 1;
            }
            Some(&byte) if byte == bytes[at] => (at, place) = (at + 1, place + 1),
            _ => {
                let Some((star_place, taken)) = star else { return false };
                star = Some((star_place, taken + 1));
                (at, place) = (taken + 1, star_place + 1);
            }
        }
    }
    wanted[place..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a condition means, by trying every length of each `*`.
    fn means(bytes: &[u8], wanted: &[u8]) -> bool {
        match wanted {
            [] => bytes.is_empty(),
            [b'*', rest @ ..] => (0..=bytes.len()).any(|taken| means(&bytes[taken..], rest)),
            [byte, rest @ ..] => bytes.first() == Some(byte) && means(&bytes[1..], rest),
        }
    }

    #[test]
    fn conditions_match_what_they_mean() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut matched = 0;
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..rng.usize(..8)).map(|_| b"ab"[rng.usize(..2)]).collect();
            let wanted: Vec<u8> = (0..rng.usize(..6)).map(|_| b"ab*"[rng.usize(..3)]).collect();
            let expected = means(&bytes, &wanted);
            assert_eq!(is_like(&bytes, &wanted), expected, "{bytes:?} {wanted:?}");
            matched += u32::from(expected);
        }
        assert!(matched > 1_000, "{matched}");
    }

    #[test]
    fn filters_come_back_as_they_were() {
        let filters = [
            Filter::new(),
            Filter::new().key(""),
            Filter::new().key("order-*").header("region", "eu-*").header("x", ""),
        ];
        for filter in filters {
            let mut bytes = Vec::new();
            filter.encode(&mut bytes);
            let mut reader = Reader::new(&bytes, "a filter");
            assert_eq!(Filter::decode(&mut reader).unwrap(), filter);
            reader.end().unwrap();
        }
    }
}
