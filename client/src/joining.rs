//! Getting messages of a group: once, or as a member.

use std::time::Duration;

use duramen_proto::v1::settlement::Verdict;
use duramen_proto::v1::{FetchRequest, SettleRequest, Settlement};
use prost::bytes::Bytes;

use crate::client::send;
use crate::error::Result;
use crate::group::Group;
use crate::member::{Delivery, Member, MemberOptions, delivery};
use crate::options::millis;

impl Group {
    /// Leases messages once, without a session: at most so many, 1,000 at the most; 0: 100. When there are none, the
    /// server waits for `wait`, which must be shorter than the deadline of the client. `None`: none came.
    ///
    /// A fetch whose answer is lost leaves its messages leased until the lease ends. A [`Member`] does better.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn fetch(&self, member: &str, messages: u32, wait: Duration) -> Result<Option<Fetched>> {
        let request = FetchRequest {
            topic: self.topic.clone(),
            group: self.name.clone(),
            member: member.into(),
            messages,
            wait_ms: millis(wait),
            ..FetchRequest::default()
        };
        let fetched = self.client.read(request, send!(topics.fetch)).await?;
        Ok((!fetched.lease.is_empty()).then(|| Fetched {
            group: self.clone(),
            lease: fetched.lease,
            messages: fetched.messages.into_iter().filter_map(delivery).collect(),
        }))
    }

    /// Joins the group. The name is for people who look at what is pending.
    ///
    /// # Errors
    /// `NotFound` when there is no such group; `DeadlineExceeded` when the client cannot connect in time.
    pub async fn join(&self, member: impl Into<String>) -> Result<Member> {
        self.join_with(member, MemberOptions::default()).await
    }

    /// Joins the group with options.
    ///
    /// # Errors
    /// As [`Group::join`].
    pub async fn join_with(&self, member: impl Into<String>, options: MemberOptions) -> Result<Member> {
        self.describe().await?;
        Member::open(self.clone(), member.into(), options).await
    }
}

/// Messages that were leased together; see [`Group::fetch`].
pub struct Fetched {
    group: Group,
    lease: Bytes,
    messages: Vec<Delivery>,
}

impl Fetched {
    /// The messages, in the order of the topic.
    pub fn messages(&self) -> &[Delivery] {
        &self.messages
    }

    /// Acknowledges all messages that the lease still covers. The group does not deliver them again.
    ///
    /// # Errors
    /// `FailedPrecondition` with the reason `LEASE_LOST` or `ALREADY_SETTLED`.
    pub async fn acknowledge(&self) -> Result<()> {
        self.settle(Verdict::Acknowledge(true)).await
    }

    /// Gives all messages that the lease still covers back to the group at once. This attempt does not count.
    ///
    /// # Errors
    /// As [`Fetched::acknowledge`].
    pub async fn release(&self) -> Result<()> {
        self.settle(Verdict::Release(true)).await
    }

    async fn settle(&self, verdict: Verdict) -> Result<()> {
        let client = &self.group.client;
        let settlement = Settlement {
            topic: self.group.topic.clone(),
            group: self.group.name.clone(),
            lease: self.lease.clone(),
            verdict: Some(verdict),
            ..Settlement::default()
        };
        let request = SettleRequest {
            settlements: vec![settlement],
            options: Some(client.options().of_call()),
            ..SettleRequest::default()
        };
        client.write(request, send!(topics.settle)).await.map(drop)
    }
}
