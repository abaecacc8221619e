//! Clients with tokens.

use crate::common::{address, run, serve};
use duramen::Store;
use duramen_client::{Client, ErrorKind, GroupOptions, Start, TopicOptions};
use duramen_server::{NewToken, create_token, revoke_token};

#[test]
fn a_client_presents_its_token_with_every_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path).unwrap();
    let new = NewToken {
        principal: "ada".into(),
        permissions: vec!["admin:*".parse().unwrap()],
        is_for_certificates: false,
        valid_for: None,
        calls: 0,
        bytes_per_second: 0,
    };
    let created = create_token(&store, &new).unwrap();
    store.close().unwrap();
    let server = serve(directory.path());
    run(async {
        let stranger = Client::connect(&address(&server)).unwrap();
        let refused = stranger.create_map("m").await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unauthenticated);
        let text = created.text.as_deref().unwrap();
        let builder = Client::builder().token(text);
        assert!(!format!("{builder:?}").contains(&text[5..]));
        let client = builder.connect(&address(&server)).unwrap();
        client.create_map("m").await.unwrap();
        client.create_topic("t", TopicOptions::default()).await.unwrap();
        // The streams present it too: publishing, subscribing, and the session of a member.
        let topic = client.topic("t");
        let publisher = topic.publisher().await.unwrap();
        publisher.send("one").await.unwrap().await.unwrap();
        let mut messages = topic.subscribe(Start::Earliest).await.unwrap();
        assert_eq!(messages.next().await.unwrap().unwrap().payload, "one");
        let group = topic.group("g");
        group.create(Start::Earliest, GroupOptions::new()).await.unwrap();
        let mut member = group.join("worker").await.unwrap();
        let deliveries = member.receive().await.unwrap().unwrap();
        deliveries.acknowledge().await.unwrap();

        let store = Store::open(&path).unwrap();
        revoke_token(&store, &created.id).unwrap();
        store.close().unwrap();
        let refused = client.map("m").get("k").await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unauthenticated);
        let ended = member.receive().await.unwrap().err().unwrap();
        assert_eq!(ended.kind, ErrorKind::Unauthenticated);
        let ended = messages.next().await.unwrap().unwrap_err();
        assert_eq!(ended.kind, ErrorKind::Unauthenticated);
    });
    server.stop().unwrap();
}

/// A token that was revoked stays so, whatever the store is put back to.
#[test]
fn tokens_stay_as_they_are_when_the_store_is_put_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let token = |principal: &str| NewToken {
        principal: principal.into(),
        permissions: vec!["read:*".parse().unwrap()],
        is_for_certificates: false,
        valid_for: None,
        calls: 0,
        bytes_per_second: 0,
    };
    let revoked = create_token(&store, &token("revoked")).unwrap();
    create_token(&store, &token("kept")).unwrap();
    store.checkpoints().create("one", "").unwrap();
    revoke_token(&store, &revoked.id).unwrap();
    create_token(&store, &token("later")).unwrap();
    duramen_server::restore(&store, "one").unwrap();
    store.close().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let listed = duramen_server::list_tokens(&store).unwrap();
    let mut principals: Vec<_> = listed.into_iter().map(|token| token.principal).collect();
    principals.sort();
    assert_eq!(principals, ["kept", "later"]);
}
