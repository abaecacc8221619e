//! SQLite, through rusqlite with its bundled library: one table of two blobs whose primary key is the key.
//!
//! `synced` is write-ahead logging with `synchronous=FULL`; `written` uses `synchronous=NORMAL` instead, which syncs
//! only at checkpoints. A connection belongs to one thread, so the adapter keeps a pool: a call takes a connection and
//! returns it. Each connection prepares its statements once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use crate::answer::Found;
use crate::data::KeySlice;
use crate::peer::{Class, Description, Driver, Pair, Pairs, Peer, Reader, Reading, Setting};
use crate::versions::locked_version;

const PUT: &str = "INSERT INTO pairs VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
const DELETE: &str = "DELETE FROM pairs WHERE key = ?1";
const GET: &str = "SELECT value FROM pairs WHERE key = ?1";
const SCAN: &str = "SELECT key, value FROM pairs WHERE key >= ?1 ORDER BY key LIMIT ?2";
const SCAN_BACK: &str = "SELECT key, value FROM pairs ORDER BY key DESC LIMIT ?1";

/// Maximum time a writer waits for writers of other processes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// The driver of SQLite.
pub struct Sqlite;

struct Store {
    file: PathBuf,
    setting: Setting,
    idle: Mutex<Vec<Connection>>,
    /// SQLite allows one writer at a time. Waiting in this queue is cheaper than SQLite's busy handler, which sleeps
    /// and tries again.
    writer: Mutex<()>,
}

impl Driver for Sqlite {
    fn describe(&self) -> Description {
        Description {
            name: "sqlite".to_string(),
            version: format!("SQLite {} through {}", rusqlite::version(), locked_version("rusqlite")),
            classes: vec![
                (Class::Synced, "journal_mode=WAL, synchronous=FULL".to_string()),
                (Class::Written, "journal_mode=WAL, synchronous=NORMAL".to_string()),
            ],
            options: vec![
                "WITHOUT ROWID: the key is the table's only tree".to_string(),
                "cache_size and mmap_size as large as the cache of every store that has one; each connection of the pool \
                 has a cache of that size, and there are as many connections as threads call at once"
                    .to_string(),
                "a pool of connections; writers wait for each other outside of SQLite".to_string(),
                format!(
                    "busy_timeout of {} s: where several processes share the store, its default is an error at once",
                    BUSY_TIMEOUT.as_secs()
                ),
            ],
            is_persistent: true,
            is_shared_by_processes: true,
            ..Description::default()
        }
    }

    fn open(&self, directory: &Path, setting: Setting) -> Result<Box<dyn Peer>> {
        let store = Store {
            file: directory.join("pairs.sqlite"),
            setting,
            idle: Mutex::default(),
            writer: Mutex::default(),
        };
        store.with(|connection| {
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS pairs (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
            )?;
            Ok(())
        })?;
        Ok(Box::new(store))
    }
}

impl Store {
    fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(&self.file)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let synchronous = if self.setting.class == Class::Synced {
            "FULL"
        } else {
            "NORMAL"
        };
        let cache_bytes = self.setting.cache_bytes;
        connection.execute_batch(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA mmap_size={cache_bytes}; \
             PRAGMA cache_size=-{};",
            cache_bytes >> 10
        ))?;
        Ok(connection)
    }

    fn with<T>(&self, body: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let done = body(&mut connection)?;
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
        Ok(done)
    }

    fn write(&self, body: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            body(&transaction)?;
            Ok(transaction.commit()?)
        })
    }
}

impl Reader for Connection {
    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        let mut statement = self.prepare_cached(GET)?;
        let mut checked = Ok(());
        let row = statement
            .query_row(params![key], |row| {
                checked = found(Some(row.get_ref(0)?.as_blob()?));
                Ok(())
            })
            .optional()?;
        match row {
            Some(()) => checked,
            None => found(None),
        }
    }

    fn scan(&self, from: &[u8], limit: u64, pair: &mut Pair) -> Result<()> {
        let mut statement = self.prepare_cached(SCAN)?;
        let mut rows = statement.query(params![from, i64::try_from(limit).unwrap_or(i64::MAX)])?;
        while let Some(row) = rows.next()? {
            pair(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?)?;
        }
        Ok(())
    }

    fn scan_back(&self, limit: u64, pair: &mut Pair) -> Result<()> {
        let mut statement = self.prepare_cached(SCAN_BACK)?;
        let mut rows = statement.query(params![i64::try_from(limit).unwrap_or(i64::MAX)])?;
        while let Some(row) = rows.next()? {
            pair(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?)?;
        }
        Ok(())
    }
}

impl Peer for Store {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(|connection| {
            // A statement outside a transaction is its own transaction.
            connection.prepare_cached(PUT)?.execute(params![key, value])?;
            Ok(())
        })
    }

    fn put_many(&self, pairs: &mut Pairs) -> Result<()> {
        self.write(|connection| {
            let mut statement = connection.prepare_cached(PUT)?;
            for (key, value) in pairs {
                statement.execute(params![key, value])?;
            }
            Ok(())
        })
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(|connection| {
            connection.prepare_cached(DELETE)?.execute(params![key])?;
            Ok(())
        })
    }

    fn delete_many(&self, keys: KeySlice) -> Result<()> {
        self.write(|connection| {
            let mut statement = connection.prepare_cached(DELETE)?;
            for key in keys.iter() {
                statement.execute(params![key])?;
            }
            Ok(())
        })
    }

    fn read(&self, reading: &mut Reading) -> Result<()> {
        self.with(|connection| {
            let transaction = connection.transaction()?;
            reading(&*transaction)
        })
    }

    fn get(&self, key: &[u8], found: &mut Found) -> Result<()> {
        self.with(|connection| Reader::get(connection, key, found))
    }

    fn sync(&self) -> Result<()> {
        self.with(|connection| {
            // A checkpoint syncs the log before it copies pages from it, and the database file afterwards.
            let (busy, frames, copied): (i64, i64, i64) =
                connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?;
            ensure!(
                busy == 0 && frames == copied,
                "a checkpoint copied {copied} of {frames} frames"
            );
            Ok(())
        })
    }

    fn compact(&self) -> Result<()> {
        self.with(|connection| {
            connection.execute_batch("VACUUM")?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            Ok(())
        })
    }

    fn checkpoint(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir(directory)?;
        let file = directory.join("pairs.sqlite");
        self.with(|connection| {
            connection.execute("VACUUM INTO ?1", params![file.to_string_lossy()])?;
            Ok(())
        })?;
        Ok(std::fs::File::open(file)?.sync_all()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let idle = self.idle.into_inner().unwrap_or_else(PoisonError::into_inner);
        idle.into_iter()
            .try_for_each(|connection| connection.close().map_err(|(_, error)| error))?;
        Ok(())
    }
}
