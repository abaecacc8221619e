//! Lists that transactions append to. A transaction appends to several lists, so the order of elements in each list
//! shows the order of the transactions. No two lists may contradict each other.
//!
//! An element names the transaction that appended it, and the other lists and positions it was appended to. Each
//! snapshot is checked in three ways:
//! - *atomic*: an element in one of its lists is in all of them, at the positions it names;
//! - *ordered*: the orders of all lists together have no cycle (what Adya calls G0 and G1c; the method is that of
//!   Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations", 2020, for appends);
//! - *growing*: the list of an earlier snapshot is a prefix of the list of a later one.
//!
//! ```text
//! list     elements that were cut off u64 | element*
//! element  writer u32 | number u64 | lists u8 | (list u8 | position u64)*
//! ```

use std::collections::{BTreeMap, HashMap};

/// Maximum number of elements in a list, and the number of elements removed from its front when it is full.
const LENGTH_MAX: usize = 48;
const CUT: usize = 16;

/// A transaction that appended to lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Writer and transaction number.
    pub by: (u32, u64),
    /// Lists and positions the transaction appended to.
    pub places: Vec<(u8, u64)>,
}

/// A list as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Number of elements removed from the front.
    cut: u64,
    elements: Vec<Element>,
}

impl List {
    pub fn decode(bytes: &[u8]) -> Result<List, String> {
        let mut rest = bytes;
        let mut list = List {
            cut: u64::from_be_bytes(take(&mut rest)?),
            elements: Vec::new(),
        };
        while !rest.is_empty() {
            let by = (
                u32::from_be_bytes(take(&mut rest)?),
                u64::from_be_bytes(take(&mut rest)?),
            );
            let [count] = take(&mut rest)?;
            let mut places = Vec::new();
            for _ in 0..count {
                let [list] = take(&mut rest)?;
                places.push((list, u64::from_be_bytes(take(&mut rest)?)));
            }
            list.elements.push(Element { by, places });
        }
        Ok(list)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.cut.to_be_bytes().to_vec();
        for element in &self.elements {
            bytes.extend(element.by.0.to_be_bytes());
            bytes.extend(element.by.1.to_be_bytes());
            bytes.push(element.places.len() as u8);
            for (list, position) in &element.places {
                bytes.push(*list);
                bytes.extend(position.to_be_bytes());
            }
        }
        bytes
    }

    /// Returns the position of the next element.
    pub fn end(&self) -> u64 {
        self.cut + self.elements.len() as u64
    }

    pub fn append(&mut self, element: Element) {
        self.elements.push(element);
        if self.elements.len() > LENGTH_MAX {
            self.elements.drain(..CUT);
            self.cut += CUT as u64;
        }
    }

    /// Returns the element at a position. `Err` means the element was removed from the front, so its content is
    /// unknown.
    fn at(&self, position: u64) -> Result<Option<&Element>, ()> {
        let index = position.checked_sub(self.cut).ok_or(())?;
        Ok(self.elements.get(index as usize))
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest.split_first_chunk().ok_or("a list ends inside an element")?;
    *rest = tail;
    Ok(*head)
}

/// All lists of a snapshot.
pub type Lists = BTreeMap<u8, List>;

/// Checks the lists of one snapshot, and describes the first problem.
pub fn check(lists: &Lists) -> Result<(), String> {
    for (name, list) in lists {
        for (position, element) in (list.cut..).zip(&list.elements) {
            if !element.places.contains(&(*name, position)) {
                return Err(format!(
                    "list {name} at {position} has {element:?}, which belongs elsewhere"
                ));
            }
            for (other, place) in &element.places {
                match lists.get(other).map_or(Ok(None), |list| list.at(*place)) {
                    Ok(Some(found)) if found == element => {}
                    Err(()) => {}
                    Ok(found) => {
                        return Err(format!(
                            "list {name} shows {element:?}, but list {other} has {found:?} in its place"
                        ));
                    }
                }
            }
        }
    }
    check_order(lists)
}

/// Checks that some order of all transactions agrees with every list (Kahn's algorithm).
fn check_order(lists: &Lists) -> Result<(), String> {
    let mut before: HashMap<(u32, u64), usize> = HashMap::new();
    let mut after: HashMap<(u32, u64), Vec<(u32, u64)>> = HashMap::new();
    for list in lists.values() {
        for element in &list.elements {
            before.entry(element.by).or_default();
        }
        for pair in list.elements.windows(2) {
            *before.entry(pair[1].by).or_default() += 1;
            after.entry(pair[0].by).or_default().push(pair[1].by);
        }
    }
    let mut ready: Vec<_> = before
        .iter()
        .filter(|(_, count)| **count == 0)
        .map(|(by, _)| *by)
        .collect();
    let mut ordered = 0;
    while let Some(by) = ready.pop() {
        ordered += 1;
        for next in after.remove(&by).unwrap_or_default() {
            let count = before.get_mut(&next).expect("each has an entry");
            *count -= 1;
            if *count == 0 {
                ready.push(next);
            }
        }
    }
    if ordered == before.len() {
        return Ok(());
    }
    let caught: Vec<_> = before
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(by, _)| *by)
        .take(8)
        .collect();
    Err(format!(
        "lists disagree about the order of transactions, among them {caught:?}"
    ))
}

/// Checks that each list of `later` continues the list of `earlier`.
pub fn check_growth(earlier: &Lists, later: &Lists) -> Result<(), String> {
    for (name, old) in earlier {
        let Some(new) = later.get(name) else {
            return Err(format!("list {name} is gone"));
        };
        if new.end() < old.end() || new.cut < old.cut {
            return Err(format!("list {name} went back from {} to {}", old.end(), new.end()));
        }
        for (position, element) in (old.cut..).zip(&old.elements) {
            if let Ok(found) = new.at(position)
                && found != Some(element)
            {
                return Err(format!("list {name} at {position} had {element:?}, and has {found:?}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(number: u64, places: &[(u8, u64)]) -> Element {
        Element {
            by: (0, number),
            places: places.to_vec(),
        }
    }

    fn lists(all: &[(u8, &[Element])]) -> Lists {
        let list = |elements: &[Element]| List {
            cut: 0,
            elements: elements.to_vec(),
        };
        all.iter().map(|(name, elements)| (*name, list(elements))).collect()
    }

    #[test]
    fn list_is_read_as_it_was_written_and_cut_when_it_is_long() {
        let mut list = List::default();
        for number in 0..200 {
            assert_eq!(list.end(), number);
            list.append(element(number, &[(1, number), (2, 7)]));
            assert_eq!(List::decode(&list.encode()), Ok(list.clone()));
        }
        assert!(list.elements.len() <= LENGTH_MAX && list.cut > 0);
        let bytes = list.encode();
        assert!(List::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn half_of_a_transaction_is_found() {
        let both = element(1, &[(1, 0), (2, 0)]);
        let both = std::slice::from_ref(&both);
        assert_eq!(check(&lists(&[(1, both), (2, both)])), Ok(()));
        assert!(check(&lists(&[(1, both), (2, &[])])).is_err());
        assert!(check(&lists(&[(1, both)])).is_err());
    }

    #[test]
    fn orders_that_contradict_each_other_are_found() {
        let (one, other) = (element(1, &[(1, 0), (2, 1)]), element(2, &[(1, 1), (2, 0)]));
        let found = check(&lists(&[(1, &[one.clone(), other.clone()]), (2, &[other, one])]));
        assert!(found.is_err_and(|problem| problem.contains("order")));
    }

    #[test]
    fn list_that_goes_back_or_changes_is_found() {
        let (one, two) = (element(1, &[(1, 0)]), element(2, &[(1, 1)]));
        let early = lists(&[(1, std::slice::from_ref(&one))]);
        let late = lists(&[(1, &[one.clone(), two])]);
        assert_eq!(check_growth(&early, &late), Ok(()));
        assert!(check_growth(&late, &early).is_err());
        assert!(check_growth(&late, &lists(&[])).is_err());
        let changed = lists(&[(1, &[element(3, &[(1, 0)])])]);
        assert!(check_growth(&early, &changed).is_err());
    }
}
