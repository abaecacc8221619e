//! Listings that are read page by page: each keeps the snapshot of its first page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use duramen::Snapshot;
use tonic::{Code, Status};

use crate::error::{invalid, status};

/// How long a listing waits for the request of its next page.
pub(crate) const KEPT: Duration = Duration::from_secs(60);
/// The most listings at a time.
const LISTINGS_MAX: usize = 1_000;
/// Bytes of the number of a listing, in a token.
const NUMBER_BYTES: usize = 8;

/// The listings that wait for the request of their next page.
#[derive(Default)]
pub(crate) struct Pages {
    listings: Mutex<HashMap<u64, Listing>>,
}

struct Listing {
    snapshot: Arc<Snapshot>,
    until: Instant,
}

/// Where a page begins.
pub(crate) struct Page {
    pub(crate) number: u64,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The last key of the page before.
    pub(crate) after: Vec<u8>,
}

impl Pages {
    /// The page that a token names.
    pub(crate) fn page(&self, token: &[u8]) -> Result<Page, Status> {
        let Some((number, after)) = token.split_first_chunk::<NUMBER_BYTES>() else {
            return Err(invalid(
                "the page token is too short; send next_page_token of the page before, unchanged",
            ));
        };
        let number = u64::from_be_bytes(*number);
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        let listing = listings
            .get_mut(&number)
            .filter(|listing| listing.until > Instant::now());
        let Some(listing) = listing else {
            let message = "the listing has ended: its next page was not asked for within 60 seconds, or the server was restarted; begin again without a page token";
            return Err(status(Code::FailedPrecondition, "LISTING_ENDED", message));
        };
        listing.until = Instant::now() + KEPT;
        Ok(Page {
            number,
            snapshot: listing.snapshot.clone(),
            after: after.to_vec(),
        })
    }

    /// The token of the page after a key. `number` is that of a listing that has begun.
    pub(crate) fn token(
        &self,
        number: Option<u64>,
        new: u64,
        snapshot: &Arc<Snapshot>,
        last: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match number {
            Some(number) => number,
            None => {
                let now = Instant::now();
                listings.retain(|_, listing| listing.until > now);
                if listings.len() >= LISTINGS_MAX {
                    let message = "the server has 1,000 listings that wait for the request of a next page; finish some, or use StreamRange";
                    return Err(status(Code::ResourceExhausted, "TOO_MANY_LISTINGS", message));
                }
                let until = now + KEPT;
                let snapshot = snapshot.clone();
                listings.insert(new, Listing { snapshot, until });
                new
            }
        };
        let mut token = number.to_be_bytes().to_vec();
        token.extend_from_slice(last);
        Ok(token)
    }

    /// Ends a listing whose last page was read.
    pub(crate) fn end(&self, number: u64) {
        self.listings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&number);
    }

    /// Ends listings whose next page was not requested in time: a snapshot keeps the space of what was deleted after it.
    pub(crate) fn end_old(&self) {
        let now = Instant::now();
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        listings.retain(|_, listing| listing.until > now);
    }
}
