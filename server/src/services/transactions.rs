//! The service `Transactions`.

use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::v1::transactions_server::Transactions;
use duramen_proto::v1::{CommitRequest, CommitResponse};
use tonic::{Request, Response, Status};

use crate::error::invalid;
use crate::state::{State, check_space, unexpected};

/// The most conditions and operations of a transaction.
const PARTS_MAX: usize = 10_000;

pub(crate) struct TransactionsService(pub(crate) State);

#[tonic::async_trait]
impl Transactions for TransactionsService {
    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<CommitResponse>, Status> {
        self.0.caller(&request)?.may_commit(request.get_ref())?;
        let mut request = request.into_inner();
        check_space(&request.space)?;
        let parts =
            request.conditions.len() + request.node_conditions.len() + request.then.len() + request.otherwise.len();
        if parts > PARTS_MAX {
            return Err(invalid(format!(
                "the transaction has {parts} conditions and operations, at most {PARTS_MAX} are possible; split it"
            )));
        }
        let options = request.options.take();
        request.space.clear();
        // At the level of memory there are no results yet.
        match self.0.write_at_any_level(Change::Commit(request), options).await? {
            None => Ok(Response::new(CommitResponse {
                succeeded: true,
                results: Vec::new(),
                revisions: Vec::new(),
            })),
            Some(Led::Committed(response)) => Ok(Response::new(response)),
            Some(other) => Err(unexpected(&other)),
        }
    }
}
