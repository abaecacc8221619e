//! Watching maps: pairs, changes, and what happens when the connection breaks.

use std::collections::BTreeMap;

use crate::common::*;
use duramen_client::{Bytes, ErrorKind, KeepChanges, Keys, Watch, WatchStart, Watched};

async fn changes(watch: &mut Watch, number: usize) -> Vec<(Bytes, Option<Bytes>, Option<Bytes>)> {
    let mut changes = Vec::new();
    while changes.len() < number {
        match watch.next().await.unwrap().unwrap() {
            Watched::Changed(change) => {
                assert_eq!(watch.position(), change.number);
                changes.push((change.key, change.old, change.new));
            }
            other => panic!("{other:?} is no change"),
        }
    }
    changes
}

#[test]
fn a_watch_shows_pairs_then_changes_and_its_position_resumes_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(directory.path());
    run(async {
        let client = client(&server);
        assert!(client.create_watched_map("m", KeepChanges::default()).await.unwrap());
        assert!(!client.create_watched_map("m", KeepChanges::default()).await.unwrap());
        let map = client.map("m");
        for key in ["a", "b", "other"] {
            map.put(key, key).await.unwrap();
        }
        let mut watch = map.watch(Keys::starting_at("b"), WatchStart::Current).await.unwrap();
        let mut pairs = BTreeMap::new();
        loop {
            match watch.next().await.unwrap().unwrap() {
                Watched::Pair(pair) => drop(pairs.insert(pair.key, pair.value)),
                Watched::Complete => break,
                Watched::Changed(change) => panic!("{change:?} comes too early"),
            }
        }
        assert_eq!(pairs.len(), 2);
        assert_eq!(watch.position(), 3);
        map.put("c", "1").await.unwrap();
        map.delete("c").await.unwrap();
        let one = Some(Bytes::from("1"));
        let expected = [("c".into(), None, one.clone()), ("c".into(), one, None)];
        assert_eq!(changes(&mut watch, 2).await, expected);

        let mut later = map.watch(Keys::all(), WatchStart::After(4)).await.unwrap();
        assert_eq!(changes(&mut later, 1).await, expected[1..]);
        let mut all = map.watch(Keys::all(), WatchStart::Earliest).await.unwrap();
        assert_eq!(changes(&mut all, 5).await[3..], expected);
        assert_eq!(map.watch(Keys::all(), WatchStart::Next).await.unwrap().position(), 5);

        let limits = KeepChanges { age_ms: 0, bytes: 1 };
        client.configure_watched_map("m", limits).await.unwrap();
        map.put("d", "1").await.unwrap();
        let gone = map.watch(Keys::all(), WatchStart::After(1)).await.err().unwrap();
        assert_eq!(gone.reason, "CHANGES_GONE");
        client.create_map("plain").await.unwrap();
        let plain = client.map("plain").watch(Keys::all(), WatchStart::Next).await;
        assert_eq!(plain.err().unwrap().reason, "KEEPS_NO_CHANGES");
        let missing = client.map("missing").watch(Keys::all(), WatchStart::Next).await;
        assert_eq!(missing.err().unwrap().kind, ErrorKind::NotFound);
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_goes_on_when_the_server_comes_back_and_misses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let mut server = serve(&path);
    run(async {
        let address = server.listening().tcp.unwrap().to_string();
        let client = client(&server);
        let limits = KeepChanges::default();
        client.create_watched_map("m", limits).await.unwrap();
        let map = client.map("m");
        let mut watch = map.watch(Keys::all(), WatchStart::Next).await.unwrap();
        for round in 0..3 {
            for n in 0..5 {
                map.put("key", format!("{round}.{n}")).await.unwrap();
            }
            // Some changes are read before the server stops, and some afterwards.
            let seen = changes(&mut watch, 2).await;
            assert_eq!(seen[0].2, Some(Bytes::from(format!("{round}.0"))));
            let (path, address) = (path.clone(), address.clone());
            let restart = tokio::task::spawn_blocking(move || {
                server.stop().unwrap();
                serve_on(&path, &address, &[])
            });
            server = restart.await.unwrap();
            let seen = changes(&mut watch, 3).await;
            assert_eq!(seen[2].2, Some(Bytes::from(format!("{round}.4"))));
        }
        assert_eq!(watch.position(), 15);
        drop((watch, map, client));
        tokio::task::spawn_blocking(move || server.stop().unwrap())
            .await
            .unwrap();
    });
}

/// A restore starts another life of the map: no watcher takes changes of the one for those of the other.
#[test]
fn a_watch_of_a_store_that_was_put_back_must_begin_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let server = serve(&path);
    run(async {
        let client = client(&server);
        for map in ["m", "dropped"] {
            client.create_watched_map(map, KeepChanges::default()).await.unwrap();
            client.map(map).put("a", "1").await.unwrap();
        }
    });
    server.stop().unwrap();
    let checkpoint = || {
        let store = duramen::Store::open(path.join("store")).unwrap();
        store.checkpoints().create("one", "").unwrap();
    };
    checkpoint();
    let server = serve(&path);
    run(async {
        let client = client(&server);
        client.map("m").put("a", "2").await.unwrap();
        client.map("m").put("a", "3").await.unwrap();
        client.map("dropped").put("a", "2").await.unwrap();
        client.drop_map("dropped").await.unwrap();
        client
            .create_watched_map("later", KeepChanges::default())
            .await
            .unwrap();
        client.map("later").put("a", "1").await.unwrap();
    });
    server.stop().unwrap();
    {
        let store = duramen::Store::open(path.join("store")).unwrap();
        assert!(
            duramen::restore(&store, "one").is_err(),
            "the facade does not know what servers store"
        );
        duramen_server::restore(&store, "one").unwrap();
    }
    let server = serve(&path);
    run(async {
        let client = client(&server);
        for (map, positions) in [("m", 1..=3), ("dropped", 1..=2)] {
            let map = client.map(map);
            assert_eq!(map.get("a").await.unwrap().unwrap(), "1");
            for position in positions {
                let gone = map.watch(Keys::all(), WatchStart::After(position)).await.err().unwrap();
                assert_eq!(gone.reason, "CHANGES_GONE", "{position}");
            }
            for start in [WatchStart::Earliest, WatchStart::Next] {
                let mut watch = map.watch(Keys::all(), start).await.unwrap();
                map.put("b", "4").await.unwrap();
                let seen = changes(&mut watch, 1).await;
                assert_eq!(seen[0].0, "b");
                map.delete("b").await.unwrap();
                assert_eq!(changes(&mut watch, 1).await[0].2, None);
            }
        }
        // A map that is made again does not begin with numbers that it had.
        client
            .create_watched_map("later", KeepChanges::default())
            .await
            .unwrap();
        let later = client.map("later");
        let watch = later.watch(Keys::all(), WatchStart::Next).await.unwrap();
        assert!(watch.position() > 1);
    });
    server.stop().unwrap();
}
