//! The exports of a server: where they go, and that one runs at a time.

use std::path::PathBuf;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use duramen::Store;
use duramen_backup::{Backup, BackupError, ExportOptions};
use duramen_proto::v1::*;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::config::Config;
use crate::error::{failed, status};

/// How often an export tells how far it is.
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// Where a server exports its store.
pub(crate) struct Backups {
    place: Option<String>,
    data_dir: PathBuf,
    /// Held while an export is under way.
    running: Mutex<()>,
}

impl Backups {
    pub(crate) fn new(config: &Config) -> Backups {
        Backups {
            place: config.backup_place.clone(),
            data_dir: config.data_dir.clone(),
            running: Mutex::new(()),
        }
    }

    /// Exports the store, and sends how far it is, for a receiver that may have gone.
    pub(crate) fn export(
        &self,
        store: &Store,
        request: &ExportRequest,
        responses: &mpsc::Sender<ExportResponse>,
    ) -> Result<(), Status> {
        let refused = |reason, message| Err(status(Code::FailedPrecondition, reason, message));
        let Some(place) = &self.place else {
            let message = "this server makes no exports; start it with --backup-place and a directory or a URL";
            return refused("NO_BACKUP_PLACE", message.into());
        };
        if Backup::is_in(place, &self.data_dir) {
            let message =
                format!("the backup_place {place:?} is in the store that it would be a backup of; name another one");
            return refused("BACKUP_PLACE", message);
        }
        let _running = match self.running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(running)) => running.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return refused("EXPORT_RUNS", "an export is under way; wait for its end".into());
            }
        };
        let options = ExportOptions::new().full(request.full).metadata(&request.metadata);
        let (mut told, mut response) = (Instant::now(), ExportResponse::default());
        let exported = Backup::open(place).and_then(|backup| {
            backup.export(store, &options, &mut |now| {
                (response.changes, response.bytes) = (now.records, now.bytes);
                if told.elapsed() >= TOLD_EVERY {
                    told = Instant::now();
                    // A slow client learns the next number.
                    let _ = responses.try_send(response.clone());
                }
            })
        });
        let exported = exported.map_err(|error| of_backup(&error))?;
        response.export = Some(Export {
            number: exported.number,
            commit: exported.commit,
            pairs: exported.pairs,
            bytes: exported.bytes(),
            packs: exported.packs.len() as u64,
            parent: exported.parent.as_ref().map(|parent| parent.number),
            created_ms: exported.created_ms,
            metadata: exported.metadata.clone(),
        });
        let _ = responses.blocking_send(response);
        Ok(())
    }
}

/// What a failure of a backup means for the request.
fn of_backup(error: &BackupError) -> Status {
    let (code, reason) = match error {
        BackupError::Store(error) => return failed(error),
        BackupError::TakenMeanwhile { .. } => (Code::Aborted, "EXPORT_TAKEN"),
        BackupError::Object { .. } => (Code::Unavailable, "BACKUP_UNREACHABLE"),
        BackupError::Damaged { .. } | BackupError::MissingLink { .. } => (Code::DataLoss, "BACKUP_DAMAGED"),
        _ => (Code::FailedPrecondition, "BACKUP_PLACE"),
    };
    status(code, reason, error.to_string())
}
