//! Invariants that every snapshot of the store under torture must satisfy, after any sequence of kills.

use duramen::Snapshot;

use super::content::{
    ACCOUNTS, BALANCE, KEPT, LISTS, LONG_EVERY, LONG_VALUES, Maps, RECORDS, Records, last_writer, ledger_key,
    ledger_value, long_value, number_of,
};
use super::lists::{List, Lists, check, check_growth};

/// Number of record groups checked for each writer in each pass; half of them are the newest. For families with many
/// records per group, a pass checks only 1 group.
const GROUPS_LOOKED_AT: u64 = 16;

/// What a snapshot showed, for comparison with the next snapshot.
#[derive(Default)]
pub struct Seen {
    /// Newest transaction of each writer.
    newest: Vec<u64>,
    lists: Lists,
}

fn told<T>(what: &str, result: duramen::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Checks a snapshot, and checks that it continues what an earlier snapshot showed (`seen`). It checks everything
/// except records, of which it samples some.
pub fn look(snapshot: &Snapshot, maps: &Maps, slots: u32, seen: &Seen) -> Result<Seen, String> {
    check_accounts(snapshot, maps)?;
    let newest: Vec<u64> = (0..slots)
        .map(|slot| newest_of(snapshot, maps, slot))
        .collect::<Result<_, _>>()?;
    for (slot, (earlier, later)) in seen.newest.iter().zip(&newest).enumerate() {
        if later < earlier {
            return Err(format!(
                "writer {slot} had committed transaction {earlier}, now only {later}"
            ));
        }
    }
    for (slot, newest) in (0..slots).zip(&newest) {
        check_long(snapshot, maps, slot, *newest)?;
        for records in &RECORDS {
            // Checks the groups written last, and as many groups from anywhere.
            let last = records.group_of(newest - newest % records.every()).unwrap_or(0);
            let looked_at = if records.are_many() { 1 } else { GROUPS_LOOKED_AT };
            for back in 0..looked_at {
                let any = (newest.wrapping_mul(0x9E37_79B9) + back * 7) % records.groups;
                check_group(snapshot, maps, slot, *newest, (records, any))?;
                let recent = (last + records.groups - back) % records.groups;
                check_group(snapshot, maps, slot, *newest, (records, recent))?;
            }
        }
    }
    let lists = lists(snapshot, maps)?;
    check(&lists)?;
    check_growth(&seen.lists, &lists)?;
    Ok(Seen { newest, lists })
}

/// Checks that the total balance is constant.
fn check_accounts(snapshot: &Snapshot, maps: &Maps) -> Result<(), String> {
    let mut cursor = told("accounts", snapshot.range(&maps.accounts, ..))?;
    let (mut sum, mut count) = (0, 0);
    while let Some((_, balance)) = told("accounts", cursor.next())? {
        sum += number_of(&balance)?;
        count += 1;
    }
    // Either no process has created the accounts yet, or all of them exist.
    let expected = if count == 0 { 0 } else { i64::from(ACCOUNTS) * BALANCE };
    if sum != expected || (count != 0 && count != ACCOUNTS) {
        return Err(format!("{count} accounts hold {sum}, not {expected}"));
    }
    Ok(())
}

/// Returns the newest transaction of a writer. Checks that all kept transactions are present without a gap, unchanged,
/// and counted.
pub fn newest_of(snapshot: &Snapshot, maps: &Maps, slot: u32) -> Result<u64, String> {
    let counted = told("counts", snapshot.get(&maps.counts, slot.to_be_bytes()))?;
    let newest = counted.map_or(Ok(0), |count| number_of(&count))? as u64;
    let mut cursor = told("ledger", snapshot.prefix(&maps.ledger, slot.to_be_bytes()))?;
    let mut expected = newest.saturating_sub(KEPT) + 1;
    while let Some((key, value)) = told("ledger", cursor.next())? {
        if key != ledger_key(slot, expected) {
            return Err(format!(
                "writer {slot} has committed {newest} transactions; where {expected} should be in the ledger is {key:?}"
            ));
        }
        if *value != *ledger_value(slot, expected) {
            return Err(format!(
                "transaction {expected} of writer {slot} is not what was written"
            ));
        }
        expected += 1;
    }
    if expected != newest + 1 {
        return Err(format!(
            "writer {slot} has committed {newest} transactions; {expected} is missing in the ledger"
        ));
    }
    Ok(newest)
}

/// Checks that each long value is that of the newest transaction that wrote it.
fn check_long(snapshot: &Snapshot, maps: &Maps, slot: u32, newest: u64) -> Result<(), String> {
    for which in 0..LONG_VALUES {
        let number = last_writer(newest, which, LONG_EVERY, LONG_VALUES);
        let expected = number.and_then(|number| long_value(slot, number));
        let found = told("long", snapshot.get(&maps.long, ledger_key(slot, which)))?;
        if found.as_deref() != expected.as_deref() {
            let length = found.map(|found| found.len());
            return Err(format!(
                "long value {which} of writer {slot}, who has committed {newest}, is not that of transaction {number:?}: {length:?} bytes"
            ));
        }
    }
    Ok(())
}

/// Checks every record of every writer against that writer's newest transaction, and that there are no other records.
pub fn check_records(snapshot: &Snapshot, maps: &Maps, newest: &[u64]) -> Result<(), String> {
    let mut expected = 0;
    for (slot, &newest) in (0..).zip(newest) {
        for records in &RECORDS {
            for group in 0..records.groups {
                check_group(snapshot, maps, slot, newest, (records, group))?;
                let is_written = records.last_writer(newest, group).is_some();
                expected += u64::from(is_written) * records.keys(slot, group).count() as u64;
            }
        }
    }
    let found = told("records", snapshot.count(&maps.records, ..))?;
    if found != expected {
        return Err(format!("{found} records are there, {expected} were written"));
    }
    Ok(())
}

/// Checks that the records of a group are those of the newest transaction that wrote it.
fn check_group(
    snapshot: &Snapshot,
    maps: &Maps,
    slot: u32,
    newest: u64,
    (records, group): (&Records, u64),
) -> Result<(), String> {
    let number = records.last_writer(newest, group);
    for key in records.keys(slot, group) {
        let expected = number.map(|number| records.value(&key, slot, number));
        let found = told("records", snapshot.get(&maps.records, key))?;
        if found.as_deref() != expected.as_deref() {
            return Err(format!(
                "record {key:?} of writer {slot}, who has committed {newest}, is not that of transaction {number:?}: {:?}",
                found.as_deref()
            ));
        }
    }
    Ok(())
}

fn lists(snapshot: &Snapshot, maps: &Maps) -> Result<Lists, String> {
    let mut lists = Lists::new();
    for name in 0..LISTS {
        if let Some(list) = told("lists", snapshot.get(&maps.lists, [name]))? {
            lists.insert(name, List::decode(&list)?);
        }
    }
    Ok(lists)
}
