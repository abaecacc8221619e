//! The service `Admin`.

use std::sync::atomic::Ordering;

use duramen_proto::v1::admin_server::Admin;
use duramen_proto::v1::*;
use tonic::{Request, Response, Status};

use crate::error::{failed, unanswered};
use crate::security::{Access, Resource};
use crate::state::State;

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
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn statistics(&self, request: Request<StatisticsRequest>) -> Result<Response<StatisticsResponse>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let statistics = self.apart(|store| store.stat()).await?;
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

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        self.0.authorize(&request, Access::Admin, Resource::Everything)?;
        let report = self.apart(|store| store.check(&mut |_| {})).await?;
        Ok(Response::new(CheckResponse {
            problems: report.problems,
            pairs: report.pairs,
        }))
    }
}
