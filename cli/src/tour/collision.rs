//! Fourth chapter: two transactions want the same key.

use duramen::{Store, TransactionOptions};

use super::source;
use super::stage::Stage;
use crate::exit::{Failure, Outcome};
use crate::text::Notation;

const SOURCE: &str = include_str!("collision.rs");

pub fn collide(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let about = "Write transactions run at the same time. When two of them change one key, the second to commit is \
                 told so, and nothing of it is written; the closure form then runs again by itself.";
    stage.chapter("Two transactions collide", about)?;
    by_hand(stage, store)?;
    by_closure(stage, store)
}

fn by_hand(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let stock = store.map("stock")?;
    shown! { stage;
        let mut first = store.begin(TransactionOptions::default())?;
        let mut second = store.begin(TransactionOptions::default())?;
        first.put(&stock, b"apples", b"11")?;
        second.put(&stock, b"apples", b"10")?;
    }
    shown! { stage;
        first.commit()?;
    }
    shown! { stage;
        let refused = second.commit();
    }
    match refused {
        Err(error) => stage.result(format!("{:?}: {error}", error.kind())),
        Ok(_) => Err(Failure::damaged("a collision went unnoticed: this is a bug in Duramen")),
    }
}

fn by_closure(stage: &mut Stage<'_>, store: &Store) -> Outcome<()> {
    let stock = store.map("stock")?;
    let mut runs = 0;
    shown! { stage;
        store.transact(|tx| {
            runs += 1;
            let apples = number(tx.get(&stock, b"apples")?);
            if runs == 1 {
                let other = stock.clone(); // another thread is quicker
                std::thread::spawn(move || other.put(b"apples", b"40")).join().expect("no panic")?;
            }
            tx.put(&stock, b"apples", (apples - 1).to_string().as_bytes())
        })?;
    }
    let apples = stock.get(b"apples")?.unwrap_or_default();
    stage.result(format!("ran {runs} times; apples: {}", Notation::Escapes.show(&apples)))
}

/// Parses a number stored as text. It is stored as text so that `duramen scan` shows it.
fn number(value: Option<impl AsRef<[u8]>>) -> i64 {
    let text = value.map(|value| String::from_utf8_lossy(value.as_ref()).into_owned());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
