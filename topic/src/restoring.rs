//! What a store keeps of its topics when it is put back to a checkpoint.
//!
//! Offsets go on above all that were assigned: the engine sees to that. So a topic lacks the offsets that were assigned since the
//! checkpoint, and readers must pass over them.

use duramen_engine::{Result, Snapshot, Store, Transaction};

use crate::record::TopicRecord;
use crate::tables::{self, NAMES, NEXT_ID, Tables};

/// The reserved maps of topics.
#[doc(hidden)]
pub const MAPS: [&str; 8] = NAMES;

/// Lets no topic and no group get an id that another one had, and readers pass over offsets that are not there. The snapshot shows
/// the checkpoint, the transaction what there was before the restore.
///
/// # Errors
/// Those of reading and writing.
#[doc(hidden)]
pub fn keep_ids(store: &Store, restored: &Snapshot, tx: &mut Transaction) -> Result<()> {
    if !tables::exist(store)? {
        return Ok(());
    }
    let tables = Tables::open(store)?;
    if let Some(next) = tx.get(&tables.topics, NEXT_ID)? {
        tx.put(&tables.topics, NEXT_ID, &*next)?;
    }
    let mut grown = Vec::new();
    // Other rows begin with a zero, and names do not.
    let mut rows = restored.range(&tables.topics, &[1u8][..]..)?;
    while let Some((key, row)) = rows.next()? {
        let record = TopicRecord::decode(&row)?;
        let sequence = tables.sequence(record.id, &String::from_utf8_lossy(key))?;
        if restored.sequence_state(&sequence)? != tx.sequence_state(&sequence)? {
            grown.push((key.to_vec(), record));
        }
    }
    for (key, record) in grown {
        let record = TopicRecord {
            is_sparse: true,
            ..record
        };
        tx.put(&tables.topics, key, record.encode())?;
    }
    Ok(())
}
