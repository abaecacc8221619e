//! The service `Maps`.

use std::ops::Bound;
use std::sync::Arc;

use duramen::{Cursor, Map, Snapshot, Value};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{CreateMap, DropMap, RenameMap};
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::maps_server::Maps;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::*;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::error::{failed, invalid};
use crate::security::{Access, Resource};
use crate::state::{State, check_space, unexpected};

/// Pairs of a page when the request names no number, and the most.
const PAGE_PAIRS: usize = 1_000;
const PAGE_PAIRS_MAX: usize = 10_000;
/// Bytes of keys and values after which a page ends.
const PAGE_BYTES: usize = 1 << 20;
/// The most keys of one BatchGet.
const BATCH_KEYS_MAX: usize = 10_000;
/// Bytes of values after which BatchGet is refused: a response must fit into a message.
const BATCH_BYTES_MAX: usize = 16 << 20;

pub(crate) struct MapsService(pub(crate) State);

impl MapsService {
    /// Applies one operation as a transaction of its own.
    async fn operate(
        &self,
        space: &str,
        conditions: Vec<Condition>,
        operation: Operated,
        options: Option<WriteOptions>,
    ) -> Result<CommitResponse, Status> {
        check_space(space)?;
        let commit = CommitRequest {
            conditions,
            then: vec![Operation {
                change: Some(operation),
            }],
            ..CommitRequest::default()
        };
        match self.0.write(Change::Commit(commit), options).await? {
            Led::Committed(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    fn snapshot(&self) -> Result<Snapshot, Status> {
        self.0.store.snapshot().map_err(|error| failed(&error))
    }
}

#[tonic::async_trait]
impl Maps for MapsService {
    async fn create_map(&self, request: Request<CreateMapRequest>) -> Result<Response<CreateMapResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let change = Change::CreateMap(CreateMap { map: request.map });
        let created = self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(CreateMapResponse { created }))
    }

    async fn list_maps(&self, request: Request<ListMapsRequest>) -> Result<Response<ListMapsResponse>, Status> {
        let caller = self.0.caller(&request)?;
        check_space(&request.get_ref().space)?;
        let mut maps = self.0.store.maps().list().map_err(|error| failed(&error))?;
        maps.retain(|map| caller.sees(Resource::Map(map)));
        Ok(Response::new(ListMapsResponse { maps }))
    }

    async fn rename_map(&self, request: Request<RenameMapRequest>) -> Result<Response<RenameMapResponse>, Status> {
        let caller = self.0.caller(&request)?;
        caller.may(Access::Admin, Resource::Map(&request.get_ref().map))?;
        caller.may(Access::Admin, Resource::Map(&request.get_ref().new_name))?;
        let request = request.into_inner();
        let change = Change::RenameMap(RenameMap {
            map: request.map,
            new_name: request.new_name,
        });
        self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(RenameMapResponse {}))
    }

    async fn drop_map(&self, request: Request<DropMapRequest>) -> Result<Response<DropMapResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let change = Change::DropMap(DropMap { map: request.map });
        self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(DropMapResponse {}))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let map = self.0.map(&request.map)?;
        let value = map.get(&request.key).map_err(|error| failed(&error))?;
        let value = value.map(|value| shared(&value));
        Ok(Response::new(GetResponse { value }))
    }

    async fn batch_get(&self, request: Request<BatchGetRequest>) -> Result<Response<BatchGetResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let count = request.keys.len();
        if count > BATCH_KEYS_MAX {
            return Err(invalid(format!(
                "the request has {count} keys, at most {BATCH_KEYS_MAX} are possible; send several requests"
            )));
        }
        let (map, snapshot) = (self.0.map(&request.map)?, self.snapshot()?);
        let found = snapshot
            .multi_get(&map, &request.keys)
            .map_err(|error| failed(&error))?;
        let bytes: usize = found.iter().flatten().map(|value| value.len()).sum();
        if bytes > BATCH_BYTES_MAX {
            return Err(invalid(format!(
                "the values have {bytes} bytes, a response holds at most {BATCH_BYTES_MAX}; ask for fewer keys"
            )));
        }
        let values = found.iter().map(|value| GetResponse {
            value: value.as_ref().map(shared),
        });
        Ok(Response::new(BatchGetResponse {
            values: values.collect(),
        }))
    }

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let map = self.0.map(&request.map)?;
        let pairs = match request.page_size as usize {
            0 => PAGE_PAIRS,
            pairs => pairs.min(PAGE_PAIRS_MAX),
        };
        let (number, snapshot, after) = match &request.page_token[..] {
            [] => (None, Arc::new(self.snapshot()?), None),
            token => {
                let page = self.0.pages.page(token)?;
                (Some(page.number), page.snapshot, Some(page.after))
            }
        };
        let walk = Walk {
            map,
            range: request.range,
            reverse: request.reverse,
            keys_only: request.keys_only,
        };
        let (pairs, has_more) = walk.batch(&snapshot, after.as_deref(), pairs)?;
        let next_page_token = match (has_more, pairs.last()) {
            (true, Some(last)) => {
                let new = self.0.store.random_number();
                self.0.pages.token(number, new, &snapshot, &last.key)?
            }
            _ => {
                number.inspect(|number| self.0.pages.end(*number));
                Vec::new()
            }
        };
        let next_page_token = next_page_token.into();
        Ok(Response::new(RangeResponse { pairs, next_page_token }))
    }

    type StreamRangeStream = ReceiverStream<Result<StreamRangeResponse, Status>>;

    async fn stream_range(
        &self,
        request: Request<StreamRangeRequest>,
    ) -> Result<Response<Self::StreamRangeStream>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let (map, snapshot) = (self.0.map(&request.map)?, self.snapshot()?);
        let mut left = match request.limit {
            0 => u64::MAX,
            limit => limit,
        };
        let walk = Walk {
            map,
            range: request.range,
            reverse: request.reverse,
            keys_only: request.keys_only,
        };
        // A slow reader holds two batches, and its snapshot.
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(async move {
            let mut after: Option<Bytes> = None;
            while left > 0 {
                let most = left.min(PAGE_PAIRS as u64) as usize;
                let (pairs, has_more) = match walk.batch(&snapshot, after.as_deref(), most) {
                    Ok(batch) => batch,
                    Err(status) => {
                        let _ = sender.send(Err(status)).await;
                        return;
                    }
                };
                let Some(last) = pairs.last() else { return };
                after = Some(last.key.clone());
                left -= pairs.len() as u64;
                if sender.send(Ok(StreamRangeResponse { pairs })).await.is_err() || !has_more {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn count(&self, request: Request<CountRequest>) -> Result<Response<CountResponse>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let (map, snapshot) = (self.0.map(&request.map)?, self.snapshot()?);
        let (low, high) = bounds(request.range.as_ref());
        let count = snapshot.count(&map, (low, high)).map_err(|error| failed(&error))?;
        Ok(Response::new(CountResponse { count }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.0
            .authorize(&request, Access::Write, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let put = Operated::Put(PutOperation {
            map: request.map,
            key: request.key,
            value: request.value,
        });
        self.operate(&request.space, Vec::new(), put, request.options).await?;
        Ok(Response::new(PutResponse {}))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        self.0
            .authorize(&request, Access::Write, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let delete = Operated::Delete(DeleteOperation {
            map: request.map,
            key: request.key,
        });
        self.operate(&request.space, Vec::new(), delete, request.options)
            .await?;
        Ok(Response::new(DeleteResponse {}))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.0
            .authorize(&request, Access::Write, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let delete = Operated::DeleteRange(DeleteRangeOperation {
            map: request.map,
            range: request.range,
        });
        self.operate(&request.space, Vec::new(), delete, request.options)
            .await?;
        Ok(Response::new(DeleteRangeResponse {}))
    }

    async fn compare_and_swap(
        &self,
        request: Request<CompareAndSwapRequest>,
    ) -> Result<Response<CompareAndSwapResponse>, Status> {
        let caller = self.0.caller(&request)?;
        caller.may(Access::Read, Resource::Map(&request.get_ref().map))?;
        caller.may(Access::Write, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let (map, key) = (request.map, request.key);
        let condition = Condition {
            map: map.clone(),
            key: key.clone(),
            test: Some(match request.expected {
                Some(expected) => Test::ValueIs(expected),
                None => Test::Exists(false),
            }),
        };
        let operation = match request.value {
            Some(value) => Operated::Put(PutOperation { map, key, value }),
            None => Operated::Delete(DeleteOperation { map, key }),
        };
        let response = self
            .operate(&request.space, vec![condition], operation, request.options)
            .await?;
        Ok(Response::new(CompareAndSwapResponse {
            swapped: response.succeeded,
        }))
    }

    async fn add(&self, request: Request<AddRequest>) -> Result<Response<AddResponse>, Status> {
        self.0.caller(&request)?.may_add(&request.get_ref().map)?;
        let request = request.into_inner();
        let add = Operated::Add(AddOperation {
            map: request.map,
            key: request.key,
            delta: request.delta,
        });
        let response = self.operate(&request.space, Vec::new(), add, request.options).await?;
        match response.results.first().and_then(|result| result.result) {
            Some(Given::Sum(value)) => Ok(Response::new(AddResponse { value })),
            _ => Err(unexpected(&Led::Committed(response))),
        }
    }
}

/// A walk through a map, in batches.
struct Walk {
    map: Map,
    range: Option<KeyRange>,
    reverse: bool,
    keys_only: bool,
}

impl Walk {
    /// The pairs after a key, and whether more may follow.
    fn batch(&self, snapshot: &Snapshot, after: Option<&[u8]>, most: usize) -> Result<(Vec<Pair>, bool), Status> {
        self.read(snapshot, after, most).map_err(|error| failed(&error))
    }

    fn read(&self, snapshot: &Snapshot, after: Option<&[u8]>, most: usize) -> duramen::Result<(Vec<Pair>, bool)> {
        let (mut low, mut high) = bounds(self.range.as_ref());
        match (after, self.reverse) {
            (Some(after), false) => low = Bound::Excluded(after),
            (Some(after), true) => high = Bound::Excluded(after),
            (None, _) => {}
        }
        let mut cursor = snapshot.range(&self.map, (low, high))?;
        if self.reverse {
            cursor.seek_end();
        }
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        while pairs.len() < most && bytes < PAGE_BYTES {
            let Some((key, value)) = step(&mut cursor, self.reverse)? else {
                return Ok((pairs, false));
            };
            bytes += key.len() + if self.keys_only { 0 } else { value.len() };
            pairs.push(Pair {
                key: Bytes::copy_from_slice(key),
                value: if self.keys_only { Bytes::new() } else { shared(&value) },
            });
        }
        let has_more = step(&mut cursor, self.reverse)?.is_some();
        Ok((pairs, has_more))
    }
}

fn step<'c, 'a>(cursor: &'c mut Cursor<'a>, reverse: bool) -> duramen::Result<Option<(&'c [u8], Value<'a>)>> {
    if reverse { cursor.prev() } else { cursor.next() }
}

fn shared(value: &Value<'_>) -> Bytes {
    Bytes::copy_from_slice(value)
}

fn bounds(range: Option<&KeyRange>) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let Some(range) = range else {
        return (Bound::Unbounded, Bound::Unbounded);
    };
    let high = range
        .end
        .as_ref()
        .map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
    (Bound::Included(&range.start[..]), high)
}
