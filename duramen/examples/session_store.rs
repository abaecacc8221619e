//! A session store: sessions with an expiry index, "log out everywhere", and a backup during writes.
//!
//!     cargo run --release -p duramen --example session_store

use duramen::{CodecError, Result, Store, TypedMap, ValueCodec};

/// The data of a session. Any serialisation works.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    expires: u64,
    agent: String,
}

impl ValueCodec for Session {
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend(self.expires.to_be_bytes());
        out.extend(self.agent.as_bytes());
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Session, CodecError> {
        let (expires, agent) = bytes.split_first_chunk().ok_or("a session is too short")?;
        Ok(Session {
            expires: u64::from_be_bytes(*expires),
            agent: String::from_utf8(agent.to_vec())?,
        })
    }
}

struct Sessions {
    store: Store,
    /// User and token to session.
    sessions: TypedMap<(String, u64), Session>,
    /// Expiry time, user and token: the index by expiry.
    expiring: TypedMap<(u64, String, u64), ()>,
}

impl Sessions {
    fn open(store: &Store) -> Result<Sessions> {
        Ok(Sessions {
            sessions: TypedMap::new(store.map("sessions")?),
            expiring: TypedMap::new(store.map("sessions by expiry")?),
            store: store.clone(),
        })
    }

    fn log_in(&self, user: &str, token: u64, session: &Session) -> Result<()> {
        self.store.transact(|tx| {
            self.sessions.within(tx).put(&(user, token), session)?;
            self.expiring.within(tx).put(&(session.expires, user, token), &())
        })
    }

    /// Removes all sessions of a user, and returns their number.
    fn log_out_everywhere(&self, user: &str) -> Result<u64> {
        self.store.transact(|tx| {
            let mut rows = Vec::new();
            for pair in self.sessions.at(tx).prefix(&(user,))? {
                let ((user, token), session) = pair?;
                rows.push((session.expires, user, token));
            }
            rows.iter().try_for_each(|row| self.expiring.within(tx).delete(row))?;
            self.sessions.within(tx).delete_prefix(&(user,))?;
            Ok(rows.len() as u64)
        })
    }

    /// Removes up to `most` sessions that expired before `now`, and returns their number. The store finds the first
    /// pair of the index at once, however many were removed before it.
    fn sweep(&self, now: u64, most: usize) -> Result<usize> {
        self.store.transact(|tx| {
            let rows = self.expiring.at(tx).range(..(now, String::new(), 0))?.take(most);
            let rows = rows.collect::<Result<Vec<_>>>()?;
            for (expires, user, token) in rows.iter().map(|(row, ())| row) {
                self.expiring.within(tx).delete(&(*expires, user, *token))?;
                self.sessions.within(tx).delete(&(user, *token))?;
            }
            Ok(rows.len())
        })
    }
}

/// Logs users in and out, sweeps, and copies the store.
pub fn main() -> Result<()> {
    let store = Store::temporary()?;
    let sessions = Sessions::open(&store)?;
    for token in 0..1_000 {
        let session = Session {
            expires: 100 + token % 50,
            agent: "Mosaic".into(),
        };
        sessions.log_in(&format!("user {}", token % 20), token, &session)?;
    }
    assert_eq!(sessions.log_out_everywhere("user 7")?, 50);
    let mut swept = 0;
    loop {
        match sessions.sweep(110, 64)? {
            0 => break,
            some => swept += some,
        }
    }
    println!("{swept} sessions have expired, {} are left", sessions.sessions.count()?);
    assert_eq!(sessions.sessions.count()?, sessions.expiring.count()?);
    assert_eq!(sessions.sessions.count()? as usize, 950 - swept);
    let first = sessions.expiring.first()?.expect("some have not expired");
    assert_eq!(first.0.0, 110);

    // A copy is a separate store. The original remains in use meanwhile.
    let directory = tempfile::tempdir().expect("a directory");
    store.copy(directory.path().join("backup"), &mut |_| ())?;
    let copied = Sessions::open(&Store::open(directory.path().join("backup"))?)?;
    assert_eq!(copied.sessions.count()?, sessions.sessions.count()?);
    Ok(())
}
