//! The tokens of a store, for `duramen token`: all changes are commands, as everywhere in the server.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duramen::topic::TopicsOptions;
use duramen::{Durability, Error, Store};
use duramen_proto::command::command::Change;
use duramen_proto::command::outcome::Outcome as Led;
use duramen_proto::command::{Command, Entry, PutToken, RevokeToken, Token};

use crate::command::{Applier, ENTRY_VERSION, TOKENS};
use crate::security::{Permission, Presented, Tokens, from_hex, hex};

/// Why tokens cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The store.
    #[error(transparent)]
    Store(#[from] Error),
    /// The operating system has no random bytes.
    #[error("the system gives no random bytes: {0}; try again")]
    Random(io::Error),
    /// The command was refused.
    #[error("{0}")]
    Refused(String),
    /// There is no such token.
    #[error("there is no token {0:?}; `duramen token list` shows the ids")]
    Unknown(String),
}

/// A new token.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The name of the principal.
    pub principal: String,
    /// What the principal may do.
    pub permissions: Vec<Permission>,
    /// Whether the permissions are for the principal's certificates, without a secret.
    pub is_for_certificates: bool,
    /// How long it is valid. `None`: until it is revoked.
    pub valid_for: Option<Duration>,
    /// Most calls of the principal at a time, streams among them; 0: no limit.
    pub calls: u32,
    /// Most bytes of its requests and responses in a second; more wait. 0: no limit.
    pub bytes_per_second: u64,
}

/// A token that was created.
pub struct CreatedToken {
    /// Its id, which is not secret.
    pub id: String,
    /// The text that a client presents; the store does not have it. `None`: the permissions are for certificates.
    pub text: Option<String>,
}

/// A token of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedToken {
    /// Its id.
    pub id: String,
    /// The name of the principal.
    pub principal: String,
    /// What the principal may do.
    pub permissions: Vec<String>,
    /// Whether it is for certificates.
    pub is_for_certificates: bool,
    /// When it expires.
    pub expires: Option<SystemTime>,
    /// Most calls at a time; 0: no limit.
    pub calls: u32,
    /// Most bytes in a second; 0: no limit.
    pub bytes_per_second: u64,
}

/// Creates a token. From the first one on, requests to a server of this store need permissions.
///
/// # Errors
/// [`TokenError`].
pub fn create_token(store: &Store, new: &NewToken) -> Result<CreatedToken, TokenError> {
    let presented = Presented::random().map_err(TokenError::Random)?;
    let secret_sha256 = match new.is_for_certificates {
        true => Vec::new(),
        false => presented.secret_sha256().to_vec(),
    };
    let expires = new.valid_for.map(|time| micros(SystemTime::now() + time));
    let token = Token {
        principal: new.principal.clone(),
        permissions: new.permissions.iter().map(ToString::to_string).collect(),
        secret_sha256: secret_sha256.into(),
        expires_us: expires.unwrap_or(0),
        calls: new.calls,
        bytes_per_second: new.bytes_per_second,
    };
    let id = presented.id.to_vec();
    apply(
        store,
        Change::PutToken(PutToken {
            id: id.into(),
            token: Some(token),
        }),
    )?;
    Ok(CreatedToken {
        id: hex(&presented.id),
        text: (!new.is_for_certificates).then(|| presented.text()),
    })
}

/// The tokens of a store. Expired tokens are among them.
///
/// # Errors
/// Those of the store.
pub fn list_tokens(store: &Store) -> Result<Vec<ListedToken>, TokenError> {
    let Some(rows) = store.existing_reserved_map(TOKENS)? else {
        return Ok(Vec::new());
    };
    let tokens = Tokens::new(rows).list(&store.snapshot()?)?;
    let listed = tokens.into_iter().map(|(id, token)| ListedToken {
        id: hex(&id),
        principal: token.principal,
        permissions: token.permissions,
        is_for_certificates: token.secret_sha256.is_empty(),
        expires: (token.expires_us != 0).then(|| UNIX_EPOCH + Duration::from_micros(token.expires_us)),
        calls: token.calls,
        bytes_per_second: token.bytes_per_second,
    });
    Ok(listed.collect())
}

/// Revokes a token. Servers of this store refuse it from their next request on.
///
/// # Errors
/// [`TokenError::Unknown`], or those of the store.
pub fn revoke_token(store: &Store, id: &str) -> Result<(), TokenError> {
    let unknown = || TokenError::Unknown(id.into());
    let bytes: [u8; 8] = from_hex(id).ok_or_else(unknown)?;
    let id = bytes.to_vec().into();
    match apply(store, Change::RevokeToken(RevokeToken { id }))? {
        true => Ok(()),
        false => Err(unknown()),
    }
}

/// Applies a command, and returns whether it changed something.
fn apply(store: &Store, change: Change) -> Result<bool, TokenError> {
    let mut applier = Applier::new(store, TopicsOptions::new().background(false))?;
    let entry = Entry {
        version: ENTRY_VERSION,
        time_us: micros(SystemTime::now()),
        clock_us: applier.clock_us(),
        commands: vec![Command {
            change: Some(change),
            ..Command::default()
        }],
    };
    let applied = applier.apply(&entry, Durability::Written)?;
    store.sync()?;
    match applied.outcomes.into_iter().next().and_then(|outcome| outcome.outcome) {
        Some(Led::Changed(changed)) => Ok(changed),
        Some(Led::Refused(refusal)) => Err(TokenError::Refused(refusal.message)),
        other => Err(TokenError::Refused(format!(
            "the command had the outcome {other:?}; report this"
        ))),
    }
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
