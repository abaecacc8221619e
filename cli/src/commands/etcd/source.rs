//! What an import reads: a snapshot file of etcd, or a running etcd at one revision.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use duramen_proto::etcd::kv::KeyValue;
use duramen_proto::etcd::server::auth_client::AuthClient;
use duramen_proto::etcd::server::kv_client::KvClient;
use duramen_proto::etcd::server::lease_client::LeaseClient;
use duramen_proto::etcd::server::{AuthenticateRequest, LeaseLeasesRequest, LeaseTimeToLiveRequest, RangeRequest};
use duramen_server::{EtcdSnapshot, EtcdSnapshotError};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Response, Status};

use crate::exit::{Exit, Failure, Outcome};
use crate::progress::Meter;

/// Pairs of the first range, and the most pairs of a range.
const PAIRS_FIRST: i64 = 16;
const PAIRS_MAX: i64 = 1_000;
/// Bytes that a range is meant to have.
const RANGE_BYTES: i64 = 4 << 20;

/// How a running etcd knows the import, with the names of etcdctl.
#[derive(Args, Debug)]
pub(super) struct Credentials {
    /// PEM file with the certificate of the authority of etcd, for https
    #[arg(long, value_name = "FILE", env = "ETCDCTL_CACERT", help_heading = HEADING)]
    cacert: Option<PathBuf>,

    /// PEM file with a certificate of the import, for https
    #[arg(long, value_name = "FILE", env = "ETCDCTL_CERT", requires = "key", help_heading = HEADING)]
    cert: Option<PathBuf>,

    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", env = "ETCDCTL_KEY", requires = "cert", help_heading = HEADING)]
    key: Option<PathBuf>,

    /// A user of etcd and its password; the user has to be able to read all keys
    #[arg(long, value_name = "NAME:PASSWORD", env = "ETCDCTL_USER", hide_env_values = true, help_heading = HEADING)]
    user: Option<String>,
}

const HEADING: &str = "For a running etcd";

/// How long a connection and a call may take. A range has a few MiB.
const CONNECT: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(60);

/// Where keys and leases come from.
pub(super) struct Source {
    from: Kind,
    /// The leases: their ids, and how many seconds they last.
    pub(super) leases: BTreeMap<i64, i64>,
    /// The newest revision.
    pub(super) revision: i64,
    /// Number of keys.
    pub(super) keys: u64,
}

enum Kind {
    File(Opened),
    Server(Remote),
}

struct Opened {
    name: String,
    snapshot: EtcdSnapshot,
}

/// A running etcd.
struct Remote {
    runtime: Runtime,
    channel: Channel,
    url: String,
    /// Name and password of a user.
    user: Option<(String, String)>,
    /// What each request shows, where etcd has users. It ends after some minutes.
    token: RefCell<Option<MetadataValue<Ascii>>>,
    spool: Spool,
}

/// The pairs of a running etcd in a file: ranges are in the order of keys, and an import is in that of revisions.
struct Spool {
    file: File,
    /// Revision, position and bytes of each pair, in the order of revisions.
    places: Vec<(i64, u64, usize)>,
}

impl Source {
    /// Opens a source and checks it, or copies it to an unnamed file in a directory.
    pub(super) fn open(from: &str, credentials: &Credentials, directory: &Path) -> Outcome<Source> {
        match from.split_once("://") {
            None => Source::of_file(from),
            Some(("http" | "https", _)) => Source::of_server(from, credentials, directory),
            Some(_) => {
                let message = format!("{from:?} is no URL of an etcd");
                let hint = "write it as in http://127.0.0.1:2379, or import what `etcdctl snapshot save FILE` saves";
                Err(Failure::wrong_call(message).hint(hint))
            }
        }
    }

    fn of_file(name: &str) -> Outcome<Source> {
        let snapshot = EtcdSnapshot::open(name).map_err(|error| of_snapshot(name, &error))?;
        if snapshot.has_auth() {
            crate::output::say("users and roles of etcd are not imported; `duramen token create` makes tokens");
        }
        Ok(Source {
            leases: snapshot.leases().iter().map(|lease| (lease.id, lease.ttl)).collect(),
            revision: i64::try_from(snapshot.revision()).unwrap_or(i64::MAX),
            keys: snapshot.keys(),
            from: Kind::File(Opened {
                name: name.into(),
                snapshot,
            }),
        })
    }

    fn of_server(url: &str, credentials: &Credentials, directory: &Path) -> Outcome<Source> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::of_io("preparing the connection", &error))?;
        let endpoint = Endpoint::from_shared(url.trim_end_matches('/').to_string());
        let endpoint = endpoint.map_err(|error| Failure::wrong_call(format!("{url:?} is no URL: {error}")))?;
        let endpoint = endpoint.connect_timeout(CONNECT).timeout(CALL);
        let endpoint = match url.starts_with("https") {
            true => credentials.encrypted(endpoint)?,
            false => endpoint,
        };
        let channel = {
            let _entered = runtime.enter();
            endpoint.connect_lazy()
        };
        let mut remote = Remote {
            runtime,
            channel,
            url: url.into(),
            user: credentials.user()?,
            token: RefCell::default(),
            spool: Spool::new(directory)?,
        };
        remote.authenticate().map_err(|status| remote.failure(&status))?;
        let revision = remote.fill_spool(directory)?;
        let leases = remote.leases()?;
        Ok(Source {
            leases,
            revision,
            keys: remote.spool.places.len() as u64,
            from: Kind::Server(remote),
        })
    }

    /// Calls `visit` with all pairs, in the order of the revisions that changed them last.
    pub(super) fn each_in_order(&self, mut visit: impl FnMut(KeyValue) -> Outcome<()>) -> Outcome<()> {
        match &self.from {
            Kind::File(file) => file.each(&mut visit),
            Kind::Server(remote) => remote.spool.each(&mut visit),
        }
    }

    /// Reads all pairs again where they come from, in any order.
    pub(super) fn each_again(&self, mut visit: impl FnMut(KeyValue) -> Outcome<()>) -> Outcome<()> {
        match &self.from {
            Kind::File(file) => file.each(&mut visit),
            Kind::Server(remote) => remote.each(self.revision, &mut visit).map(drop),
        }
    }

    /// The lease that a pair has when it is imported; 0: none. `None`: the pair is not imported. A running etcd has deleted the
    /// keys of a lease that ended since the import began. A file whose keys have leases that it does not have is as etcd made it.
    pub(super) fn lease_of(&self, pair: &KeyValue) -> Option<i64> {
        match &self.from {
            _ if pair.lease == 0 || self.leases.contains_key(&pair.lease) => Some(pair.lease),
            Kind::File(_) => Some(0),
            Kind::Server(_) => None,
        }
    }
}

impl Credentials {
    fn user(&self) -> Outcome<Option<(String, String)>> {
        let Some(user) = &self.user else { return Ok(None) };
        match user.split_once(':') {
            Some((name, password)) => Ok(Some((name.into(), password.into()))),
            None => Err(Failure::wrong_call("--user takes NAME:PASSWORD")),
        }
    }

    fn encrypted(&self, endpoint: Endpoint) -> Outcome<Endpoint> {
        let read =
            |file: &Path| std::fs::read(file).map_err(|error| Failure::of_io(&file.display().to_string(), &error));
        let Some(authority) = &self.cacert else {
            let failure = Failure::wrong_call("https needs the certificate of the authority of etcd");
            return Err(failure.hint("name its PEM file with --cacert"));
        };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(authority)?));
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        let encrypted = endpoint.tls_config(tls);
        encrypted.map_err(|error| Failure::wrong_call(format!("the PEM files cannot be used: {error}")))
    }
}

impl Opened {
    fn each(&self, visit: &mut dyn FnMut(KeyValue) -> Outcome<()>) -> Outcome<()> {
        /// Why the reading of a file ended early.
        enum Ended {
            Read(EtcdSnapshotError),
            Visit(Failure),
        }
        impl std::convert::From<EtcdSnapshotError> for Ended {
            fn from(error: EtcdSnapshotError) -> Ended {
                Ended::Read(error)
            }
        }
        let read = self.snapshot.each(|pair| visit(pair).map_err(Ended::Visit));
        read.map_err(|ended| match ended {
            Ended::Read(error) => of_snapshot(&self.name, &error),
            Ended::Visit(failure) => failure,
        })
    }
}

impl Remote {
    /// Gets a token for the user.
    fn authenticate(&self) -> Result<(), Status> {
        let Some((name, password)) = self.user.clone() else {
            return Ok(());
        };
        let mut client = AuthClient::new(self.channel.clone());
        let answer = self
            .runtime
            .block_on(client.authenticate(AuthenticateRequest { name, password }))?;
        let token = answer.into_inner().token.parse();
        let unsendable = |_| Status::internal("etcd answered with a token that cannot be sent");
        *self.token.borrow_mut() = Some(token.map_err(unsendable)?);
        Ok(())
    }

    /// Waits for the answer of a call. Where the token has ended, it gets another one, and calls again.
    fn call<Q: Clone, A>(
        &self,
        message: Q,
        send: impl AsyncFn(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Status> {
        let answer = match self.runtime.block_on(send(self.request(message.clone()))) {
            Err(status) if self.user.is_some() && is_of_an_old_token(&status) => {
                self.authenticate()?;
                self.runtime.block_on(send(self.request(message)))
            }
            answer => answer,
        };
        answer.map(Response::into_inner)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &*self.token.borrow() {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    /// Copies all pairs of the newest revision to the spool. Returns the revision.
    fn fill_spool(&mut self, directory: &Path) -> Outcome<i64> {
        let mut spool = Spool::new(directory)?;
        let mut file = BufWriter::new(spool.file.try_clone().map_err(|error| of_spool(&error))?);
        let mut meter = Meter::new("reading", "keys");
        let mut position = 0;
        let revision = self.each(0, &mut |pair| {
            let bytes = pair.encode_to_vec();
            file.write_all(&bytes).map_err(|error| of_spool(&error))?;
            spool.places.push((pair.mod_revision, position, bytes.len()));
            position += bytes.len() as u64;
            meter.update(spool.places.len() as u64, 0);
            Ok(())
        })?;
        file.flush().map_err(|error| of_spool(&error))?;
        drop(file);
        spool.places.sort_unstable();
        self.spool = spool;
        Ok(revision)
    }

    /// Reads all pairs of a revision, in the order of their keys; 0: of the newest one. Returns the revision.
    fn each(&self, mut revision: i64, visit: &mut dyn FnMut(KeyValue) -> Outcome<()>) -> Outcome<i64> {
        let client = KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let (mut key, mut limit) = (vec![0], PAIRS_FIRST);
        loop {
            let request = RangeRequest {
                key: key.clone().into(),
                range_end: vec![0].into(),
                limit,
                revision,
                ..RangeRequest::default()
            };
            let response = self.call(request, async |request| client.clone().range(request).await);
            let response = response.map_err(|status| self.failure(&status))?;
            if revision == 0 {
                revision = response.header.map_or(0, |header| header.revision);
            }
            let Some(last) = response.kvs.last() else { break };
            key = [&last.key[..], &[0]].concat();
            let bytes: usize = response.kvs.iter().map(Message::encoded_len).sum();
            let pair_bytes = (bytes / response.kvs.len()).max(1) as i64;
            limit = (RANGE_BYTES / pair_bytes).clamp(1, PAIRS_MAX);
            response.kvs.into_iter().try_for_each(&mut *visit)?;
            if !response.more {
                break;
            }
        }
        Ok(revision)
    }

    /// The leases that have not ended.
    fn leases(&self) -> Outcome<BTreeMap<i64, i64>> {
        let client = LeaseClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let found = self.call(LeaseLeasesRequest {}, async |request| {
            client.clone().lease_leases(request).await
        });
        let found = found.map_err(|status| self.failure(&status))?;
        let mut leases = BTreeMap::new();
        for lease in found.leases {
            let request = LeaseTimeToLiveRequest {
                id: lease.id,
                keys: false,
            };
            let told = self.call(request, async |request| {
                client.clone().lease_time_to_live(request).await
            });
            let told = match told {
                Ok(told) => told,
                Err(status) if status.code() == Code::NotFound => continue,
                Err(status) => return Err(self.failure(&status)),
            };
            if told.ttl > 0 {
                leases.insert(lease.id, told.granted_ttl);
            }
        }
        Ok(leases)
    }

    fn failure(&self, status: &Status) -> Failure {
        let exit = match status.code() {
            // A compaction has overtaken the import.
            Code::OutOfRange | Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => Exit::TryAgain,
            _ => Exit::WrongCall,
        };
        let failure = Failure::new(exit, format!("the etcd at {}: {}", self.url, status.message()));
        let needs_user = status.code() == Code::Unauthenticated || status.message().contains("user name is empty");
        match self.user.is_none() && needs_user {
            true => failure.hint("name a user with --user NAME:PASSWORD"),
            false => failure,
        }
    }
}

/// Whether a call failed because the token has ended, or users of etcd have changed since it was given.
fn is_of_an_old_token(status: &Status) -> bool {
    let texts = ["invalid auth token", "revision of auth store is old"];
    status.code() == Code::Unauthenticated || texts.iter().any(|text| status.message().contains(text))
}

impl Spool {
    fn new(directory: &Path) -> Outcome<Spool> {
        Ok(Spool {
            file: tempfile::tempfile_in(directory).map_err(|error| of_spool(&error))?,
            places: Vec::new(),
        })
    }

    fn each(&self, visit: &mut dyn FnMut(KeyValue) -> Outcome<()>) -> Outcome<()> {
        for (_, position, length) in &self.places {
            let mut bytes = vec![0; *length];
            let read = self.file.read_exact_at(&mut bytes, *position);
            read.map_err(|error| of_spool(&error))?;
            let pair = KeyValue::decode(&bytes[..]);
            visit(pair.map_err(|error| Failure::damaged(format!("a temporary file has changed: {error}")))?)?;
        }
        Ok(())
    }
}

fn of_spool(error: &std::io::Error) -> Failure {
    Failure::of_io("a temporary file beside the store", error)
}

fn of_snapshot(name: &str, error: &EtcdSnapshotError) -> Failure {
    let exit = match error {
        EtcdSnapshotError::Damaged(_) => Exit::Damaged,
        _ => Exit::WrongCall,
    };
    let failure = Failure::new(exit, format!("{name} cannot be imported: {error}"));
    match error {
        EtcdSnapshotError::Foreign(_) => {
            failure.hint("import what `etcdctl snapshot save FILE` saves, a copy of member/snap/db, or from a URL")
        }
        _ => failure,
    }
}
