//! The configuration of a server: flags, then environment variables, then one TOML file, then defaults.
//!
//! Every value knows where it came from, so that `duramen config check` can say it, and a mistake names its place.

mod etcd;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt, fs};

use tracing::level_filters::LevelFilter;

use crate::level::Level;
use crate::security::TlsFiles;

pub use etcd::{EtcdConfig, EtcdRetention};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag of the command line.
    Flag,
    /// An environment variable.
    Environment,
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counting from 1.
        line: usize,
    },
    /// It was not set.
    Default,
}

/// A setting, and what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in the file. A flag has `-` in place of `_`, a variable `DURAMEN_` in front and capital letters.
    pub name: &'static str,
    /// What kind of value it has, in one word.
    pub value: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    /// The value when it is not set.
    pub default: &'static str,
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "data_dir",
        value: "DIRECTORY",
        about: "The directory of the store; made when it is missing, for this user alone",
        default: "duramen-data",
    },
    Setting {
        name: "listen",
        value: "ADDRESS",
        about: "Address and port for TCP; empty: no TCP",
        default: "127.0.0.1:7420",
    },
    Setting {
        name: "etcd_listen",
        value: "ADDRESSES",
        about: "Addresses with ports for clients of etcd, with commas between; empty: none",
        default: "",
    },
    Setting {
        name: "etcd_tree",
        value: "TREE",
        about: "The tree that clients of etcd use; created when it is missing",
        default: "etcd",
    },
    Setting {
        name: "unix_socket",
        value: "PATH",
        about: "Path of a unix socket to listen on; empty: none",
        default: "",
    },
    Setting {
        name: "allow_remote_plaintext",
        value: "BOOL",
        about: "Whether other machines may connect without encryption: true or false",
        default: "false",
    },
    Setting {
        name: "tls_cert",
        value: "FILE",
        about: "PEM file with the server's certificate; TCP is then encrypted; empty: no TLS",
        default: "",
    },
    Setting {
        name: "tls_key",
        value: "FILE",
        about: "PEM file with the private key of the certificate",
        default: "",
    },
    Setting {
        name: "tls_client_ca",
        value: "FILE",
        about: "PEM file with the authority whose certificate each client must have; empty: none",
        default: "",
    },
    Setting {
        name: "threads",
        value: "COUNT",
        about: "Threads that serve connections; 0: one for each processor, at most 8",
        default: "0",
    },
    Setting {
        name: "spin_us",
        value: "MICROSECONDS",
        about: "How long a serving thread stays awake after something arrived: answers are faster, for processor time",
        default: "0",
    },
    Setting {
        name: "acknowledge",
        value: "LEVEL",
        about: "What a write survives before it is acknowledged, when the request does not say: written or synced",
        default: "synced",
    },
    Setting {
        name: "queue_bytes",
        value: "BYTES",
        about: "Bytes of writes that may wait; more are refused with a hint to retry",
        default: "67108864",
    },
    Setting {
        name: "max_connections",
        value: "COUNT",
        about: "The most connections at a time; further ones are closed at once",
        default: "20000",
    },
    Setting {
        name: "reflection",
        value: "BOOL",
        about: "Whether the server tells its services to tools such as grpcurl: true or false",
        default: "false",
    },
    Setting {
        name: "grace_seconds",
        value: "SECONDS",
        about: "Seconds that calls may take to end when the server stops",
        default: "10",
    },
    Setting {
        name: "copy_dir",
        value: "DIRECTORY",
        about: "The directory in which Admin.Copy makes copies of the store; empty: no copies",
        default: "",
    },
    Setting {
        name: "backup_place",
        value: "PLACE",
        about: "Where Admin.Export exports the store: a directory, or a URL such as s3://bucket/folder; empty: nowhere",
        default: "",
    },
    Setting {
        name: "metrics_listen",
        value: "ADDRESS",
        about: "Address and port for Prometheus to read metrics from; empty: none",
        default: "",
    },
    Setting {
        name: "log",
        value: "LEVEL",
        about: "What is logged to standard error: off, error, warn, info or debug",
        default: "info",
    },
    Setting {
        name: "log_format",
        value: "FORMAT",
        about: "How log lines look: text or json",
        default: "text",
    },
    Setting {
        name: "slow_call_ms",
        value: "MILLISECONDS",
        about: "Calls that take longer are logged; 0: none",
        default: "1000",
    },
];

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: one object a line.
    Json,
}

/// The effective configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// See the setting of this name.
    pub data_dir: PathBuf,
    /// See the setting of this name.
    pub listen: Option<SocketAddr>,
    /// What clients of etcd get. Without addresses the server has no services for them.
    pub etcd: EtcdConfig,
    /// See the setting of this name.
    pub unix_socket: Option<PathBuf>,
    /// See the setting of this name.
    pub allow_remote_plaintext: bool,
    /// The files of TLS. `None`: TCP is not encrypted.
    pub tls: Option<TlsFiles>,
    /// See the setting of this name.
    pub threads: usize,
    /// See the setting of this name.
    pub spin: Duration,
    /// See the setting of this name.
    pub acknowledge: Level,
    /// See the setting of this name.
    pub queue_bytes: usize,
    /// See the setting of this name.
    pub max_connections: usize,
    /// See the setting of this name.
    pub reflection: bool,
    /// See the setting of this name.
    pub grace: Duration,
    /// See the setting of this name.
    pub copy_dir: Option<PathBuf>,
    /// See the setting of this name.
    pub backup_place: Option<String>,
    /// See the setting of this name.
    pub metrics_listen: Option<SocketAddr>,
    /// See the setting of this name. The library emits events through `tracing`, and the program subscribes to them.
    pub log: LevelFilter,
    /// See the setting of this name.
    pub log_format: LogFormat,
    /// The setting `slow_call_ms`; `None`: no call is logged because it is slow.
    pub slow_call: Option<Duration>,
    /// All settings as text, with their origins, in the order of [`SETTINGS`].
    pub origins: Vec<(&'static str, String, Origin)>,
}

/// A mistake in the configuration: what, where, and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct ConfigError {
    place: String,
    message: String,
}

impl ConfigError {
    fn at(place: impl fmt::Display, message: impl Into<String>) -> ConfigError {
        ConfigError {
            place: place.to_string(),
            message: message.into(),
        }
    }
}

/// The environment variable of a setting.
pub fn variable(name: &str) -> String {
    format!("DURAMEN_{}", name.to_uppercase())
}

/// The flag of a setting.
pub fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

impl Config {
    /// Collects the configuration. `flags` are names of settings with their values; `file` is the configuration file,
    /// and without it `DURAMEN_CONFIG` may name one.
    ///
    /// # Errors
    /// [`ConfigError`] with the flag, the variable or the line of the mistake.
    pub fn collect(flags: &[(&str, String)], file: Option<&Path>) -> Result<Config, ConfigError> {
        Config::collect_from(flags, file, |name| env::var(name).ok())
    }

    fn collect_from(
        flags: &[(&str, String)],
        file: Option<&Path>,
        variables: impl Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigError> {
        let file = file.map(Path::to_path_buf);
        let file = file.or_else(|| variables("DURAMEN_CONFIG").map(PathBuf::from));
        let in_file = file.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let origins: Vec<_> = SETTINGS
            .iter()
            .map(|setting| {
                let by_flag = flags.iter().find(|(name, _)| *name == setting.name);
                let (value, origin) = if let Some((_, value)) = by_flag {
                    (value.clone(), Origin::Flag)
                } else if let Some(value) = variables(&variable(setting.name)) {
                    (value, Origin::Environment)
                } else if let (Some((line, value)), Some(path)) = (in_file.get(setting.name), &file) {
                    let (path, line) = (path.clone(), *line);
                    (value.clone(), Origin::File { path, line })
                } else {
                    (setting.default.into(), Origin::Default)
                };
                (setting.name, value, origin)
            })
            .collect();
        let values = Values(&origins);
        let config = Config {
            data_dir: values.of("data_dir").into(),
            listen: values.parsed_unless_empty("listen", "an address and a port, as in 127.0.0.1:7420")?,
            etcd: EtcdConfig {
                listen: values.addresses("etcd_listen")?,
                tree: values.of("etcd_tree").into(),
                ..EtcdConfig::default()
            },
            unix_socket: values.path("unix_socket"),
            allow_remote_plaintext: values.parsed("allow_remote_plaintext", "true or false")?,
            tls: values.tls()?,
            threads: match values.parsed("threads", "a number of threads, as in 4")? {
                0 => std::thread::available_parallelism().map_or(1, usize::from).min(8),
                threads => threads,
            },
            spin: Duration::from_micros(values.parsed("spin_us", "a number of microseconds, as in 50")?),
            acknowledge: match values.of("acknowledge") {
                "written" => Level::Written,
                "synced" => Level::Synced,
                other => return Err(values.wrong("acknowledge", other, "written or synced")),
            },
            queue_bytes: values.parsed("queue_bytes", "a number of bytes, as in 67108864")?,
            max_connections: values.parsed("max_connections", "a number of connections, as in 20000")?,
            reflection: values.parsed("reflection", "true or false")?,
            grace: Duration::from_secs(values.parsed("grace_seconds", "a number of seconds, as in 10")?),
            copy_dir: values.path("copy_dir"),
            backup_place: Some(values.of("backup_place").to_string()).filter(|place| !place.is_empty()),
            metrics_listen: values
                .parsed_unless_empty("metrics_listen", "an address and a port, as in 127.0.0.1:7421")?,
            log: match values.of("log") {
                "off" => LevelFilter::OFF,
                "error" => LevelFilter::ERROR,
                "warn" => LevelFilter::WARN,
                "info" => LevelFilter::INFO,
                "debug" => LevelFilter::DEBUG,
                other => return Err(values.wrong("log", other, "off, error, warn, info or debug")),
            },
            log_format: match values.of("log_format") {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                other => return Err(values.wrong("log_format", other, "text or json")),
            },
            slow_call: match values.parsed("slow_call_ms", "a number of milliseconds, as in 1000")? {
                0 => None,
                millis => Some(Duration::from_millis(millis)),
            },
            origins: origins.clone(),
        };
        let allows_remote = config.allow_remote_plaintext;
        if config.listen.is_none() && config.unix_socket.is_none() && config.etcd.listen.is_empty() {
            let message = "the server would listen nowhere; set `listen` or `unix_socket`";
            return Err(ConfigError::at(values.place("listen"), message));
        }
        let of_clients = config.listen.iter().map(|listen| ("listen", listen));
        let of_etcd = config.etcd.listen.iter().map(|listen| ("etcd_listen", listen));
        for (name, listen) in of_clients.chain(of_etcd) {
            if !listen.ip().is_loopback() && config.tls.is_none() && !allows_remote {
                let message = format!(
                    "{listen} can be reached from other machines, and nothing is encrypted; listen on 127.0.0.1, set tls_cert and \
                     tls_key, or set allow_remote_plaintext to true where the network itself is protected"
                );
                return Err(ConfigError::at(values.place(name), message));
            }
        }
        if let Some(listen) = config.metrics_listen
            && !listen.ip().is_loopback()
            && !allows_remote
        {
            let message = format!(
                "{listen} can be reached from other machines, and the metrics name all maps, topics and groups; listen on \
                 127.0.0.1, or set allow_remote_plaintext to true where the network itself is protected"
            );
            return Err(ConfigError::at(values.place("metrics_listen"), message));
        }
        Ok(config)
    }
}

/// The settings as text.
struct Values<'a>(&'a [(&'static str, String, Origin)]);

impl Values<'_> {
    fn of(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, ..)| *known == name);
        found.map_or("", |(_, value, _)| value)
    }

    /// Where a setting was set, for people.
    fn place(&self, name: &str) -> String {
        let found = self.0.iter().find(|(known, ..)| *known == name);
        match found.map(|(_, _, origin)| origin) {
            Some(Origin::Environment) => variable(name),
            Some(Origin::File { path, line }) => format!("{}, line {line}", path.display()),
            Some(Origin::Flag | Origin::Default) | None => flag(name),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.of(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    fn tls(&self) -> Result<Option<TlsFiles>, ConfigError> {
        let missing = |given, name: &str| {
            let message = format!("{given} is set and {name} is not; set {name} to its PEM file");
            Err(ConfigError::at(self.place(given), message))
        };
        match (self.path("tls_cert"), self.path("tls_key"), self.path("tls_client_ca")) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), client_authority) => Ok(Some(TlsFiles {
                certificate,
                key,
                client_authority,
            })),
            (Some(_), None, _) => missing("tls_cert", "tls_key"),
            (None, Some(_), _) => missing("tls_key", "tls_cert"),
            (None, None, Some(_)) => missing("tls_client_ca", "tls_cert"),
        }
    }

    fn wrong(&self, name: &str, value: &str, wanted: &str) -> ConfigError {
        ConfigError::at(self.place(name), format!("{name} is {value:?}; it must be {wanted}"))
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str, wanted: &str) -> Result<T, ConfigError> {
        let value = self.of(name);
        value.trim().parse().map_err(|_| self.wrong(name, value, wanted))
    }

    /// Addresses with commas between.
    fn addresses(&self, name: &str) -> Result<Vec<SocketAddr>, ConfigError> {
        let value = self.of(name);
        let addresses = value.split(',').map(str::trim).filter(|address| !address.is_empty());
        let addresses = addresses.map(|address| {
            let wanted = "addresses with ports, as in 127.0.0.1:2379,[::1]:2379";
            address.parse().map_err(|_| self.wrong(name, value, wanted))
        });
        addresses.collect()
    }

    fn parsed_unless_empty<T: std::str::FromStr>(&self, name: &str, wanted: &str) -> Result<Option<T>, ConfigError> {
        match self.of(name) {
            "" => Ok(None),
            _ => self.parsed(name, wanted).map(Some),
        }
    }
}

/// The settings of a file with their lines.
fn read_file(path: &Path) -> Result<BTreeMap<String, (usize, String)>, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| {
        let message = format!("the configuration file cannot be read: {error}");
        ConfigError::at(path.display(), message)
    })?;
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let place = |at: usize| format!("{}, line {}", path.display(), line_of(at));
    let table: BTreeMap<toml::Spanned<String>, toml::Spanned<toml::Value>> =
        toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            ConfigError::at(place(at), error.message())
        })?;
    let mut settings = BTreeMap::new();
    for (key, value) in table {
        let (at, name) = (key.span().start, key.get_ref());
        if !SETTINGS.iter().any(|setting| setting.name == name) {
            let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            let message = format!("there is no setting {name}; the settings are {}", known.join(", "));
            return Err(ConfigError::at(place(at), message));
        }
        let value = match value.get_ref() {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(is) => is.to_string(),
            _ => {
                return Err(ConfigError::at(
                    place(at),
                    format!("{name} must be text, a number, true or false"),
                ));
            }
        };
        settings.insert(name.clone(), (line_of(at), value));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("duramen.toml");
        fs::write(&path, text).unwrap();
        (directory, path)
    }

    fn no_variables(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn flags_come_before_variables_before_the_file_before_defaults() {
        let (_directory, path) = with_file("threads = 3\nqueue_bytes = 1000\ngrace_seconds = 5\n");
        let variables = |name: &str| match name {
            "DURAMEN_THREADS" => Some("4".into()),
            "DURAMEN_QUEUE_BYTES" => Some("2000".into()),
            _ => None,
        };
        let config = Config::collect_from(&[("threads", "5".into())], Some(&path), variables).unwrap();
        assert_eq!(config.threads, 5);
        assert_eq!(config.queue_bytes, 2000);
        assert_eq!(config.grace, Duration::from_secs(5));
        assert_eq!(config.acknowledge, Level::Synced);
        let origin = |name: &str| {
            config
                .origins
                .iter()
                .find(|(known, ..)| *known == name)
                .unwrap()
                .2
                .clone()
        };
        assert_eq!(origin("threads"), Origin::Flag);
        assert_eq!(origin("queue_bytes"), Origin::Environment);
        assert_eq!(origin("grace_seconds"), Origin::File { path, line: 3 });
        assert_eq!(origin("reflection"), Origin::Default);
    }

    #[test]
    fn mistakes_name_their_place() {
        let mistake = |text: &str| {
            let (directory, path) = with_file(text);
            let error = Config::collect_from(&[], Some(&path), no_variables)
                .unwrap_err()
                .to_string();
            error.replace(&directory.path().display().to_string(), "")
        };
        assert!(
            mistake("threads = 1\n\ntreads = 2\n").starts_with("/duramen.toml, line 3: there is no setting treads")
        );
        assert_eq!(
            mistake("# one\nacknowledge = \"soon\"\n"),
            "/duramen.toml, line 2: acknowledge is \"soon\"; it must be written or synced"
        );
        assert!(mistake("threads = [1]\n").contains("line 1: threads must be text, a number"));
        assert!(mistake("threads = 1\nthreads\n").starts_with("/duramen.toml, line 2: "));
        let error = Config::collect_from(&[], None, |name| (name == "DURAMEN_REFLECTION").then(|| "yes".into()));
        assert_eq!(
            error.unwrap_err().to_string(),
            "DURAMEN_REFLECTION: reflection is \"yes\"; it must be true or false"
        );
    }

    #[test]
    fn other_machines_are_shut_out_unless_asked_for() {
        let listen = |address: &str, allow: &str| {
            let flags = [("listen", address.into()), ("allow_remote_plaintext", allow.into())];
            Config::collect_from(&flags, None, no_variables)
        };
        assert!(listen("127.0.0.1:1", "false").is_ok());
        assert!(listen("[::1]:1", "false").is_ok());
        assert!(listen("0.0.0.0:1", "true").is_ok());
        let error = listen("0.0.0.0:1", "false").unwrap_err().to_string();
        assert!(error.contains("nothing is encrypted"), "{error}");
        let tls = |settings: &[&'static str]| {
            let mut flags = vec![("listen", "0.0.0.0:1".to_string())];
            flags.extend(settings.iter().map(|name| (*name, format!("{name}.pem"))));
            Config::collect_from(&flags, None, no_variables)
        };
        let encrypted = tls(&["tls_cert", "tls_key"]).unwrap().tls.unwrap();
        assert_eq!(encrypted.certificate, Path::new("tls_cert.pem"));
        assert_eq!(
            tls(&["tls_cert"]).unwrap_err().to_string(),
            "--tls-cert: tls_cert is set and tls_key is not; set tls_key to its PEM file"
        );
        assert!(
            tls(&["tls_client_ca"])
                .unwrap_err()
                .to_string()
                .contains("tls_cert is not")
        );
        let error = listen("", "false").unwrap_err().to_string();
        assert!(error.contains("listen nowhere"), "{error}");
    }

    #[test]
    fn metrics_are_for_this_machine_unless_asked_for() {
        let listen = |address: &str, allow: &str| {
            let flags = [
                ("metrics_listen", address.into()),
                ("allow_remote_plaintext", allow.into()),
            ];
            Config::collect_from(&flags, None, no_variables)
        };
        assert_eq!(listen("", "false").unwrap().metrics_listen, None);
        assert!(listen("127.0.0.1:1", "false").unwrap().metrics_listen.is_some());
        assert!(listen("0.0.0.0:1", "true").is_ok());
        let error = listen("0.0.0.0:1", "false").unwrap_err().to_string();
        assert!(
            error.starts_with("--metrics-listen: 0.0.0.0:1 can be reached"),
            "{error}"
        );
    }

    #[test]
    fn logs_have_a_level_and_a_format() {
        let with = |name: &'static str, value: &str| Config::collect_from(&[(name, value.into())], None, no_variables);
        let config = with("log", "info").unwrap();
        assert_eq!((config.log, config.log_format), (LevelFilter::INFO, LogFormat::Text));
        assert_eq!(config.slow_call, Some(Duration::from_secs(1)));
        assert_eq!(with("log", "off").unwrap().log, LevelFilter::OFF);
        assert_eq!(with("log_format", "json").unwrap().log_format, LogFormat::Json);
        assert_eq!(with("slow_call_ms", "0").unwrap().slow_call, None);
        let error = with("log", "loud").unwrap_err().to_string();
        assert_eq!(
            error,
            "--log: log is \"loud\"; it must be off, error, warn, info or debug"
        );
        let error = with("log_format", "xml").unwrap_err().to_string();
        assert_eq!(error, "--log-format: log_format is \"xml\"; it must be text or json");
    }
}
