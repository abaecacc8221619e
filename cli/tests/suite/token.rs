//! `duramen token`: what it prints, what it keeps, and a server that sees each change.

use std::fs;

use crate::common::Scratch;

#[test]
fn a_token_is_printed_once_and_is_in_no_file() {
    let scratch = Scratch::new();
    scratch.done(&["maps", "create", "duramen-data", "orders"]);
    let made = scratch.done(&[
        "token",
        "create",
        "shop",
        "--allow",
        "read:map:orders*",
        "--expires",
        "30d",
    ]);
    let text = made.text();
    let token = text.trim();
    let id = token
        .strip_prefix("dur_")
        .and_then(|rest| rest.split('_').next())
        .unwrap();
    let secret = token.rsplit('_').next().unwrap();
    assert_eq!((id.len(), secret.len()), (16, 64));
    let listed = scratch.done(&["token", "list"]);
    let listed = listed.text();
    assert!(
        listed.contains(id) && listed.contains("shop") && listed.contains("read:map:orders*"),
        "{listed}"
    );
    assert!(!listed.contains(secret));
    // The secret itself, and as bytes, is nowhere in the store.
    let bytes: Vec<u8> = (0..32)
        .map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let mut files = 0;
    for file in fs::read_dir(scratch.path("duramen-data")).unwrap() {
        let path = file.unwrap().path();
        if !path.is_file() {
            continue;
        }
        let content = fs::read(&path).unwrap();
        let has = |part: &[u8]| content.windows(part.len()).any(|window| window == part);
        assert!(!has(secret.as_bytes()) && !has(&bytes), "{}", path.display());
        files += 1;
    }
    assert!(files > 0);
    scratch.done(&["token", "revoke", id]);
    assert!(!scratch.done(&["token", "list"]).text().contains(id));
    let again = scratch.run(&["token", "revoke", id]);
    assert_ne!(again.code, 0);
    assert!(again.stderr.contains("there is no token"), "{}", again.stderr);
}

#[test]
fn wrong_permissions_and_times_are_told() {
    let scratch = Scratch::new();
    scratch.done(&["maps", "create", "duramen-data", "orders"]);
    let wrong = scratch.run(&["token", "create", "shop", "--allow", "own:*"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("as in read:map:orders.*"), "{}", wrong.stderr);
    let wrong = scratch.run(&["token", "create", "shop", "--allow", "read:*", "--expires", "soon"]);
    assert_eq!(wrong.code, 2);
    let none = scratch.run(&["token", "create", "shop"]);
    assert_eq!(none.code, 2);
    let missing = scratch.run(&["token", "list", "--data-dir", "elsewhere"]);
    assert_ne!(missing.code, 0);
}
