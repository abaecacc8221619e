//! Names of topics, and patterns of names.
//!
//! A name has one or more parts, joined by dots: `orders.eu.created`. In a pattern `*` stands for exactly one part, and
//! `>`, as the last part, for one or more parts.

use std::fmt;

use duramen_engine::Result;

use crate::error::TopicError;
use crate::limits::NAME_BYTES_MAX;

/// Refuses text that cannot name a topic or group, and tells where the mistake is.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let refused = |(at, cause)| {
        let name = name.to_string();
        Err(TopicError::InvalidName { name, at, cause }.into())
    };
    match first_mistake(name).or_else(|| wildcard(name)) {
        Some(mistake) => refused(mistake),
        None => Ok(()),
    }
}

/// The first position where a text is neither a name nor a pattern.
fn first_mistake(text: &str) -> Option<(usize, &'static str)> {
    if text.is_empty() {
        return Some((0, "there is nothing"));
    }
    if text.len() > NAME_BYTES_MAX {
        return Some((NAME_BYTES_MAX, "more than 255 bytes"));
    }
    let mut part_start = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '.' if at == part_start => return Some((at, "an empty part")),
            '.' => part_start = at + 1,
            _ if letter.is_whitespace() => return Some((at, "a space")),
            _ if letter.is_control() => return Some((at, "a control character")),
            _ => {}
        }
    }
    (part_start == text.len()).then_some((part_start, "an empty part"))
}

fn wildcard(name: &str) -> Option<(usize, &'static str)> {
    name.find(['*', '>']).map(|at| (at, "a wildcard"))
}

/// A pattern of topic names: `orders.*.created`, `orders.>`, or a plain name that matches only itself.
///
/// ```
/// use duramen_topic::Pattern;
/// let pattern = Pattern::new("orders.*.created")?;
/// assert!(pattern.matches("orders.eu.created"));
/// assert!(!pattern.matches("orders.created"));
/// assert!(Pattern::new("orders.>")?.matches("orders.eu.created"));
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`TopicError::InvalidPattern`], with the position of the mistake.
    pub fn new(text: &str) -> Result<Pattern> {
        match first_mistake(text).or_else(|| misplaced(text)) {
            Some((at, cause)) => {
                let pattern = text.to_string();
                Err(TopicError::InvalidPattern { pattern, at, cause }.into())
            }
            None => Ok(Pattern { text: text.into() }),
        }
    }

    /// Whether a topic name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = name.split('.');
        for wanted in self.text.split('.') {
            match (wanted, parts.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (_, Some(part)) if part == wanted => {}
                _ => return false,
            }
        }
        parts.next().is_none()
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The prefix that all matching names share.
    pub(crate) fn literal_start(&self) -> &str {
        let end = self.text.find(['*', '>']).unwrap_or(self.text.len());
        &self.text[..end]
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The first wildcard that is not a whole part, or is not allowed at its position.
fn misplaced(text: &str) -> Option<(usize, &'static str)> {
    let mut start = 0;
    for part in text.split('.') {
        let end = start + part.len();
        if let Some(at) = part.find(['*', '>']).filter(|_| part.len() > 1) {
            return Some((start + at, "a wildcard that is not a whole part"));
        }
        if part == ">" && end != text.len() {
            return Some((start, "a `>` that is not the last part"));
        }
        start = end + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_found_where_they_are() {
        let at = |error: duramen_engine::Error| match TopicError::of(&error) {
            Some(TopicError::InvalidName { at, .. } | TopicError::InvalidPattern { at, .. }) => *at,
            other => panic!("{other:?}"),
        };
        let names = [
            ("", 0),
            (".a", 0),
            ("a..b", 2),
            ("a.", 2),
            ("a b", 1),
            ("a.*", 2),
            ("a\u{1}", 1),
            ("ä.>", 3),
        ];
        for (name, place) in names {
            assert_eq!(at(check_name(name).unwrap_err()), place, "{name:?}");
        }
        assert_eq!(at(check_name(&"x".repeat(256)).unwrap_err()), 255);
        check_name(&"x".repeat(255)).unwrap();
        check_name("orders.eu-1.created_at").unwrap();
        for (pattern, place) in [("", 0), ("a.b*", 3), ("a.>.b", 2), (">>", 0), ("*.", 2), ("a. b", 2)] {
            assert_eq!(at(Pattern::new(pattern).unwrap_err()), place, "{pattern:?}");
        }
    }

    /// The meaning of patterns, implemented differently: by trying every split of the parts.
    fn means(pattern: &[&str], name: &[&str]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([">"], [_, ..]) => true,
            (["*", pattern @ ..], [_, name @ ..]) => means(pattern, name),
            ([one, pattern @ ..], [other, name @ ..]) => one == other && means(pattern, name),
            _ => false,
        }
    }

    #[test]
    fn patterns_match_what_they_mean() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut matched = 0;
        for _ in 0..50_000 {
            let words = ["a", "b", "ab", "*"];
            let mut pattern: Vec<&str> = (0..rng.usize(1..5)).map(|_| words[rng.usize(..4)]).collect();
            if rng.u8(..) < 60 {
                pattern.push(">");
            }
            let name: Vec<&str> = (0..rng.usize(1..6)).map(|_| words[rng.usize(..3)]).collect();
            let parsed = Pattern::new(&pattern.join(".")).unwrap();
            let expected = means(&pattern, &name);
            assert_eq!(parsed.matches(&name.join(".")), expected, "{pattern:?} {name:?}");
            assert!(!expected || name.join(".").starts_with(parsed.literal_start()));
            matched += u32::from(expected);
        }
        assert!(matched > 1_000, "{matched}");
    }
}
