// The program that opens README.md, line by line: `docs.rs` includes this file, compares the two and runs it. (An
// ordinary comment, because a file that is included cannot begin with that of a module.)

use duramen::Store;

fn main() -> duramen::Result<()> {
    let store = Store::open("my-store")?; // a directory; made when it is missing
    let (stock, sold) = (store.map("stock")?, store.map("sold")?);
    stock.put("apples", "12")?; // survives power loss once this returns
    let before = store.snapshot()?; // one moment, which stays
    store.transact(|tx| {
        tx.put(&stock, "apples", "11")?; // both maps or neither; runs again after a conflict
        tx.append(&sold, "apples/", "one, to Ada") // the key ends in the next number
    })?;
    assert_eq!(before.get(&stock, "apples")?.unwrap(), "12");
    assert_eq!(stock.get("apples")?.unwrap(), "11");
    store.close()
}
