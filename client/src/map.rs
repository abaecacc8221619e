//! Reads and writes of one map.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use duramen_proto::v1::{
    AddRequest, BatchGetRequest, CompareAndSwapRequest, CountRequest, DeleteRangeRequest, DeleteRequest, GetRequest,
    GetStreamRequest, Pair, PutRequest, PutStreamStart, RangeRequest, StreamRangeRequest, StreamRangeResponse,
};
use futures_core::Stream;
use prost::bytes::Bytes;
use tonic::{Request, Streaming};

use crate::client::{Client, maps, send};
use crate::error::{Failure, Result};
use crate::options::{Keys, Range, WriteOptions, copied};
use crate::parts::{Parts, Requests};
use crate::watch::{Watch, WatchStart};

/// A handle of a map; see [`Client::map`]. Every method is one call, and its errors are those of [`crate::Error`].
#[derive(Clone)]
pub struct Map {
    client: Client,
    name: String,
}

impl Map {
    pub(crate) fn new(client: Client, name: String) -> Map {
        Map { client, name }
    }

    /// A handle whose writes have these options.
    pub fn with(&self, options: WriteOptions) -> Map {
        Map::new(self.client.with(options), self.name.clone())
    }

    /// Reads a value. `None`: the map does not have the key.
    ///
    /// # Errors
    /// `NotFound` when there is no such map.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let request = GetRequest {
            map: self.name.clone(),
            key: copied(key),
            ..GetRequest::default()
        };
        Ok(self.client.read(request, send!(maps.get)).await?.value)
    }

    /// Reads a value of any length, in parts, which [`Map::get`] refuses above 16 MiB. `None`: the map does not have the key.
    /// All parts are of one moment.
    ///
    /// # Errors
    /// `NotFound` when there is no such map.
    pub async fn get_stream(&self, key: impl AsRef<[u8]>) -> Result<Option<Parts>> {
        let request = GetStreamRequest {
            map: self.name.clone(),
            key: copied(key),
            ..GetStreamRequest::default()
        };
        Parts::of(self.client.open(request, send!(maps.get_stream)).await?).await
    }

    /// Stores a value of up to 64 MiB, which [`Map::put`] cannot above 20 MiB. The client sends it in parts, and the server
    /// stores it when all have arrived.
    ///
    /// # Errors
    /// As [`Map::put`].
    pub async fn put_stream(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        let value = value.into();
        let start = PutStreamStart {
            map: self.name.clone(),
            key: copied(key),
            length: value.len() as u64,
            options: Some(self.client.options().of_call()),
            ..PutStreamStart::default()
        };
        let send = async |channel, request: Request<(PutStreamStart, Bytes)>| {
            let request = request.map(|(start, value)| Requests::new(start, value));
            maps(channel).put_stream(request).await
        };
        self.client.write((start, value), send).await.map(drop)
    }

    /// Reads the values of at most 10,000 keys at one moment, in the order of the keys.
    ///
    /// # Errors
    /// `NotFound` when there is no such map.
    pub async fn batch_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        let request = BatchGetRequest {
            map: self.name.clone(),
            keys: keys.into_iter().map(copied).collect(),
            ..BatchGetRequest::default()
        };
        Ok(self
            .client
            .read(request, send!(maps.batch_get))
            .await?
            .values
            .into_iter()
            .map(|got| got.value)
            .collect())
    }

    /// Reads pairs in key order at one moment, as a stream. When the connection breaks, the stream ends with an error:
    /// another stream would show another moment.
    ///
    /// # Errors
    /// `NotFound` when there is no such map.
    pub async fn range(&self, range: impl Into<Range>) -> Result<Pairs> {
        let range = range.into();
        let request = StreamRangeRequest {
            map: self.name.clone(),
            range: Some(range.keys.0),
            reverse: range.reverse,
            limit: range.limit,
            keys_only: range.keys_only,
            ..StreamRangeRequest::default()
        };
        let call = self.client.open(request, send!(maps.stream_range));
        Ok(Pairs {
            responses: Some(call.await?),
            ready: Vec::new().into_iter(),
        })
    }

    /// Reads a page of pairs in key order: the first one, or the one after a token. All pages of a listing show the
    /// moment of the first one. The server keeps that moment for 60 seconds after each page.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; reason `LISTING_ENDED` when the server no longer keeps the moment.
    pub async fn page(&self, range: impl Into<Range>, after: Option<&PageToken>) -> Result<Page> {
        let range = range.into();
        let request = RangeRequest {
            map: self.name.clone(),
            range: Some(range.keys.0),
            reverse: range.reverse,
            page_size: u32::try_from(range.limit).unwrap_or(u32::MAX),
            page_token: after.map(|token| token.0.clone()).unwrap_or_default(),
            keys_only: range.keys_only,
            ..RangeRequest::default()
        };
        let page = self.client.read(request, send!(maps.range)).await?;
        let next = (!page.next_page_token.is_empty()).then_some(PageToken(page.next_page_token));
        Ok(Page {
            pairs: page.pairs,
            next,
        })
    }

    /// Follows the changes of the map, which must have been created with [`Client::create_watched_map`]. When the
    /// connection breaks or the server is killed, the watch goes on behind the last change, and misses nothing.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; reason `KEEPS_NO_CHANGES`; reason `CHANGES_GONE` when the map does not keep
    /// the changes after the position any more.
    pub async fn watch(&self, keys: Keys, start: WatchStart) -> Result<Watch> {
        Watch::open(self.client.clone(), self.name.clone(), keys, start).await
    }

    /// Counts pairs.
    ///
    /// # Errors
    /// `NotFound` when there is no such map.
    pub async fn count(&self, keys: Keys) -> Result<u64> {
        let request = CountRequest {
            map: self.name.clone(),
            range: Some(keys.0),
            ..CountRequest::default()
        };
        Ok(self.client.read(request, send!(maps.count)).await?.count)
    }

    /// Stores a pair.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; `UnknownOutcome` when the answer did not arrive.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<()> {
        let request = PutRequest {
            map: self.name.clone(),
            key: copied(key),
            value: value.into(),
            options: Some(self.client.options().of_call()),
            ..PutRequest::default()
        };
        self.client.write(request, send!(maps.put)).await.map(drop)
    }

    /// Deletes a key. Deleting a missing key changes nothing.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; `UnknownOutcome` when the answer did not arrive.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let request = DeleteRequest {
            map: self.name.clone(),
            key: copied(key),
            options: Some(self.client.options().of_call()),
            ..DeleteRequest::default()
        };
        self.client.write(request, send!(maps.delete)).await.map(drop)
    }

    /// Deletes a range of keys, at a cost that does not depend on the number of pairs.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; `UnknownOutcome` when the answer did not arrive.
    pub async fn delete_range(&self, keys: Keys) -> Result<()> {
        let request = DeleteRangeRequest {
            map: self.name.clone(),
            range: Some(keys.0),
            options: Some(self.client.options().of_call()),
            ..DeleteRangeRequest::default()
        };
        self.client.write(request, send!(maps.delete_range)).await.map(drop)
    }

    /// Stores `value` if the current value is `expected`, and returns whether it did. `None` as `expected` means that
    /// the key is missing; `None` as `value` deletes the key.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; `UnknownOutcome` when the answer did not arrive.
    pub async fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        value: Option<&[u8]>,
    ) -> Result<bool> {
        let request = CompareAndSwapRequest {
            map: self.name.clone(),
            key: copied(key),
            expected: expected.map(Bytes::copy_from_slice),
            value: value.map(Bytes::copy_from_slice),
            options: Some(self.client.options().of_call()),
            ..CompareAndSwapRequest::default()
        };
        Ok(self.client.write(request, send!(maps.compare_and_swap)).await?.swapped)
    }

    /// Adds to a counter and returns the sum. A counter is a signed integer of 8 bytes, big-endian; a missing key
    /// counts as 0.
    ///
    /// # Errors
    /// `NotFound` when there is no such map; `UnknownOutcome` when the answer did not arrive; reasons `NOT_A_COUNTER`
    /// and `COUNTER_OVERFLOW`.
    pub async fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<i64> {
        let request = AddRequest {
            map: self.name.clone(),
            key: copied(key),
            delta,
            options: Some(self.client.options().of_call()),
            ..AddRequest::default()
        };
        Ok(self.client.write(request, send!(maps.add)).await?.value)
    }
}

/// A page of a listing; see [`Map::page`].
#[derive(Clone, Debug)]
pub struct Page {
    /// The pairs, in order.
    pub pairs: Vec<Pair>,
    /// The place of the next page. `None`: this is the last page.
    pub next: Option<PageToken>,
}

/// Place of a page in its listing.
#[derive(Clone, Debug)]
pub struct PageToken(Bytes);

/// A stream of pairs; see [`Map::range`].
pub struct Pairs {
    /// `None` after the end or an error.
    responses: Option<Streaming<StreamRangeResponse>>,
    ready: std::vec::IntoIter<Pair>,
}

impl Pairs {
    /// The next pair. `None`: the range has ended.
    pub async fn next(&mut self) -> Option<Result<Pair>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Pairs {
    type Item = Result<Pair>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Pair>>> {
        loop {
            if let Some(pair) = self.ready.next() {
                return Poll::Ready(Some(Ok(pair)));
            }
            let Some(responses) = &mut self.responses else {
                return Poll::Ready(None);
            };
            match Pin::new(responses).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(response))) => self.ready = response.pairs.into_iter(),
                Poll::Ready(Some(Err(status))) => {
                    self.responses = None;
                    return Poll::Ready(Some(Err(Failure::of(&status).error)));
                }
                Poll::Ready(None) => self.responses = None,
            }
        }
    }
}
