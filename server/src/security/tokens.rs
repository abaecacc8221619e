//! Tokens, and the rows that the store keeps of them.
//!
//! ```text
//! key             value
//! 0               empty; present once a principal was created: requests need permissions from then on
//! 1 id            a `Token`
//! 2 principal     the id of the token that has the permissions of the principal's certificates
//! ```
//! A token is the text `dur_ID_SECRET`, both in hexadecimal. The store has the SHA-256 of the secret alone, so its files
//! give no access.

use std::fmt::Write as _;
use std::io;

use duramen::{Map, Reason, Result, Snapshot, Transaction};
use duramen_proto::command::Token;
use prost::Message;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Bytes of the id of a token.
pub(crate) const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
const PREFIX: &str = "dur_";

const ENFORCED: [u8; 1] = [0];
const BY_ID: u8 = 1;
const BY_CERTIFICATE: u8 = 2;

/// What a client presents. It has no `Debug`, so that no log shows it.
#[derive(Clone)]
pub(crate) struct Presented {
    pub(crate) id: [u8; ID_BYTES],
    secret: [u8; SECRET_BYTES],
}

impl Presented {
    /// A token of random bytes.
    pub(crate) fn random() -> io::Result<Presented> {
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        Ok(Presented { id, secret })
    }

    /// The token of a text.
    pub(crate) fn parse(text: &str) -> Option<Presented> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        Some(Presented {
            id: from_hex(id)?,
            secret: from_hex(secret)?,
        })
    }

    /// The text, which its owner keeps.
    pub(crate) fn text(&self) -> String {
        format!("{PREFIX}{}_{}", hex(&self.id), hex(&self.secret))
    }

    pub(crate) fn secret_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.secret).into()
    }

    /// Whether this is the token of a row. The duration does not depend on where the secrets differ.
    pub(crate) fn is_of(&self, token: &Token) -> bool {
        self.secret_sha256().ct_eq(&token.secret_sha256).into()
    }
}

/// The rows of a store.
#[derive(Clone)]
pub(crate) struct Tokens {
    rows: Map,
}

impl Tokens {
    /// `rows` is the reserved map of the tokens.
    pub(crate) fn new(rows: Map) -> Tokens {
        Tokens { rows }
    }

    /// Whether requests need permissions.
    pub(crate) fn are_required(&self) -> Result<bool> {
        self.rows.get(ENFORCED).map(|row| row.is_some())
    }

    /// The token of an id.
    pub(crate) fn of_id(&self, id: &[u8]) -> Result<Option<Token>> {
        let row = self.rows.get(by_id(id))?;
        row.map(|row| decoded(&row)).transpose()
    }

    /// The token with the permissions of a certificate for this name.
    pub(crate) fn of_certificate(&self, principal: &str) -> Result<Option<Token>> {
        match self.rows.get(by_certificate(principal))? {
            Some(id) => self.of_id(&id),
            None => Ok(None),
        }
    }

    /// All tokens with their ids.
    pub(crate) fn list(&self, snapshot: &Snapshot) -> Result<Vec<(Vec<u8>, Token)>> {
        let mut cursor = snapshot.range(&self.rows, &[BY_ID][..]..&[BY_ID + 1][..])?;
        let mut tokens = Vec::new();
        while let Some((key, value)) = cursor.next()? {
            tokens.push((key[1..].to_vec(), decoded(&value)?));
        }
        Ok(tokens)
    }

    /// Stores a token. A token for certificates replaces the one before of its principal.
    pub(crate) fn put(&self, tx: &mut Transaction, id: &[u8], token: &Token) -> Result<()> {
        tx.put(&self.rows, ENFORCED, b"")?;
        if token.secret_sha256.is_empty() {
            let row = by_certificate(&token.principal);
            if let Some(before) = tx.get(&self.rows, &row)? {
                tx.delete(&self.rows, by_id(&before))?;
            }
            tx.put(&self.rows, row, id)?;
        }
        tx.put(&self.rows, by_id(id), token.encode_to_vec())
    }

    /// Removes a token. Returns whether there was one.
    pub(crate) fn revoke(&self, tx: &mut Transaction, id: &[u8]) -> Result<bool> {
        let Some(row) = tx.get(&self.rows, by_id(id))? else {
            return Ok(false);
        };
        let token = decoded(&row)?;
        if token.secret_sha256.is_empty() {
            tx.delete(&self.rows, by_certificate(&token.principal))?;
        }
        tx.delete(&self.rows, by_id(id))?;
        Ok(true)
    }
}

fn by_id(id: &[u8]) -> Vec<u8> {
    [&[BY_ID], id].concat()
}

fn by_certificate(principal: &str) -> Vec<u8> {
    [&[BY_CERTIFICATE], principal.as_bytes()].concat()
}

fn decoded(row: &[u8]) -> Result<Token> {
    let what = "what the store keeps of a token is damaged; run `duramen check`";
    Token::decode(row).map_err(|_| Reason::Damaged(what.into()).into())
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of a hexadecimal text of the right length.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_hex = text.len() == 2 * N && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_token_is_the_token() {
        let token = Presented::random().unwrap();
        let parsed = Presented::parse(&token.text()).unwrap();
        assert_eq!((parsed.id, parsed.secret), (token.id, token.secret));
        assert!(Presented::random().unwrap().text() != token.text());
        let text = token.text();
        for wrong in [
            "",
            "dur_",
            "dur_00_00",
            &text[1..],
            &text[..text.len() - 1],
            &text.replace("dur_", "dur_é"),
        ] {
            assert!(Presented::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn only_the_secret_itself_is_of_a_token() {
        let (one, other) = (Presented::random().unwrap(), Presented::random().unwrap());
        let token = |secret_sha256: Vec<u8>| Token {
            secret_sha256: secret_sha256.into(),
            ..Token::default()
        };
        assert!(one.is_of(&token(one.secret_sha256().to_vec())));
        assert!(!one.is_of(&token(other.secret_sha256().to_vec())));
        assert!(!one.is_of(&token(Vec::new())), "a certificate's row has no secret");
    }
}
