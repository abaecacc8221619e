//! The service `Maps`.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use duramen::{Cursor, Map, Snapshot, Value};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{ConfigureMap, CreateMap, DropMap, RenameMap};
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::maps_server::Maps;
use duramen_proto::v1::operation::Change as Operated;
use duramen_proto::v1::operation_result::Result as Given;
use duramen_proto::v1::*;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::send;
use crate::error::{failed, invalid, overloaded, status};
use crate::security::{Access, Credentials, Resource};
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
/// Bytes of a part of a value.
const PART_BYTES: usize = 256 << 10;
/// The longest value that comes in parts: the command that stores it has all of it.
const STREAMED_BYTES_MAX: u64 = 64 << 20;
/// How long a value may take to arrive, and how many bytes more a second: what has arrived takes memory.
const ARRIVAL: Duration = Duration::from_secs(30);
const ARRIVAL_BYTES: u64 = 64 << 10;

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
        match self.0.write(commit(conditions, operation), options).await? {
            Led::Committed(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    fn snapshot(&self) -> Result<Snapshot, Status> {
        self.0.store.snapshot().map_err(|error| failed(&error))
    }
}

fn commit(conditions: Vec<Condition>, operation: Operated) -> Change {
    Change::Commit(CommitRequest {
        conditions,
        then: vec![Operation {
            change: Some(operation),
        }],
        ..CommitRequest::default()
    })
}

#[tonic::async_trait]
impl Maps for MapsService {
    async fn create_map(&self, request: Request<CreateMapRequest>) -> Result<Response<CreateMapResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let change = Change::CreateMap(CreateMap {
            map: request.map,
            keep_changes: request.keep_changes,
        });
        let created = self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(CreateMapResponse { created }))
    }

    async fn configure_map(
        &self,
        request: Request<ConfigureMapRequest>,
    ) -> Result<Response<ConfigureMapResponse>, Status> {
        self.0
            .authorize(&request, Access::Admin, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        let change = Change::ConfigureMap(ConfigureMap {
            map: request.map,
            keep_changes: request.keep_changes,
        });
        self.0.change(&request.space, change, request.options).await?;
        Ok(Response::new(ConfigureMapResponse {}))
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
        if let Some(value) = value.as_ref().filter(|value| value.len() > BATCH_BYTES_MAX) {
            let message = format!(
                "the value has {} bytes, and a response holds at most {BATCH_BYTES_MAX}; read it with GetStream",
                value.len()
            );
            return Err(status(Code::OutOfRange, "VALUE_TOO_LONG", message));
        }
        let value = value.map(|value| shared(&value));
        Ok(Response::new(GetResponse { value }))
    }

    type GetStreamStream = ReceiverStream<Result<GetStreamResponse, Status>>;

    async fn get_stream(&self, request: Request<GetStreamRequest>) -> Result<Response<Self::GetStreamStream>, Status> {
        self.0
            .authorize(&request, Access::Read, Resource::Map(&request.get_ref().map))?;
        let request = request.into_inner();
        check_space(&request.space)?;
        let (map, snapshot) = (self.0.map(&request.map)?, self.snapshot()?);
        // A slow reader holds two parts, and its snapshot.
        let (sender, receiver) = mpsc::channel(3);
        send(&self.0, sender.clone(), async move {
            let mut sent = None;
            loop {
                let response = match part(&snapshot, &map, &request.key, sent) {
                    Ok(Some(response)) => response,
                    Ok(None) => return,
                    Err(error) => {
                        let _ = sender.send(Err(failed(&error))).await;
                        return;
                    }
                };
                sent = Some(sent.unwrap_or(0) + response.part.len());
                if sender.send(Ok(response)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
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
        let (sender, receiver) = mpsc::channel(3);
        send(&self.0, sender.clone(), async move {
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

    async fn put_stream(&self, request: Request<Streaming<PutStreamRequest>>) -> Result<Response<PutResponse>, Status> {
        let credentials = Credentials::of(&request);
        // Nothing is read of a stream without a principal.
        self.0.guard.caller(&credentials)?;
        let mut parts = request.into_inner();
        let first = in_time(ARRIVAL, parts.message()).await?.unwrap_or_default();
        let Some(start) = first.start else {
            return Err(invalid(
                "the first request of the stream has no `start`; name the map and the key there",
            ));
        };
        let caller = self.0.guard.caller(&credentials)?;
        caller.may(Access::Write, Resource::Map(&start.map))?;
        check_space(&start.space)?;
        if start.length > STREAMED_BYTES_MAX {
            let message = format!(
                "the value has {} bytes, and a server takes at most {STREAMED_BYTES_MAX}",
                start.length
            );
            return Err(status(Code::InvalidArgument, "VALUE_TOO_LONG", message));
        }
        let length = start.length as usize;
        // A value that is longer than the whole room takes all of it. It keeps the room until it is stored: in the queue it
        // would be refused as long as others write.
        let room = (start.encoded_len() + length).min(self.0.pipeline.limits().queued_bytes) as u32;
        let _taken = self.0.arriving.try_acquire_many(room).map_err(|_| overloaded())?;
        let limit = ARRIVAL + Duration::from_secs(start.length / ARRIVAL_BYTES);
        let value = in_time(limit, collect(&mut parts, length, first.part)).await?;
        let put = Operated::Put(PutOperation {
            map: start.map,
            key: start.key,
            value,
        });
        self.0.write_beside(commit(Vec::new(), put), start.options).await?;
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
        match response.results.first().and_then(|result| result.result.as_ref()) {
            Some(Given::Sum(value)) => Ok(Response::new(AddResponse { value: *value })),
            _ => Err(unexpected(&Led::Committed(response))),
        }
    }
}

/// The next part of a value, of which `sent` bytes were sent before, or nothing yet. `None`: nothing is left of it.
fn part(snapshot: &Snapshot, map: &Map, key: &[u8], sent: Option<usize>) -> duramen::Result<Option<GetStreamResponse>> {
    let is_left = |value: &Value<'_>| sent.is_none_or(|sent| sent < value.len());
    let Some(value) = snapshot.get(map, key)?.filter(is_left) else {
        return Ok(None);
    };
    let begin = sent.unwrap_or(0);
    let end = value.len().min(begin + PART_BYTES);
    Ok(Some(GetStreamResponse {
        length: sent.is_none().then_some(value.len() as u64),
        part: Bytes::copy_from_slice(&value[begin..end]),
    }))
}

async fn in_time<T>(limit: Duration, arrives: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let arrived = tokio::time::timeout(limit, arrives).await;
    arrived.unwrap_or_else(|_| {
        let message = format!("the value had not arrived after {limit:?}; send it again, or on a faster way");
        Err(status(Code::DeadlineExceeded, "PARTS_MISSING", message))
    })
}

/// Collects the parts of a value.
async fn collect(parts: &mut Streaming<PutStreamRequest>, length: usize, first: Bytes) -> Result<Bytes, Status> {
    let mut value = Vec::with_capacity(length);
    let mut next = Some(first);
    while let Some(part) = next {
        if value.len() + part.len() > length {
            let message = format!("the parts have more than the {length} bytes that `start` announced");
            return Err(invalid(message));
        }
        value.extend_from_slice(&part);
        next = parts.message().await?.map(|request| request.part);
    }
    if value.len() < length {
        let message = format!(
            "the stream ended after {} of {length} bytes; nothing was stored",
            value.len()
        );
        return Err(invalid(message));
    }
    Ok(value.into())
}

/// A walk through a map, in batches.
pub(super) struct Walk {
    pub(super) map: Map,
    pub(super) range: Option<KeyRange>,
    pub(super) reverse: bool,
    pub(super) keys_only: bool,
}

impl Walk {
    /// The pairs after a key, and whether more may follow.
    pub(super) fn batch(
        &self,
        snapshot: &Snapshot,
        after: Option<&[u8]>,
        most: usize,
    ) -> Result<(Vec<Pair>, bool), Status> {
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
