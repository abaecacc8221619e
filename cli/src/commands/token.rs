//! `duramen token`: creates, lists and revokes the tokens with which clients use a server.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use duramen::{Options, Store};
use duramen_server::{NewToken, Permission, TokenError};
use serde_json::json;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, say};

const EXAMPLES: &str = r"Examples:
  A token for a program that reads and writes the maps whose names begin with orders:
    $ duramen token create shop --allow 'read:map:orders*' --allow 'write:map:orders*'
  What there is:
    $ duramen token list

From the first token on, a server of the store refuses requests without one. The user that runs the
server, and root, need none on its unix socket. A running server sees each change at once.";

const CREATE_EXAMPLES: &str = r"Examples:
  A token that may do everything; it is printed once:
    $ duramen token create ada --allow 'admin:*'
    $ duramen token create backup --allow 'read:*' --expires 30d --json
  Permissions for clients with a certificate of this name, without a token:
    $ duramen token create shop --certificate --allow 'write:topic:orders'
  At most 100 calls at a time, and one MiB in a second:
    $ duramen token create guest --allow 'read:*' --calls 100 --bytes-per-second 1048576

A permission is read, write or admin, and then :*, :map:NAME, :topic:NAME or :tree:NAME. A name that ends with
* stands for all names that begin so. Writing does not include reading. admin includes both, and
creates, drops, configures and renames.";

const LIST_EXAMPLES: &str = r"Examples:
  The tokens, without their secrets, which the store does not have:
    $ duramen token list
    $ duramen token list --data-dir duramen-data --json";

const REVOKE_EXAMPLES: &str = r"Examples:
  The id is the part of the token after dur_, and the list shows it:
    $ duramen token revoke $(duramen token list | head -1 | cut -f 1)
    $ duramen token revoke $(duramen token list | head -1 | cut -f 1) --json";

/// Create, list and revoke the tokens of clients
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Args, Debug)]
struct DataDirectory {
    /// The directory of the server's store
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "duramen-data",
        env = "DURAMEN_DATA_DIR"
    )]
    data_dir: PathBuf,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Create a token, and print it once
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name of the program or person that uses the token
        name: String,
        /// What the token allows; may be repeated
        #[arg(long, value_name = "PERMISSION", required = true)]
        allow: Vec<Permission>,
        /// How long the token is valid, as in 12h or 30d (default: until it is revoked)
        #[arg(long, value_name = "TIME", value_parser = validity)]
        expires: Option<Duration>,
        /// Most calls at a time, open streams among them (default: no limit)
        #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
        calls: u32,
        /// Most bytes of requests and responses in a second; more wait (default: no limit)
        #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
        bytes_per_second: u64,
        /// For clients with a certificate of this name; there is no token then
        #[arg(long)]
        certificate: bool,
        #[command(flatten)]
        directory: DataDirectory,
    },
    /// List the tokens
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        directory: DataDirectory,
    },
    /// Revoke a token
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke {
        /// The id of the token
        id: String,
        #[command(flatten)]
        directory: DataDirectory,
    },
}

impl DataDirectory {
    fn open(&self, options: Options) -> Outcome<Store> {
        Ok(options.open(&self.data_dir)?)
    }
}

impl Token {
    pub fn run(self, output: &mut Output) -> Outcome {
        match self.action {
            Action::Create {
                name,
                allow,
                expires,
                calls,
                bytes_per_second,
                certificate,
                directory,
            } => {
                let new = NewToken {
                    principal: name,
                    permissions: allow,
                    is_for_certificates: certificate,
                    valid_for: expires,
                    calls,
                    bytes_per_second,
                };
                create(&directory.open(Options::new().create(false))?, &new, output)
            }
            Action::List { directory } => list(&directory.open(Options::new().read_only(true))?, output),
            Action::Revoke { id, directory } => {
                let store = directory.open(Options::new().create(false))?;
                duramen_server::revoke_token(&store, &id).map_err(failure)?;
                if output.is_json {
                    output.json(&json!({"revoked": id}))?;
                }
                Ok(Exit::Done)
            }
        }
    }
}

fn create(store: &Store, new: &NewToken, output: &mut Output) -> Outcome {
    let created = duramen_server::create_token(store, new).map_err(failure)?;
    if output.is_json {
        output.json(&json!({"id": created.id, "token": created.text}))?;
    } else if let Some(text) = created.text {
        say("keep the token: it cannot be shown again");
        output.line(text)?;
    } else {
        output.line(created.id)?;
    }
    Ok(Exit::Done)
}

fn list(store: &Store, output: &mut Output) -> Outcome {
    let mut rows = Vec::new();
    for token in duramen_server::list_tokens(store).map_err(failure)? {
        if output.is_json {
            let expires = token.expires.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let expires = expires.map(|time| time.as_secs());
            output.json(&json!({
                "id": token.id,
                "principal": token.principal,
                "permissions": token.permissions,
                "certificate": token.is_for_certificates,
                "expires": expires,
                "calls": limit(token.calls.into()),
                "bytes_per_second": limit(token.bytes_per_second),
            }))?;
        } else {
            let kind = if token.is_for_certificates {
                "certificate"
            } else {
                "token"
            };
            let expires = token.expires.map_or_else(|| "never".into(), until);
            rows.push(vec![
                token.id,
                token.principal,
                kind.into(),
                expires,
                limit(token.calls.into()).map_or_else(|| "any".into(), |calls| calls.to_string()),
                limit(token.bytes_per_second).map_or_else(|| "any".into(), |bytes| bytes.to_string()),
                token.permissions.join(" "),
            ]);
        }
    }
    let columns = ["id", "principal", "kind", "expires", "calls", "bytes/s", "permissions"];
    output.table(&columns, &rows)?;
    Ok(Exit::Done)
}

/// A limit that is set.
fn limit(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

fn failure(error: TokenError) -> Failure {
    match error {
        TokenError::Store(error) => Failure::from(error),
        other => Failure::wrong_call(other.to_string()),
    }
}

/// How long a token is still valid, for people.
fn until(expires: SystemTime) -> String {
    let Ok(left) = expires.duration_since(SystemTime::now()) else {
        return "expired".into();
    };
    let seconds = left.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= *unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("in {} {name}", seconds / unit)
}

/// Parses a number with a unit: s, m, h or d.
pub fn validity(text: &str) -> Result<Duration, String> {
    const YEARS_100: u64 = 100 * 365 * 86_400;
    let parse = || {
        let unit = match text.chars().next_back()? {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return None,
        };
        let seconds = text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit)?;
        (1..=YEARS_100).contains(&seconds).then(|| Duration::from_secs(seconds))
    };
    parse().ok_or_else(|| format!("{text:?} is no time; write a number and s, m, h or d, as in 30d"))
}
