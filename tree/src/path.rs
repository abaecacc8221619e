//! Paths: names joined by `/`.
//!
//! A path is any byte string that is not empty: names may be empty too, so `/a` has the names `` and `a`. Paths compare as
//! bytes, which is the order of etcd. Every path but those without `/` has a parent, which may have no node of its own: it is
//! then *implied*.

use duramen_engine::Result;

use crate::error::TreeError;
use crate::limits::PATH_BYTES_MAX;

/// Separates names.
pub(crate) const SEPARATOR: u8 = b'/';

/// A path as text, for messages.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Refuses what cannot be the path of a node.
pub(crate) fn check(path: &[u8]) -> Result<()> {
    let zeros = path.iter().filter(|byte| **byte == 0).count();
    let cause = match path {
        [] => "it is empty; a path has at least one byte",
        _ if path.len() + zeros > PATH_BYTES_MAX => "it is longer than 1,000 bytes, of which a byte 0 counts twice",
        _ => return Ok(()),
    };
    let path = shown(&path[..path.len().min(100)]);
    Err(TreeError::InvalidPath { path, cause }.into())
}

/// The parent of a path and the last name; the parent is `None` for a path at the top.
pub(crate) fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|byte| *byte == SEPARATOR) {
        Some(at) => (Some(&path[..at]), &path[at + 1..]),
        None => (None, path),
    }
}

/// The path of a child.
pub(crate) fn joined(parent: Option<&[u8]>, name: &[u8]) -> Vec<u8> {
    match parent {
        Some(parent) => [parent, &[SEPARATOR], name].concat(),
        None => name.to_vec(),
    }
}

/// The names of a path.
pub(crate) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == SEPARATOR)
}

/// Whether a path is another one, or below it.
pub(crate) fn is_within(path: &[u8], top: &[u8]) -> bool {
    path == top || is_below(path, top)
}

/// Whether a path is below another one.
pub(crate) fn is_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top)
        .is_some_and(|rest| rest.first() == Some(&SEPARATOR))
}

/// The bytes between which all paths below a path lie: from `path/` up to the byte after it.
pub(crate) fn below(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    ([path, &[SEPARATOR]].concat(), [path, &[SEPARATOR + 1]].concat())
}

/// The first bytes after all that begin with a prefix.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_its_parent_and_a_name() {
        for path in [&b"a"[..], b"/", b"/a", b"a/", b"a/b/c", b"//"] {
            let (parent, name) = split(path);
            assert_eq!(joined(parent, name), path);
            let (low, high) = below(parent.unwrap_or_default());
            assert!(parent.is_none() || (&low[..] <= path && path < &high[..]));
        }
        assert_eq!(split(b"/a"), (Some(&b""[..]), &b"a"[..]));
        assert_eq!(names(b"/a").collect::<Vec<_>>(), [&b""[..], b"a"]);
    }

    #[test]
    fn what_has_no_place_in_a_key_is_refused() {
        assert!(check(b"").is_err());
        assert!(check(&[b'a'; PATH_BYTES_MAX]).is_ok());
        assert!(check(&[b'a'; PATH_BYTES_MAX + 1]).is_err());
        assert!(check(&[0; PATH_BYTES_MAX / 2]).is_ok());
        assert!(check(&[0; PATH_BYTES_MAX / 2 + 1]).is_err());
    }
}
