//! Names of topics whose records are lost.
//!
//! The registry has the name of each topic that was made or deleted, in order, and numbers of topics grow. So the names that
//! were made and not deleted, in that order, belong to the numbers in theirs. Where some records are left, it is enough that
//! between two of them there are as many names as numbers. A topic of which nothing is left has a name there, and no number.

use std::collections::{BTreeMap, BTreeSet};

use duramen_engine::Result;

use super::{Saving, text};
use crate::message::Stored;
use crate::tables::{REGISTRY, offset_key};

impl Saving<'_> {
    /// The names of topics with these numbers, of which some are known, as far as the registry tells the others. Names of
    /// which it does not tell the number are said to be lost.
    pub(super) fn names_in_the_registry(
        &mut self,
        ids: &BTreeSet<u32>,
        known: &BTreeMap<u32, String>,
    ) -> Result<BTreeMap<u32, String>> {
        let mut names: Vec<String> = Vec::new();
        let (mut next, mut is_strange) = (0, false);
        let messages = &self.source.tables.messages;
        let is_whole = self.source.rows(messages, &REGISTRY.to_be_bytes(), &mut |key, row| {
            is_strange |= key != offset_key(REGISTRY, next);
            next += 1;
            let name = Stored::decode(row).and_then(|entry| text(entry.payload.unwrap_or_default()));
            match name {
                Ok(name) => match names.iter().position(|made| *made == name) {
                    Some(deleted) => drop(names.remove(deleted)),
                    None => names.push(name),
                },
                Err(_) => is_strange = true,
            }
            Ok(())
        })?;
        if !is_whole || is_strange {
            return Ok(BTreeMap::new());
        }
        let ids: Vec<u32> = ids.iter().copied().collect();
        let found = matched(&ids, &names, known);
        names.retain(|name| !known.values().chain(found.values()).any(|known| known == name));
        if !names.is_empty() {
            self.lose(format!("which topics, or whether any, were called {}", quoted(&names)));
        }
        Ok(found)
    }
}

/// Gives names to numbers, both in order, between those that are known.
fn matched(ids: &[u32], names: &[String], known: &BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    let (mut first_id, mut first_name) = (0, 0);
    for id in (0..=ids.len()).filter(|id| ids.get(*id).is_none_or(|id| known.contains_key(id))) {
        let name = match ids.get(id) {
            Some(id) => names.iter().position(|name| *name == known[id]),
            None => Some(names.len()),
        };
        // Another order than that of the numbers is none to go by.
        let Some(name) = name.filter(|name| *name >= first_name) else {
            return BTreeMap::new();
        };
        if id - first_id == name - first_name {
            let between = ids[first_id..id].iter().copied();
            found.extend(between.zip(names[first_name..name].iter().cloned()));
        }
        (first_id, first_name) = (id + 1, name + 1);
    }
    found
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_to_numbers_only_where_there_are_as_many_of_both() {
        let names = ["a", "b", "c", "d", "e", "f"].map(String::from);
        let found = |ids: &[u32], known: &[(u32, &str)]| -> Vec<(u32, String)> {
            let known = known.iter().map(|(id, name)| (*id, name.to_string())).collect();
            matched(ids, &names, &known).into_iter().collect()
        };
        let as_text = |found: Vec<(u32, String)>| -> String {
            found.into_iter().map(|(id, name)| format!("{id}{name} ")).collect()
        };
        assert_eq!(as_text(found(&[1, 2, 5, 6, 7, 9], &[])), "1a 2b 5c 6d 7e 9f ");
        assert_eq!(as_text(found(&[1, 2, 5, 6, 7], &[])), "");
        assert_eq!(as_text(found(&[1, 2, 5, 6, 7], &[(5, "c")])), "1a 2b ");
        assert_eq!(as_text(found(&[1, 5, 6, 7, 9], &[(5, "c")])), "6d 7e 9f ");
        assert_eq!(as_text(found(&[2, 5, 9], &[(2, "a"), (5, "c"), (9, "e")])), "");
        assert_eq!(as_text(found(&[2, 3, 5], &[(2, "a"), (5, "c")])), "3b ");
        assert_eq!(as_text(found(&[1, 2, 3, 4, 5, 6], &[(2, "e"), (4, "a")])), "");
        assert_eq!(as_text(found(&[1, 2, 3, 4, 5, 6], &[(2, "z")])), "");
    }
}
