//! Patterns of paths.
//!
//! Matching a path takes time in proportion to its names and those of the pattern, whatever both are: the pattern is a machine
//! that is in several places at once (Thompson, "Regular expression search algorithm", 1968). The regular expressions of single
//! names are those of the crate `regex`, which take linear time.

use std::fmt;
use std::str::FromStr;

use duramen_engine::{Error, Result};
use regex::bytes::{Regex, RegexBuilder};

use crate::error::TreeError;
use crate::limits::{PATTERN_BYTES_MAX, PATTERN_NAMES_MAX, REGEX_BYTES_MAX};
use crate::path::{SEPARATOR, names};

/// A pattern of paths: names joined by `/`, each of them
///
/// | | stands for |
/// |---|---|
/// | `name` | this name |
/// | `*` | any name |
/// | `ab*` | a name that begins with `ab` |
/// | `{a.*z}` | a name that matches a regular expression as a whole |
/// | `**` | any number of names, also none |
///
/// A backslash takes the meaning from the character after it, as in `\*`.
///
/// ```
/// use duramen_tree::Pattern;
///
/// let pattern: Pattern = "services/*/{node-[0-9]+}".parse()?;
/// assert!(pattern.matches(b"services/web/node-7"));
/// assert!(!pattern.matches(b"services/web/db/node-7"));
/// # Ok::<(), duramen_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
    /// Parts at the begin that are plain names.
    plain: usize,
}

#[derive(Clone, Debug)]
enum Part {
    Name(Vec<u8>),
    Prefix(Vec<u8>),
    Matching(Regex),
    Any,
    AnyNumber,
}

impl Part {
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Part::Name(expected) => name == expected,
            Part::Prefix(prefix) => name.starts_with(prefix),
            Part::Matching(regex) => regex.is_match(name),
            Part::Any | Part::AnyNumber => true,
        }
    }
}

impl Pattern {
    /// A path and everything below it, whatever characters it has.
    pub fn subtree(path: impl AsRef<[u8]>) -> Pattern {
        let path = path.as_ref();
        let mut parts: Vec<_> = names(path).map(|name| Part::Name(name.to_vec())).collect();
        parts.push(Part::AnyNumber);
        let text: String = names(path).map(|name| escaped(name) + "/").collect();
        Pattern::new(text + "**", parts)
    }

    fn new(text: String, parts: Vec<Part>) -> Pattern {
        let plain = plain(&parts);
        Pattern { text, parts, plain }
    }

    /// Whether a path has the pattern.
    pub fn matches(&self, path: &[u8]) -> bool {
        let (plain, parts) = self.parts.split_at(self.plain);
        let mut names = names(path);
        if !plain
            .iter()
            .all(|part| names.next().is_some_and(|name| part.matches(name)))
        {
            return false;
        }
        // Bit n: the names so far fit the parts before part n.
        let mut places = passed(parts, 1);
        for name in names {
            let mut next = 0_u128;
            for (number, part) in parts.iter().enumerate() {
                if places & 1 << number != 0 && part.matches(name) {
                    let stays = matches!(part, Part::AnyNumber);
                    next |= 1 << if stays { number } else { number + 1 };
                }
            }
            places = passed(parts, next);
            if places == 0 {
                return false;
            }
        }
        places & 1 << parts.len() != 0
    }

    /// The only path of the pattern, if it has only one.
    pub(crate) fn only_path(&self) -> Option<Vec<u8>> {
        let names: Option<Vec<&[u8]>> = self
            .parts
            .iter()
            .map(|part| match part {
                Part::Name(name) => Some(&name[..]),
                _ => None,
            })
            .collect();
        names.map(|names| names.join(&SEPARATOR))
    }

    /// The bytes with which every path of the pattern begins.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        let mut prefix = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            match part {
                Part::Name(name) => {
                    prefix.extend_from_slice(name);
                    // Without a name after it, as in `a/**`, the path itself has no separator.
                    let is_followed = self.parts[number + 1..]
                        .iter()
                        .any(|part| !matches!(part, Part::AnyNumber));
                    if !is_followed {
                        break;
                    }
                    prefix.push(SEPARATOR);
                }
                Part::Prefix(begin) => {
                    prefix.extend_from_slice(begin);
                    break;
                }
                _ => break,
            }
        }
        prefix
    }
}

/// Passes the parts that stand for no name too.
fn passed(parts: &[Part], mut places: u128) -> u128 {
    for (number, part) in parts.iter().enumerate() {
        if matches!(part, Part::AnyNumber) && places & 1 << number != 0 {
            places |= 1 << (number + 1);
        }
    }
    places
}

/// Number of plain names with which a pattern begins.
fn plain(parts: &[Part]) -> usize {
    parts.iter().take_while(|part| matches!(part, Part::Name(_))).count()
}

/// A name as a pattern of this name alone.
fn escaped(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => name.chars().fold(String::new(), |mut text, letter| {
            if matches!(letter, '\\' | '*' | '{' | '}') {
                text.push('\\');
            }
            text.push(letter);
            text
        }),
        Err(_) => {
            let bytes: String = name.iter().map(|byte| format!(r"\x{byte:02X}")).collect();
            format!("{{(?-u){bytes}}}")
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pattern> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(invalid(text, PATTERN_BYTES_MAX, "its text is longer than 16,384 bytes"));
        }
        let mut parts = Vec::new();
        let (mut at, mut counted) = (0, 0);
        loop {
            let (part, end) = parse_part(text, at)?;
            counted += usize::from(counted > 0 || !matches!(part, Part::Name(_)));
            parts.push(part);
            if counted > PATTERN_NAMES_MAX {
                let cause = "it has more than 64 names from the first star or regular expression on";
                return Err(invalid(text, at, cause));
            }
            if end == text.len() {
                return Ok(Pattern::new(text.to_string(), parts));
            }
            at = end + 1;
        }
    }
}

/// Parses the name that begins at a byte. Returns it, and where it ends.
fn parse_part(text: &str, begin: usize) -> Result<(Part, usize)> {
    let rest = &text[begin..];
    if let Some(regex) = rest.strip_prefix('{') {
        let length = end_of_regex(regex).ok_or_else(|| invalid(text, begin, "the `{` has no `}`"))?;
        let end = begin + length + 2;
        if end < text.len() && text.as_bytes()[end] != SEPARATOR {
            return Err(invalid(
                text,
                end,
                "a regular expression stands for a whole name; `/` comes after its `}`",
            ));
        }
        let built = |regex: &str| {
            let built = RegexBuilder::new(regex).size_limit(REGEX_BYTES_MAX).build();
            built.map_err(|error| invalid(text, begin + 1, &error.to_string()))
        };
        // By itself first: a parenthesis too many would end the group around it.
        let regex = &regex[..length];
        built(regex)?;
        return Ok((Part::Matching(built(&format!(r"\A(?:{regex})\z"))?), end));
    }
    let mut name = Vec::new();
    let mut stars = 0;
    let mut letters = rest.char_indices();
    let mut end = text.len();
    while let Some((place, letter)) = letters.next() {
        let at = begin + place;
        match letter {
            '/' => {
                end = at;
                break;
            }
            '*' => stars += 1,
            _ if stars > 0 => {
                return Err(invalid(text, at, "a `*` ends a name; use `{regex}` for anything else"));
            }
            '\\' => {
                let (_, letter) = letters
                    .next()
                    .ok_or_else(|| invalid(text, at, "nothing follows the backslash"))?;
                if letter == '/' {
                    return Err(invalid(text, at, "no name has a `/`; leave out the backslash"));
                }
                push_letter(&mut name, letter);
            }
            '{' | '}' => {
                return Err(invalid(
                    text,
                    at,
                    "a `{` begins a name; put a backslash before it otherwise",
                ));
            }
            letter => push_letter(&mut name, letter),
        }
    }
    let part = match (name.is_empty(), stars) {
        (_, 0) => Part::Name(name),
        (true, 1) => Part::Any,
        (true, 2) => Part::AnyNumber,
        (false, 1) => Part::Prefix(name),
        _ => return Err(invalid(text, begin, "it has too many `*` in a name")),
    };
    Ok((part, end))
}

fn push_letter(name: &mut Vec<u8>, letter: char) {
    name.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Length of a regular expression up to the `}` that ends it: braces in it come in pairs, or follow a backslash.
fn end_of_regex(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn invalid(pattern: &str, at: usize, cause: &str) -> Error {
    TreeError::InvalidPattern {
        pattern: pattern.chars().take(200).collect(),
        at,
        cause: cause.to_string(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn names_stars_and_regular_expressions_match_whole_names() {
        for (text, matching, others) in [
            ("a/b", &["a/b"][..], &["a", "a/b/c", "a/bb", "/a/b"][..]),
            ("*", &["a", ""], &["a/b", "/"]),
            ("/*", &["/a", "/"], &["a", "/a/b"]),
            ("a/**", &["a", "a/b", "a/b/c", "a/"], &["ab", "b/a"]),
            ("**/c", &["c", "a/c", "a/b/c"], &["a/b", "c/a"]),
            ("a/**/**/z", &["a/z", "a/b/z", "a/b/c/z"], &["a", "z"]),
            ("x*/y", &["x/y", "xa/y"], &["ax/y", "x/ya"]),
            ("{[0-9]{1,3}}/*", &["7/a", "123/"], &["1234/a", "7"]),
            (r"{\}|\{}", &["}", "{"], &["a"]),
            (r"\*/\{a\\", &[r"*/{a\"], &["a/{a"]),
            ("{a.*z}", &["az", "abz"], &["az/z", "baz"]),
        ] {
            let pattern = pattern(text);
            for path in matching {
                assert!(pattern.matches(path.as_bytes()), "{text} {path}");
                assert!(path.as_bytes().starts_with(&pattern.prefix()), "{text} {path}");
            }
            for path in others {
                assert!(!pattern.matches(path.as_bytes()), "{text} {path}");
            }
        }
        assert_eq!(pattern("a/b*/c").prefix(), b"a/b");
        assert_eq!(pattern("a/b/**").prefix(), b"a/b");
        assert_eq!(pattern("a/*").prefix(), b"a/");
        assert_eq!(pattern(r"a/\*").only_path().unwrap(), b"a/*");
        assert!(Pattern::subtree("a/*").matches(b"a/*/c"));
        assert!(!Pattern::subtree("a/*").matches(b"a/b"));
    }

    #[test]
    fn a_mistake_has_its_place() {
        for (text, at) in [
            ("a/{b", 2),
            ("a/{b}c", 5),
            ("a/*b", 3),
            ("a***", 0),
            ("***", 0),
            ("a/b{", 3),
            ("a\\", 1),
            ("a\\/b", 1),
            ("x/{(}", 3),
            ("{a{1000}{1000}}", 1),
        ] {
            let error = text.parse::<Pattern>().unwrap_err();
            match TreeError::of(&error) {
                Some(TreeError::InvalidPattern { at: found, .. }) => assert_eq!(*found, at, "{error}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!("*/".repeat(64).parse::<Pattern>().is_err());
        assert!(format!("{{a{}}}", "|b".repeat(8 << 10)).parse::<Pattern>().is_err());
        assert!("*/".repeat(63).parse::<Pattern>().is_ok());
        assert!(("a/".repeat(500) + &"*/".repeat(63)).parse::<Pattern>().is_ok());
    }

    #[test]
    fn many_stars_take_no_longer() {
        let pattern = pattern(&"**/a/".repeat(31));
        let path = "a/".repeat(400);
        assert!(pattern.matches(path.as_bytes()));
        assert!(!pattern.matches("a/".repeat(30).as_bytes()), "it has 31 names a");
        assert!(!pattern.matches((path + "b").as_bytes()));
    }
}
