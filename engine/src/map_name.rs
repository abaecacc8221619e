//! Names of maps that no user can give.

/// Names of maps that layers above the engine keep for themselves begin with this. No user can give such a name: it has
/// a control character.
pub(crate) const RESERVED: char = '\u{1}';

/// The name of a map that a layer above the engine keeps for itself.
pub(crate) fn reserved(name: &str) -> String {
    format!("{RESERVED}{name}")
}

/// The name of a reserved map as its layer gave it.
pub(crate) fn user_name(reserved: &str) -> &str {
    reserved.strip_prefix(RESERVED).unwrap_or(reserved)
}

/// Whether a map belongs to a layer above the engine.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}
