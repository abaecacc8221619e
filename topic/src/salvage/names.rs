//! Names of topics whose records are lost.
//!
//! The registry has the number and name of each topic that was created or deleted (see [`crate::registry`]). Entries of
//! an older version have no numbers. There the names that were created and not deleted, in that order, belong to the
//! numbers in their order, since numbers of topics grow. If some records are left, it is enough that between two of
//! them there are as many names as numbers. A topic without any remaining rows has a name there, and no number.

use std::collections::{BTreeMap, BTreeSet};

use duramen_engine::Result;

use super::{Saving, text};
use crate::registry::{Entry, Event};
use crate::tables::{REGISTRY, offset_key, offset_of};

impl Saving<'_> {
    /// Finds the names of topics with these numbers, some of which are known, as far as the registry has the others.
    /// Reports names without a number as lost.
    pub(super) fn names_in_the_registry(
        &mut self,
        ids: &BTreeSet<u32>,
        known: &BTreeMap<u32, String>,
    ) -> Result<BTreeMap<u32, String>> {
        let mut names: Vec<String> = Vec::new();
        let mut by_number: BTreeMap<u32, String> = BTreeMap::new();
        let (mut next, mut is_strange) = (None, false);
        let messages = &self.source.tables.messages;
        let is_whole = self.source.rows(messages, &REGISTRY.to_be_bytes(), &mut |key, row| {
            // The oldest entries may have been removed. There is no gap between the remaining entries.
            let expected = *next.get_or_insert_with(|| offset_of(key));
            is_strange |= key != offset_key(REGISTRY, expected);
            next = Some(expected + 1);
            let entry = Entry::decode(row).and_then(|entry| Ok((text(entry.name.as_bytes())?, entry.what)));
            match entry {
                Ok((name, Some((Event::Deleted, id)))) => {
                    by_number.remove(&id);
                    names.retain(|made| *made != name);
                }
                Ok((name, Some((_, id)))) => {
                    names.retain(|made| *made != name);
                    by_number.insert(id, name);
                }
                Ok((name, None)) => match names.iter().position(|made| *made == name) {
                    Some(deleted) => drop(names.remove(deleted)),
                    None => names.push(name),
                },
                Err(_) => is_strange = true,
            }
            Ok(())
        })?;
        let is_whole = is_whole && !is_strange;
        let mut found = BTreeMap::new();
        if is_whole {
            // Both lists exclude topics that have entries with numbers: the rest still has one order.
            let numbers = ids.iter().filter(|id| !by_number.contains_key(id));
            let numbers: Vec<u32> = numbers.copied().collect();
            let known = known.iter().filter(|(id, _)| !by_number.contains_key(id));
            let known = known.map(|(id, name)| (*id, name.clone())).collect();
            found = matched(&numbers, &names, &known);
        }
        // Of two topics with one name the newer topic gets it: the entry that records the other's deletion is lost.
        for (id, name) in by_number.into_iter().rev() {
            let is_taken = known.values().chain(found.values()).any(|taken| *taken == name);
            match ids.contains(&id) && !is_taken && !known.contains_key(&id) {
                true => drop(found.insert(id, name)),
                false => names.push(name),
            }
        }
        names.retain(|name| !known.values().chain(found.values()).any(|known| known == name));
        if is_whole && !names.is_empty() {
            self.lose(format!("which topics, or whether any, were called {}", quoted(&names)));
        }
        Ok(found)
    }
}

/// Assigns names to numbers, both in order, between the known pairs.
fn matched(ids: &[u32], names: &[String], known: &BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    let (mut first_id, mut first_name) = (0, 0);
    for id in (0..=ids.len()).filter(|id| ids.get(*id).is_none_or(|id| known.contains_key(id))) {
        let name = match ids.get(id) {
            Some(id) => names.iter().position(|name| *name == known[id]),
            None => Some(names.len()),
        };
        // If the order differs from that of the numbers, it cannot be used.
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
