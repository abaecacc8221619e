//! Definitions: rows of the map `state/JOB` that say how a job and its states were declared.
//!
//! ```text
//! "/"    form (1), key groups (2, big-endian)        the job; no state has this name
//! NAME   form (1), kind (1), types (text)            a state
//! ```

use std::any::type_name;

use duramen_engine::Result;

use super::error::StateError;
use super::kind::StateKind;

/// Form of the rows.
const FORM: u8 = 1;

/// Key of the row of the job.
pub(super) const JOB_KEY: &str = "/";

/// Longest name of a job or state: the names of its map and of its checkpoints stay below the limits of the engine.
const NAME_BYTES_MAX: usize = 100;

/// How a state was declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Definition {
    pub kind: StateKind,
    /// Names of its types without modules. Empty: the next declaration decides.
    pub types: String,
}

impl Definition {
    pub fn of<T>(kind: StateKind) -> Definition {
        let types = without_modules(type_name::<T>());
        Definition { kind, types }
    }

    pub fn row(&self) -> Vec<u8> {
        [&[FORM, self.kind.code()], self.types.as_bytes()].concat()
    }

    pub fn parse(job: &str, name: &str, row: &[u8]) -> Result<Definition> {
        let parsed = match row {
            [FORM, code, types @ ..] => {
                let kind = StateKind::of_code(*code);
                kind.zip(std::str::from_utf8(types).ok())
            }
            _ => None,
        };
        let (kind, types) = parsed.ok_or_else(|| unreadable(job, name))?;
        Ok(Definition {
            kind,
            types: types.to_string(),
        })
    }

    /// Refuses to open a state that was declared as `self` in another way.
    pub fn admit(&self, job: &str, name: &str, asked: &Definition) -> Result<()> {
        let (job, name) = (job.to_string(), name.to_string());
        if self.kind != asked.kind {
            let (found, asked) = (self.kind, asked.kind);
            return Err(StateError::OtherKind {
                job,
                name,
                found,
                asked,
            }
            .into());
        }
        if !self.types.is_empty() && self.types != asked.types {
            let (found, asked) = (self.types.clone(), asked.types.clone());
            return Err(StateError::OtherTypes {
                job,
                name,
                found,
                asked,
            }
            .into());
        }
        Ok(())
    }
}

/// The row of a job.
pub(super) fn job_row(key_groups: u16) -> Vec<u8> {
    [&[FORM][..], &key_groups.to_be_bytes()].concat()
}

/// The number of key groups in the row of a job.
pub(super) fn parse_job(job: &str, row: &[u8]) -> Result<u16> {
    match row {
        [FORM, high, low] => Ok(u16::from_be_bytes([*high, *low])),
        _ => Err(unreadable(job, JOB_KEY)),
    }
}

fn unreadable(job: &str, key: &str) -> duramen_engine::Error {
    StateError::InvalidDefinition {
        map: job_map(job),
        key: key.to_string(),
    }
    .into()
}

/// Name of the map that has the definitions of a job.
pub(super) fn job_map(job: &str) -> String {
    format!("state/{job}")
}

/// Name of the map that has the rows of a state.
pub(super) fn state_map(job: &str, state: &str) -> String {
    format!("state/{job}/{state}")
}

/// Refuses what cannot name a job or a state.
pub(super) fn check_name(of: &'static str, name: &str) -> Result<()> {
    let cause = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "it is too long"
    } else if name.contains('/') {
        "it has a `/`"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else {
        return Ok(());
    };
    let name = name.to_string();
    Err(StateError::InvalidName { name, of, cause }.into())
}

/// A type as the compiler names it, without the modules: they differ between versions of compilers and libraries.
fn without_modules(name: &str) -> String {
    let mut short = String::new();
    // Where the path that is being read begins in `short`.
    let mut path = 0;
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ':' && letters.next_if_eq(&':').is_some() {
            short.truncate(path);
            continue;
        }
        short.push(letter);
        if !letter.is_alphanumeric() && letter != '_' {
            path = short.len();
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_lose_their_modules_and_nothing_else() {
        assert_eq!(without_modules("u64"), "u64");
        assert_eq!(without_modules("(alloc::string::String, [u8; 4])"), "(String, [u8; 4])");
        assert_eq!(
            without_modules("my_job::Json<my_job::clicks::Click_1>"),
            "Json<Click_1>"
        );
        assert_eq!(
            Definition::of::<(String, Option<Vec<u8>>)>(StateKind::Value).types,
            "(String, Option<Vec<u8>>)"
        );
    }

    #[test]
    fn definitions_come_back_and_damaged_ones_are_refused() {
        for kind in StateKind::ALL {
            let definition = Definition::of::<(String, u64)>(kind);
            assert_eq!(
                Definition::parse("job", "counts", &definition.row()).unwrap(),
                definition
            );
        }
        for row in [&[][..], &[1], &[2, 1], &[1, 9], &[1, 1, 0xFF]] {
            let error = Definition::parse("job", "counts", row).unwrap_err();
            assert!(matches!(
                StateError::of(&error),
                Some(StateError::InvalidDefinition { .. })
            ));
        }
        assert_eq!(parse_job("job", &job_row(300)).unwrap(), 300);
        assert!(parse_job("job", &[1, 2]).is_err());
    }
}
