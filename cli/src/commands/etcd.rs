//! `duramen etcd`: a server in the place of etcd, with etcd's own flags, and an import of what etcd holds.

mod import;
mod source;

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, Subcommand};
use duramen_server::{Config, ETCD_VERSION, EtcdConfig, EtcdRetention};
use serde_json::json;

use super::serve;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;

const ETCD_EXAMPLES: &str = r"Examples:
  A server on etcd's usual port, with its data in ./default.etcd:
    $ duramen etcd
  With a name, a directory and ports as a unit file of etcd has them:
    $ duramen etcd --name m1 --data-dir m1.etcd --listen-client-urls http://127.0.0.1:0
  What an etcd holds, in a store:
    # duramen etcd import snapshot.db default.etcd

The program behaves so by itself when its name is `etcd`: `ln -s duramen etcd`. Flags come from
ETCD_ variables too, as in ETCD_DATA_DIR. What belongs to a cluster of several members is refused.
Programs of Duramen itself use the same port: `duramen tree list --server 127.0.0.1:2379`.";

/// Serve a tree to etcd's own clients, with etcd's flags
#[derive(Args, Debug)]
#[command(
    after_help = ETCD_EXAMPLES,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    disable_version_flag = true
)]
pub struct Etcd {
    #[command(subcommand)]
    action: Option<Action>,

    /// Name of the member
    #[arg(long, value_name = "NAME", env = "ETCD_NAME", default_value = "default")]
    name: String,

    /// Directory of the store [default: NAME.etcd]
    #[arg(long, value_name = "DIRECTORY", env = "ETCD_DATA_DIR")]
    data_dir: Option<PathBuf>,

    /// Where to listen for clients, with commas between
    #[arg(
        long,
        value_name = "URLS",
        env = "ETCD_LISTEN_CLIENT_URLS",
        default_value = "http://localhost:2379"
    )]
    listen_client_urls: String,

    /// Where clients reach this member [default: where it listens]
    #[arg(long, value_name = "URLS", env = "ETCD_ADVERTISE_CLIENT_URLS")]
    advertise_client_urls: Option<String>,

    /// Where to serve metrics for Prometheus [default: nowhere]
    #[arg(long, value_name = "URL", env = "ETCD_LISTEN_METRICS_URLS")]
    listen_metrics_urls: Option<String>,

    /// The tree of the store that clients see
    #[arg(long, value_name = "TREE", default_value = "etcd")]
    tree: String,

    /// PEM file with the certificate for clients
    #[arg(long, value_name = "FILE", env = "ETCD_CERT_FILE")]
    cert_file: Option<PathBuf>,

    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", env = "ETCD_KEY_FILE")]
    key_file: Option<PathBuf>,

    /// PEM file with the authority of clients' certificates
    #[arg(long, value_name = "FILE", env = "ETCD_TRUSTED_CA_FILE")]
    trusted_ca_file: Option<PathBuf>,

    /// Each client must have a certificate of the authority
    #[arg(long, env = "ETCD_CLIENT_CERT_AUTH", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    client_cert_auth: bool,

    /// Other machines may connect without encryption
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    allow_remote_plaintext: bool,

    /// Bytes of the store from which on writes are refused; 0: no limit
    #[arg(
        long,
        value_name = "BYTES",
        env = "ETCD_QUOTA_BACKEND_BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    quota_backend_bytes: i64,

    /// The most operations of a transaction
    #[arg(long, value_name = "COUNT", env = "ETCD_MAX_TXN_OPS", default_value_t = 128)]
    max_txn_ops: usize,

    /// The largest request
    #[arg(
        long,
        value_name = "BYTES",
        env = "ETCD_MAX_REQUEST_BYTES",
        default_value_t = 1_572_864
    )]
    max_request_bytes: usize,

    /// How often watches that ask for it learn how far they are, as in 10m
    #[arg(
        long,
        value_name = "TIME",
        alias = "experimental-watch-progress-notify-interval",
        default_value = "10m",
        value_parser = humantime::parse_duration
    )]
    watch_progress_notify_interval: Duration,

    /// What --auto-compaction-retention counts: periodic (time) or revision
    #[arg(
        long,
        value_name = "MODE",
        env = "ETCD_AUTO_COMPACTION_MODE",
        default_value = "periodic"
    )]
    auto_compaction_mode: String,

    /// What is kept of earlier revisions: a time, as in 10m, hours, or revisions; 0: all
    #[arg(
        long,
        value_name = "KEPT",
        env = "ETCD_AUTO_COMPACTION_RETENTION",
        default_value = "0"
    )]
    auto_compaction_retention: String,

    /// What is logged: debug, info, warn, error or off
    #[arg(long, value_name = "LEVEL", env = "ETCD_LOG_LEVEL", default_value = "info")]
    log_level: String,

    /// Where other members would reach this one; it is told to clients
    #[arg(
        long,
        value_name = "URLS",
        env = "ETCD_INITIAL_ADVERTISE_PEER_URLS",
        default_value = "http://localhost:2380"
    )]
    initial_advertise_peer_urls: String,

    /// The members of the cluster: this one alone
    #[arg(long, value_name = "NAME=URL", env = "ETCD_INITIAL_CLUSTER")]
    initial_cluster: Option<String>,

    /// Print the version of etcd that this server speaks
    #[arg(long, action = ArgAction::SetTrue)]
    version: bool,

    #[command(flatten)]
    without_effect: WithoutEffect,
}

#[derive(Subcommand, Debug)]
enum Action {
    Import(Box<import::Import>),
}

/// Flags of etcd that have no effect here: there are no other members, and no snapshots of a log.
#[derive(Args, Debug)]
struct WithoutEffect {
    #[arg(long, hide = true)]
    listen_peer_urls: Option<String>,
    #[arg(long, hide = true)]
    initial_cluster_token: Option<String>,
    #[arg(long, hide = true)]
    initial_cluster_state: Option<String>,
    #[arg(long, hide = true)]
    snapshot_count: Option<u64>,
    #[arg(long, hide = true)]
    heartbeat_interval: Option<u64>,
    #[arg(long, hide = true)]
    election_timeout: Option<u64>,
    #[arg(long, hide = true)]
    max_snapshots: Option<u64>,
    #[arg(long, hide = true)]
    max_wals: Option<u64>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    strict_reconfig_check: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pre_vote: Option<bool>,
    #[arg(long, hide = true)]
    peer_cert_file: Option<PathBuf>,
    #[arg(long, hide = true)]
    peer_key_file: Option<PathBuf>,
    #[arg(long, hide = true)]
    peer_trusted_ca_file: Option<PathBuf>,
    #[arg(
        long,
        hide = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    peer_client_cert_auth: Option<bool>,
    #[arg(long, hide = true)]
    logger: Option<String>,
    #[arg(long, hide = true)]
    log_outputs: Option<String>,
    #[arg(long, hide = true)]
    log_format: Option<String>,
}

/// The arguments of a program that is named `etcd`, as those of `duramen etcd`. Go's programs take flags with one dash too.
pub fn as_etcd(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().map(PathBuf::from);
    if name.as_deref().and_then(Path::file_name) != Some("etcd".as_ref()) {
        return arguments;
    }
    arguments[0] = "duramen".into();
    arguments.insert(1, "etcd".into());
    for argument in &mut arguments[2..] {
        if let Some(text) = argument.to_str()
            && text.len() > 2
            && text.starts_with('-')
            && !text.starts_with("--")
        {
            *argument = format!("-{text}").into();
        }
    }
    arguments
}

impl Etcd {
    pub fn run(self, output: &mut Output) -> Outcome {
        if let Some(Action::Import(import)) = self.action {
            return import.run(output);
        }
        if self.version {
            if output.is_json {
                output.json(&json!({"etcd": ETCD_VERSION, "duramen": env!("CARGO_PKG_VERSION")}))?;
            } else {
                output.line(format_args!("etcd Version: {ETCD_VERSION}"))?;
                output.line(format_args!("Duramen Version: {}", env!("CARGO_PKG_VERSION")))?;
            }
            return Ok(Exit::Done);
        }
        if self
            .initial_cluster
            .as_ref()
            .is_some_and(|members| members.contains(','))
        {
            let message = "--initial-cluster names several members, and this server is a cluster of one";
            return Err(Failure::wrong_call(message).hint("name this member alone, or leave the flag out"));
        }
        let config = self.config()?;
        serve::serve(&config, output, |listening, output| {
            let urls = &listening.etcd;
            let scheme = if listening.is_tls { "https" } else { "http" };
            let urls: Vec<_> = urls.iter().map(|address| format!("{scheme}://{address}")).collect();
            if output.is_json {
                let directory = config.data_dir.display().to_string();
                return output.json(&json!({
                    "message": "ready to serve client requests",
                    "etcd": urls,
                    "data_dir": directory,
                    "process": std::process::id(),
                }));
            }
            output.line(format_args!(
                "duramen {} serves {} on {}: ready to serve client requests",
                env!("CARGO_PKG_VERSION"),
                config.data_dir.display(),
                urls.join(" and ")
            ))?;
            match urls.first().filter(|_| !listening.is_tls) {
                Some(url) => output.line(format_args!("try: duramen health --server {url}")),
                None => Ok(()),
            }
        })
    }

    fn config(&self) -> Outcome<Config> {
        let mut listen = Vec::new();
        for url in self.listen_client_urls.split(',') {
            let (address, is_tls) = place_of("--listen-client-urls", url)?;
            if is_tls && self.cert_file.is_none() {
                let message = format!("--listen-client-urls has {url:?}, and there is no certificate");
                return Err(Failure::wrong_call(message).hint("name its files with --cert-file and --key-file"));
            }
            listen.push(address.to_string());
        }
        let metrics = self.listen_metrics_urls.as_deref();
        let metrics = metrics.map(|url| place_of("--listen-metrics-urls", url)).transpose()?;
        let path = |path: &Option<PathBuf>| path.as_ref().map_or(String::new(), |path| path.display().to_string());
        let data_dir = self
            .data_dir
            .clone()
            .unwrap_or_else(|| format!("{}.etcd", self.name).into());
        let authority = Some(&self.trusted_ca_file).filter(|_| self.client_cert_auth);
        let flags = [
            ("data_dir", data_dir.display().to_string()),
            ("listen", String::new()),
            ("etcd_listen", listen.join(",")),
            ("etcd_tree", self.tree.clone()),
            ("tls_cert", path(&self.cert_file)),
            ("tls_key", path(&self.key_file)),
            ("tls_client_ca", authority.map_or(String::new(), path)),
            ("allow_remote_plaintext", self.allow_remote_plaintext.to_string()),
            (
                "metrics_listen",
                metrics.map_or(String::new(), |(address, _)| address.to_string()),
            ),
            ("log", self.log_level.clone()),
        ];
        let config = Config::collect(&flags, None);
        let mut config = config.map_err(|error| Failure::wrong_call(error.to_string()))?;
        let urls = |text: &str| text.split(',').map(str::to_string).collect::<Vec<_>>();
        config.etcd = EtcdConfig {
            name: self.name.clone(),
            client_urls: self.advertise_client_urls.as_deref().map(urls).unwrap_or_default(),
            peer_urls: urls(&self.initial_advertise_peer_urls),
            operations_max: self.max_txn_ops,
            request_bytes_max: self.max_request_bytes,
            progress_every: self.watch_progress_notify_interval,
            quota_bytes: u64::try_from(self.quota_backend_bytes).unwrap_or(0),
            retention: self.retention()?,
            ..config.etcd
        };
        Ok(config)
    }
}

impl Etcd {
    fn retention(&self) -> Outcome<EtcdRetention> {
        let (mode, kept) = (&self.auto_compaction_mode[..], &self.auto_compaction_retention[..]);
        let number = kept.parse::<u64>().ok();
        match (mode, number) {
            ("periodic" | "revision", Some(0)) => Ok(EtcdRetention::All),
            ("revision", Some(revisions)) => Ok(EtcdRetention::Revisions(revisions)),
            ("periodic", Some(hours)) => Ok(EtcdRetention::Time(Duration::from_secs(hours.saturating_mul(3_600)))),
            ("periodic", None) => match humantime::parse_duration(kept) {
                Ok(time) if time.is_zero() => Ok(EtcdRetention::All),
                Ok(time) => Ok(EtcdRetention::Time(time)),
                Err(_) => Err(Failure::wrong_call(format!(
                    "--auto-compaction-retention is {kept:?}, which is no time"
                ))
                .hint("write it as in 10m, or as a number of hours")),
            },
            ("revision", None) => Err(Failure::wrong_call(format!(
                "--auto-compaction-retention is {kept:?}, which is no number of revisions"
            ))
            .hint("write it as in 1000, or take --auto-compaction-mode periodic")),
            _ => {
                Err(Failure::wrong_call(format!("--auto-compaction-mode is {mode:?}"))
                    .hint("write periodic or revision"))
            }
        }
    }
}

/// The address of a URL, and whether it is one of TLS.
fn place_of(flag: &str, url: &str) -> Outcome<(SocketAddr, bool)> {
    let wrong = |cause: &str| {
        let message = format!("{flag} has {url:?}, {cause}");
        Failure::wrong_call(message).hint("write it as in http://127.0.0.1:2379")
    };
    let (scheme, place) = url.trim().split_once("://").ok_or_else(|| wrong("which is no URL"))?;
    let is_tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(wrong("which is neither http nor https")),
    };
    let place = place.trim_end_matches('/');
    let found = place
        .to_socket_addrs()
        .map_err(|error| wrong(&format!("whose host is not found: {error}")))?;
    let found: Vec<_> = found.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first
        .map(|address| (*address, is_tls))
        .ok_or_else(|| wrong("whose host has no address"))
}
