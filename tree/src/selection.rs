//! Which nodes a read or a watch is about.

use std::fmt;

use crate::path::{after_prefix, below, shown};
use crate::pattern::Pattern;

/// Which nodes a read or a watch is about.
#[derive(Clone, Debug)]
pub struct Selection(Which);

#[derive(Clone, Debug)]
enum Which {
    Range { low: Vec<u8>, high: Option<Vec<u8>> },
    Subtree(Vec<u8>),
    Pattern(Pattern),
}

/// A range of paths, from the first to one before the second; `None`: to the end.
pub(crate) type Bounds = (Vec<u8>, Option<Vec<u8>>);

impl Selection {
    /// The whole tree.
    pub fn all() -> Selection {
        Selection::range(b"", None)
    }

    /// Paths in a range of bytes; without `high` to the end.
    pub fn range(low: impl AsRef<[u8]>, high: Option<&[u8]>) -> Selection {
        Selection(Which::Range {
            low: low.as_ref().to_vec(),
            high: high.map(<[u8]>::to_vec),
        })
    }

    /// A path and everything below it.
    pub fn subtree(path: impl AsRef<[u8]>) -> Selection {
        Selection(Which::Subtree(path.as_ref().to_vec()))
    }

    /// One path.
    pub fn path(path: impl AsRef<[u8]>) -> Selection {
        let low = path.as_ref();
        Selection::range(low, Some(&after(low)))
    }

    /// Paths with a pattern.
    pub fn pattern(pattern: Pattern) -> Selection {
        Selection(Which::Pattern(pattern))
    }

    /// Whether a path is selected.
    pub fn matches(&self, path: &[u8]) -> bool {
        match &self.0 {
            Which::Range { low, high } => path >= &low[..] && high.as_ref().is_none_or(|high| path < &high[..]),
            Which::Subtree(top) => crate::path::is_within(path, top),
            Which::Pattern(pattern) => pattern.matches(path),
        }
    }

    /// The only path that can be selected.
    pub(crate) fn only_path(&self) -> Option<Vec<u8>> {
        match &self.0 {
            Which::Range { low, high: Some(high) } if *high == after(low) => Some(low.clone()),
            Which::Pattern(pattern) => pattern.only_path(),
            _ => None,
        }
    }

    /// Ranges in which all selected paths are, in order.
    pub(crate) fn bounds(&self) -> Vec<Bounds> {
        match &self.0 {
            Which::Range { low, high } => vec![(low.clone(), high.clone())],
            Which::Subtree(path) => {
                let (low, high) = below(path);
                vec![(path.clone(), Some(after(path))), (low, Some(high))]
            }
            Which::Pattern(pattern) => match pattern.only_path() {
                Some(path) => vec![(path.clone(), Some(after(&path)))],
                None => {
                    let prefix = pattern.prefix();
                    let high = after_prefix(&prefix);
                    vec![(prefix, high)]
                }
            },
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.only_path() {
            return f.write_str(&shown(&path));
        }
        match &self.0 {
            Which::Range { low, high: None } if low.is_empty() => f.write_str("all nodes"),
            Which::Range { low, high: None } => write!(f, "from {}", shown(low)),
            Which::Range { low, high: Some(high) } => write!(f, "from {} to before {}", shown(low), shown(high)),
            Which::Subtree(path) => write!(f, "{} and below", shown(path)),
            Which::Pattern(pattern) => pattern.fmt(f),
        }
    }
}

/// The first bytes after a path.
pub(crate) fn after(path: &[u8]) -> Vec<u8> {
    [path, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_what_is_selected_and_the_text_says_what_it_is() {
        let paths = ["a", "a!", "a/", "a/b", "a/b/c", "a0", "b", "/"];
        for (selection, selected, text) in [
            (Selection::all(), &paths[..], "all nodes"),
            (Selection::path("a/b"), &["a/b"][..], "a/b"),
            (Selection::subtree("a"), &["a", "a/", "a/b", "a/b/c"][..], "a and below"),
            (
                Selection::range("a/b", Some(b"b")),
                &["a/b", "a/b/c", "a0"][..],
                "from a/b to before b",
            ),
            (Selection::range("a0", None), &["a0", "b"][..], "from a0"),
            (Selection::pattern("a/*".parse().unwrap()), &["a/", "a/b"][..], "a/*"),
            (Selection::pattern("a/b".parse().unwrap()), &["a/b"][..], "a/b"),
        ] {
            let matching: Vec<_> = paths.iter().filter(|path| selection.matches(path.as_bytes())).collect();
            assert_eq!(matching, selected.iter().collect::<Vec<_>>(), "{selection:?}");
            assert_eq!(selection.to_string(), text);
            let bounds = selection.bounds();
            assert!(bounds.is_sorted());
            let is_in = |path: &[u8]| {
                let is_in =
                    |(low, high): &Bounds| path >= &low[..] && high.as_ref().is_none_or(|high| path < &high[..]);
                bounds.iter().any(is_in)
            };
            for path in paths {
                let is_selected = selection.matches(path.as_bytes());
                let is_sparse = matches!(selection.0, Which::Pattern(_));
                assert!(is_in(path.as_bytes()) == is_selected || is_sparse && !is_selected);
            }
        }
    }
}
