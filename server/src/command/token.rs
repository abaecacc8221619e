//! The commands that change tokens.

use duramen::Transaction;
use duramen_proto::command::{PutToken, Refusal, RevokeToken};
use tonic::Code;

use super::stopped::Stopped;
use crate::refusal::refused;
use crate::security::{Permission, Tokens};

/// The reserved map of the tokens.
pub(crate) const TOKENS: &str = "server.principals";
/// Bytes of the id of a token, and of a hash.
const ID_BYTES: usize = 8;
const HASH_BYTES: usize = 32;
/// The longest name of a principal, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Stores a token.
pub(super) fn put(tokens: &Tokens, tx: &mut Transaction, put: &PutToken) -> Result<bool, Stopped> {
    let token = put.token.clone().unwrap_or_default();
    let is_name = (1..=NAME_BYTES_MAX).contains(&token.principal.len()) && !token.principal.contains(char::is_control);
    if !is_name {
        let message = format!("the principal needs a name of 1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(invalid(message).into());
    }
    if put.id.len() != ID_BYTES || !matches!(token.secret_sha256.len(), 0 | HASH_BYTES) {
        let message = format!("a token needs an id of {ID_BYTES} bytes, and a hash of {HASH_BYTES} bytes or none");
        return Err(invalid(message).into());
    }
    for text in &token.permissions {
        text.parse::<Permission>().map_err(|error| invalid(error.to_string()))?;
    }
    tokens.put(tx, &put.id, &token)?;
    Ok(true)
}

/// Removes a token. Returns whether there was one.
pub(super) fn revoke(tokens: &Tokens, tx: &mut Transaction, revoke: &RevokeToken) -> Result<bool, Stopped> {
    Ok(tokens.revoke(tx, &revoke.id)?)
}

fn invalid(message: String) -> Refusal {
    refused(Code::InvalidArgument, "INVALID_ARGUMENT", message)
}
