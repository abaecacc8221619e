//! The service `Admin`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use duramen::tree::Trees;
use duramen_proto::v1::admin_server::Admin;
use duramen_proto::v1::*;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::{checkpoints, send};
use crate::error::{failed, invalid, status, unanswered};
use crate::security::{Access, Resource};
use crate::state::State;

/// The longest name of a copy, in bytes.
const COPY_NAME_BYTES_MAX: usize = 100;

pub(crate) struct AdminService(pub(crate) State);

impl AdminService {
    /// Runs work that may take long on a thread of its own.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&duramen::Store) -> duramen::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let store = self.0.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        let done = done.map_err(|_| unanswered())?;
        done.map_err(|error| failed(&error))
    }

    /// Answers a request that the store alone answers, on a thread of its own.
    async fn answer<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        work: impl FnOnce(&duramen::Store, &Q) -> duramen::Result<A> + Send + 'static,
    ) -> Result<Response<A>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let request = request.into_inner();
        self.apart(move |store| work(store, &request)).await.map(Response::new)
    }
}

impl AdminService {
    /// The stream of what a thread makes, and of its failure. When the client has gone, sending fails in the thread.
    fn forward<T: Send + 'static>(
        &self,
        mut made: mpsc::Receiver<T>,
        done: JoinHandle<Result<(), Status>>,
    ) -> ReceiverStream<Result<T, Status>> {
        let (sender, receiver) = mpsc::channel(2);
        send(&self.0, sender.clone(), async move {
            while let Some(response) = made.recv().await {
                if sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
            if let Err(status) = done.await.unwrap_or_else(|_| Err(unanswered())) {
                let _ = sender.send(Err(status)).await;
            }
        });
        ReceiverStream::new(receiver)
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn statistics(&self, request: Request<StatisticsRequest>) -> Result<Response<StatisticsResponse>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let trees = self.0.trees.clone();
        let work =
            move |store: &duramen::Store| Ok((store.stat()?, trees_of(&trees)?, store.checkpoints().list()?.len()));
        let (statistics, trees, checkpoints) = self.apart(work).await?;
        let topics = self.0.topics.list().map_err(|error| failed(&error))?;
        let (commands, commits) = self.0.pipeline.counts();
        let maps = statistics.maps.iter().map(|map| MapStatistics {
            map: map.name.clone(),
            pairs: map.pairs,
        });
        Ok(Response::new(StatisticsResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: self.0.begun.elapsed().as_millis() as u64,
            commands,
            commits,
            maps: maps.collect(),
            newest_commit: statistics.commit,
            synced_commit: statistics.synced_commit,
            data_bytes: statistics.data_bytes,
            log_bytes: statistics.log_bytes,
            unfolded_operations: statistics.unfolded_operations,
            subscriptions: self.0.subscriptions.load(Ordering::Relaxed),
            sessions: self.0.sessions.count() as u64,
            trees,
            topics: topics.len() as u64,
            checkpoints: checkpoints as u64,
        }))
    }

    async fn compact(&self, request: Request<CompactRequest>) -> Result<Response<CompactResponse>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let compacted = self.apart(|store| store.compact(&mut |_| {})).await?;
        Ok(Response::new(CompactResponse {
            bytes_before: compacted.bytes_before,
            bytes_after: compacted.bytes_after,
        }))
    }

    async fn copy(&self, request: Request<CopyRequest>) -> Result<Response<CopyResponse>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let name = request.into_inner().name;
        check_copy_name(&name)?;
        let Some(copies) = &self.0.copy_dir else {
            let message = "this server makes no copies; start it with --copy-dir and a directory for them";
            return Err(status(Code::FailedPrecondition, "NO_COPY_DIRECTORY", message));
        };
        let directory = copies.join(&name);
        if directory.exists() {
            return Err(copy_exists(&directory));
        }
        // Until it is whole it has a name that no copy can have.
        let unfinished = copies.join(format!(".{name}.{:016x}", self.0.store.random_number()));
        let store = self.0.store.clone();
        // It goes on when the client gives up.
        let copied = tokio::task::spawn_blocking(move || copy(&store, &unfinished, &directory));
        copied.await.map_err(|_| unanswered())?.map(Response::new)
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let report = self.apart(|store| store.check(&mut |_| {})).await?;
        Ok(Response::new(CheckResponse {
            problems: report.problems,
            pairs: report.pairs,
        }))
    }

    async fn create_checkpoint(
        &self,
        request: Request<CreateCheckpointRequest>,
    ) -> Result<Response<CreateCheckpointResponse>, Status> {
        self.answer(request, checkpoints::create).await
    }

    async fn list_checkpoints(
        &self,
        request: Request<ListCheckpointsRequest>,
    ) -> Result<Response<ListCheckpointsResponse>, Status> {
        self.answer(request, checkpoints::list).await
    }

    async fn get_checkpoint(
        &self,
        request: Request<GetCheckpointRequest>,
    ) -> Result<Response<GetCheckpointResponse>, Status> {
        self.answer(request, checkpoints::get).await
    }

    async fn drop_checkpoint(
        &self,
        request: Request<DropCheckpointRequest>,
    ) -> Result<Response<DropCheckpointResponse>, Status> {
        self.answer(request, checkpoints::drop_named).await
    }

    async fn keep_last_checkpoints(
        &self,
        request: Request<KeepLastCheckpointsRequest>,
    ) -> Result<Response<KeepLastCheckpointsResponse>, Status> {
        self.answer(request, checkpoints::keep_last).await
    }

    async fn restore_checkpoint(
        &self,
        request: Request<RestoreCheckpointRequest>,
    ) -> Result<Response<RestoreCheckpointResponse>, Status> {
        self.answer(request, checkpoints::restore).await
    }

    type ExportStream = ReceiverStream<Result<ExportResponse, Status>>;

    async fn export(&self, request: Request<ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let (request, state) = (request.into_inner(), self.0.clone());
        let (responses, made) = mpsc::channel(1);
        // It goes on when the client gives up.
        let done = tokio::task::spawn_blocking(move || state.backups.export(&state.store, &request, &responses));
        Ok(Response::new(self.forward(made, done)))
    }

    type DiffCheckpointsStream = ReceiverStream<Result<DiffCheckpointsResponse, Status>>;

    async fn diff_checkpoints(
        &self,
        request: Request<DiffCheckpointsRequest>,
    ) -> Result<Response<Self::DiffCheckpointsStream>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let request = request.into_inner();
        let store = self.0.store.clone();
        // A slow client holds a few batches, a thread, and the two checkpoints.
        let (responses, made) = mpsc::channel(1);
        let done = tokio::task::spawn_blocking(move || checkpoints::diff(&store, &request, &responses));
        Ok(Response::new(self.forward(made, done)))
    }
}

fn trees_of(trees: &Trees) -> duramen::Result<Vec<TreeStatistics>> {
    let mut all = Vec::new();
    for tree in trees.list()? {
        // Another call may have deleted it meanwhile.
        let Some(found) = trees.get(&tree)? else { continue };
        let view = found.view()?;
        all.push(TreeStatistics {
            tree,
            nodes: view.count_range([], None)?,
            revision: view.revision(),
        });
    }
    Ok(all)
}

/// Refuses a name that could lead out of the directory of the copies.
fn check_copy_name(name: &str) -> Result<(), Status> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let has_length = (1..=COPY_NAME_BYTES_MAX).contains(&name.len());
    if has_length && !name.starts_with('.') && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(invalid(format!(
        "{name:?} cannot name a copy; use 1 to {COPY_NAME_BYTES_MAX} letters, digits, '-', '_' and '.', and begin with \
         another character than '.'"
    )))
}

fn copy_exists(directory: &Path) -> Status {
    let message = format!("there is {} already; take another name", directory.display());
    status(Code::AlreadyExists, "COPY_EXISTS", message)
}

/// Makes a copy of a store, and gives it its name once it is whole.
fn copy(store: &duramen::Store, unfinished: &Path, directory: &Path) -> Result<CopyResponse, Status> {
    let in_directory = |error: io::Error| {
        let message = format!("the copy cannot be made in {}: {error}", directory.display());
        status(Code::FailedPrecondition, "COPY_DIRECTORY", message)
    };
    // The copy holds what the store holds, so no other user may read it.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(unfinished);
    made.map_err(in_directory)?;
    let mut pairs = 0;
    let copied = store.copy(unfinished, &mut |progress| pairs = progress.done);
    let named = copied.map_err(|error| failed(&error)).and_then(|()| {
        let copies = directory.parent().unwrap_or(directory);
        let named = fs::rename(unfinished, directory).and_then(|()| File::open(copies)?.sync_all());
        named.map_err(|error| match error.kind() {
            // Another call was faster.
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => copy_exists(directory),
            _ => in_directory(error),
        })
    });
    if named.is_err() {
        let _ = fs::remove_dir_all(unfinished);
    }
    named?;
    let directory = directory.display().to_string();
    Ok(CopyResponse { directory, pairs })
}
