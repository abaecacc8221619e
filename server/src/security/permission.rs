//! Permissions: what a principal may do with which maps, topics and trees.
//!
//! The text of a permission is `ACCESS:KIND:NAME`, or `ACCESS:*` for everything. A name that ends with `*` is a prefix.

use std::fmt;
use std::str::FromStr;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads.
    Read,
    /// Changes pairs, or publishes messages. It includes no reading.
    Write,
    /// Creates, drops, configures and renames. It includes reading and writing.
    Admin,
}

/// What a request works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    /// A map.
    Map(&'a str),
    /// A topic.
    Topic(&'a str),
    /// A tree.
    Tree(&'a str),
    /// The server as a whole.
    Everything,
}

/// A permission of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    access: Access,
    scope: Scope,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    Map(Pattern),
    Topic(Pattern),
    Tree(Pattern),
}

/// A name, or the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

/// The text is no permission.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no permission; write read, write or admin, and then :*, :map:NAME, :topic:NAME or :tree:NAME, as in read:map:orders.*"
)]
pub struct NoPermission(String);

impl Permission {
    /// Whether this permission is enough for a request.
    pub(crate) fn allows(&self, access: Access, resource: Resource<'_>) -> bool {
        (self.access == access || self.access == Access::Admin) && self.covers(resource)
    }

    /// Whether this permission is about a resource.
    pub(crate) fn covers(&self, resource: Resource<'_>) -> bool {
        match (&self.scope, resource) {
            (Scope::Everything, _) => true,
            (Scope::Map(pattern), Resource::Map(name))
            | (Scope::Topic(pattern), Resource::Topic(name))
            | (Scope::Tree(pattern), Resource::Tree(name)) => pattern.matches(name),
            _ => false,
        }
    }
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        Pattern {
            text: text.strip_suffix('*').unwrap_or(text).into(),
            is_prefix: text.ends_with('*'),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self.is_prefix {
            true => name.starts_with(&self.text),
            false => name == self.text,
        }
    }
}

impl FromStr for Permission {
    type Err = NoPermission;

    fn from_str(text: &str) -> Result<Permission, NoPermission> {
        let parse = || {
            let (access, scope) = text.split_once(':')?;
            let access = match access {
                "read" => Access::Read,
                "write" => Access::Write,
                "admin" => Access::Admin,
                _ => return None,
            };
            let scope = match scope.split_once(':') {
                None if scope == "*" => Scope::Everything,
                Some(("map", name)) if !name.is_empty() => Scope::Map(Pattern::new(name)),
                Some(("topic", name)) if !name.is_empty() => Scope::Topic(Pattern::new(name)),
                Some(("tree", name)) if !name.is_empty() => Scope::Tree(Pattern::new(name)),
                _ => return None,
            };
            Some(Permission { access, scope })
        };
        parse().ok_or_else(|| NoPermission(text.into()))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Admin => "admin",
        })
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Map(name) => write!(f, "map:{name}"),
            Resource::Topic(name) => write!(f, "topic:{name}"),
            Resource::Tree(name) => write!(f, "tree:{name}"),
            Resource::Everything => f.write_str("*"),
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Scope::Everything => write!(f, "{}:*", self.access),
            Scope::Map(pattern) => write!(f, "{}:map:{pattern}", self.access),
            Scope::Topic(pattern) => write!(f, "{}:topic:{pattern}", self.access),
            Scope::Tree(pattern) => write!(f, "{}:tree:{pattern}", self.access),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.is_prefix { "*" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(text: &str) -> Permission {
        text.parse().unwrap()
    }

    #[test]
    fn a_permission_covers_its_names_and_kind_only() {
        let read = permission("read:map:orders.*");
        assert!(read.allows(Access::Read, Resource::Map("orders.new")));
        assert!(!read.allows(Access::Read, Resource::Map("orders")));
        assert!(!read.allows(Access::Read, Resource::Topic("orders.new")));
        assert!(!read.allows(Access::Read, Resource::Everything));
        assert!(!read.allows(Access::Write, Resource::Map("orders.new")));
        let exact = permission("write:topic:sales");
        assert!(exact.allows(Access::Write, Resource::Topic("sales")));
        assert!(!exact.allows(Access::Write, Resource::Topic("sales.dead")));
        assert!(!exact.allows(Access::Read, Resource::Topic("sales")));
        assert!(!exact.allows(Access::Write, Resource::Tree("sales")));
        let tree = permission("write:tree:con*");
        assert!(tree.allows(Access::Write, Resource::Tree("config")));
        assert!(!tree.allows(Access::Write, Resource::Map("config")));
    }

    #[test]
    fn admin_includes_reading_and_writing_of_its_names() {
        let all = permission("admin:*");
        for access in [Access::Read, Access::Write, Access::Admin] {
            assert!(all.allows(access, Resource::Map("m")) && all.allows(access, Resource::Everything));
        }
        let maps = permission("admin:map:*");
        assert!(maps.allows(Access::Write, Resource::Map("m")));
        assert!(!maps.allows(Access::Read, Resource::Topic("t")));
        assert!(!maps.allows(Access::Admin, Resource::Everything));
    }

    #[test]
    fn the_text_of_a_permission_is_what_it_was_made_of() {
        for text in [
            "read:map:orders.*",
            "write:topic:*",
            "admin:*",
            "read:map:a:b",
            "admin:topic:t",
            "write:tree:config",
        ] {
            assert_eq!(permission(text).to_string(), text);
        }
        for text in [
            "",
            "read",
            "read:",
            "read:map:",
            "read:map",
            "own:*",
            "read:queue:q",
            "read:m*",
        ] {
            let error = text.parse::<Permission>().unwrap_err().to_string();
            assert!(error.contains("as in read:map:orders.*"), "{error}");
        }
    }
}
