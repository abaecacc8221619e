//! Tokens, certificates and permissions: who is let in, and to what.

use std::path::Path;

use crate::common::authority::{Authority, write};
use crate::common::*;
use duramen::Store;
use duramen::topic::{TopicOptions, Topics};
use duramen_proto::DESCRIPTORS;
use duramen_proto::v1::admin_client::AdminClient;
use duramen_proto::v1::condition::Test;
use duramen_proto::v1::maps_client::MapsClient;
use duramen_proto::v1::operation::Change;
use duramen_proto::v1::watch_client::WatchClient;
use duramen_proto::v1::*;
use duramen_server::{CreatedToken, NewToken, create_token, list_tokens, revoke_token};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::codec::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

/// A store with maps and a topic in a directory.
fn store(directory: &Path) -> Store {
    let store = Store::open(directory.join("store")).unwrap();
    for map in ["orders.new", "orders.old", "users"] {
        store.map(map).unwrap();
    }
    store
}

fn token(store: &Store, principal: &str, permissions: &[&str]) -> CreatedToken {
    let new = NewToken {
        principal: principal.into(),
        permissions: permissions.iter().map(|text| text.parse().unwrap()).collect(),
        is_for_certificates: false,
        valid_for: None,
        calls: 0,
        bytes_per_second: 0,
    };
    create_token(store, &new).unwrap()
}

/// A request that presents a token.
fn with<T>(token: &CreatedToken, request: T) -> Request<T> {
    with_text(token.text.as_ref().unwrap(), request)
}

fn with_text<T>(text: &str, request: T) -> Request<T> {
    let mut request = Request::new(request);
    let value = format!("Bearer {text}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}

fn get(map: &str) -> GetRequest {
    GetRequest {
        map: map.into(),
        key: "k".into(),
        ..Default::default()
    }
}

/// Calls a method with an empty message, as far as the first answer.
async fn call(channel: &Channel, path: &str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::try_from(path).unwrap();
    let codec = ProstCodec::<(), ()>::default();
    let answer = client.server_streaming(Request::new(()), path, codec).await;
    let mut answers: Streaming<()> = answer?.into_inner();
    answers.message().await.map(drop)
}

#[test]
fn every_call_of_every_service_needs_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    token(&store, "ada", &["admin:*"]);
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let channel = connect(&server).await.channel;
        let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
        let mut calls = 0;
        for file in files.iter().filter(|file| file.package() == "duramen.v1") {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/duramen.v1.{}/{}", service.name(), method.name());
                    let status = call(&channel, &path).await.expect_err(&path);
                    assert_eq!(status.code(), Code::Unauthenticated, "{path}: {status}");
                    assert_eq!(reason(&status), "UNAUTHENTICATED");
                    calls += 1;
                }
            }
        }
        assert!(calls >= 27, "{calls} calls");
        let health = HealthCheckRequest::default();
        assert!(HealthClient::new(channel).check(health).await.is_ok());
    });
    server.stop().unwrap();
}

#[test]
fn everything_is_allowed_until_the_first_token_and_never_again() {
    let directory = tempfile::tempdir().unwrap();
    let open = store(directory.path());
    assert!(list_tokens(&open).unwrap().is_empty());
    open.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        assert!(clients.maps.get(get("users")).await.is_ok());
    });
    server.stop().unwrap();

    let store = Store::open(directory.path().join("store")).unwrap();
    let created = token(&store, "ada", &["admin:*"]);
    assert_eq!(list_tokens(&store).unwrap().len(), 1);
    revoke_token(&store, &created.id).unwrap();
    let again = revoke_token(&store, &created.id).unwrap_err().to_string();
    assert!(again.contains("`duramen token list` shows the ids"), "{again}");
    assert!(list_tokens(&store).unwrap().is_empty());
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let refused = clients.maps.get(get("users")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert_eq!(
            clients.maps.get(with(&created, get("users"))).await.unwrap_err().code(),
            Code::Unauthenticated
        );
    });
    server.stop().unwrap();
}

#[test]
fn a_wrong_token_is_refused_without_saying_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let good = token(&store, "ada", &["admin:*"]);
    let new = NewToken {
        principal: "old".into(),
        permissions: vec!["admin:*".parse().unwrap()],
        is_for_certificates: false,
        valid_for: Some(std::time::Duration::ZERO),
        calls: 0,
        bytes_per_second: 0,
    };
    let expired = create_token(&store, &new).unwrap();
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut maps = connect(&server).await.maps;
        assert!(maps.get(with(&good, get("users"))).await.is_ok());
        let text = good.text.as_ref().unwrap();
        let (id, secret) = text["dur_".len()..].split_once('_').unwrap();
        let wrong = [
            format!("dur_{}_{secret}", "0".repeat(id.len())),
            format!("dur_{id}_{}", "0".repeat(secret.len())),
            expired.text.clone().unwrap(),
            "dur_".into(),
            "password".into(),
        ];
        for text in wrong {
            let status = maps.get(with_text(&text, get("users"))).await.unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated);
            let expected = "the token is not valid, or not any more; create another one with `duramen token create`";
            assert_eq!(status.message(), expected);
        }
    });
    server.stop().unwrap();
}

#[test]
fn a_principal_does_what_its_permissions_say() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let reader = token(&store, "reader", &["read:map:orders.*"]);
    let writer = token(&store, "writer", &["write:map:orders.new", "write:topic:sales"]);
    let owner = token(&store, "owner", &["admin:map:orders.*"]);
    let admin = token(&store, "ada", &["admin:*"]);
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let Clients {
            mut maps,
            mut topics,
            channel,
            ..
        } = connect(&server).await;
        assert!(maps.get(with(&reader, get("orders.new"))).await.is_ok());
        let refused = maps.get(with(&reader, get("users"))).await.unwrap_err();
        assert_eq!(
            (refused.code(), reason(&refused).as_str()),
            (Code::PermissionDenied, "PERMISSION_DENIED")
        );
        assert!(
            refused
                .message()
                .contains("\"reader\" lacks the permission read:map:users"),
            "{refused}"
        );
        let secret = reader.text.as_ref().unwrap();
        assert!(!refused.message().contains(&secret[secret.len() - 64..]));

        let put = put("orders.new", "k", "v");
        assert!(maps.put(with(&writer, put.clone())).await.is_ok());
        let refused = maps.put(with(&reader, put.clone())).await.unwrap_err();
        assert!(refused.message().contains("write:map:orders.new"), "{refused}");
        let refused = maps.get(with(&writer, get("orders.new"))).await.unwrap_err();
        assert_eq!(
            refused.code(),
            Code::PermissionDenied,
            "writing does not include reading"
        );
        let add = AddRequest {
            map: "orders.new".into(),
            key: "sum".into(),
            ..Default::default()
        };
        assert_eq!(
            maps.add(with(&writer, add.clone())).await.unwrap_err().code(),
            Code::PermissionDenied
        );
        assert!(maps.add(with(&owner, add)).await.is_ok());

        let rename = |new_name: &str| RenameMapRequest {
            map: "orders.old".into(),
            new_name: new_name.into(),
            ..Default::default()
        };
        let refused = maps.rename_map(with(&owner, rename("archive"))).await.unwrap_err();
        assert!(refused.message().contains("admin:map:archive"), "{refused}");
        assert!(maps.rename_map(with(&owner, rename("orders.archive"))).await.is_ok());
        let listed = maps.list_maps(with(&reader, ListMapsRequest::default())).await.unwrap();
        assert_eq!(listed.into_inner().maps, ["orders.archive", "orders.new"]);

        let create = CreateTopicRequest {
            topic: "sales".into(),
            ..Default::default()
        };
        assert_eq!(
            topics
                .create_topic(with(&writer, create.clone()))
                .await
                .unwrap_err()
                .code(),
            Code::PermissionDenied
        );
        assert!(topics.create_topic(with(&admin, create)).await.is_ok());
        let publish = PublishRequest {
            topic: "sales".into(),
            message: Some(message("one")),
            ..Default::default()
        };
        assert!(topics.publish(with(&writer, publish)).await.is_ok());
        let stream = |topic: &str| {
            tokio_stream::once(PublishStreamRequest {
                topic: topic.into(),
                messages: vec![message("two")],
                ..Default::default()
            })
        };
        let mut answers = topics
            .publish_stream(with(&writer, stream("sales")))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answers.message().await.unwrap().unwrap().acknowledged, 1);
        let mut answers = topics
            .publish_stream(with(&writer, stream("other")))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answers.message().await.unwrap_err().code(), Code::PermissionDenied);
        let subscribe = SubscribeRequest {
            topic: "sales".into(),
            ..Default::default()
        };
        assert_eq!(
            topics.subscribe(with(&writer, subscribe)).await.unwrap_err().code(),
            Code::PermissionDenied
        );

        let mut admins = AdminClient::new(channel);
        let statistics = StatisticsRequest::default();
        assert_eq!(
            admins.statistics(with(&owner, statistics)).await.unwrap_err().code(),
            Code::PermissionDenied
        );
        assert!(
            admins
                .statistics(with(&admin, StatisticsRequest::default()))
                .await
                .is_ok()
        );
    });
    server.stop().unwrap();
}

#[test]
fn each_part_of_a_transaction_needs_its_permission() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let shop = token(&store, "shop", &["read:map:users", "write:map:orders.*"]);
    store.close().unwrap();
    let server = serve(directory.path());
    let commit = |condition: &str, then: &str, otherwise: &str| {
        let delete = |map: &str| Operation {
            change: Some(Change::Delete(DeleteOperation {
                map: map.into(),
                key: "k".into(),
            })),
        };
        CommitRequest {
            conditions: vec![Condition {
                map: condition.into(),
                key: "k".into(),
                test: Some(Test::Exists(false)),
            }],
            then: vec![delete(then)],
            otherwise: vec![delete(otherwise)],
            ..Default::default()
        }
    };
    client(async {
        let mut transactions = connect(&server).await.transactions;
        let allowed = commit("users", "orders.new", "orders.old");
        assert!(transactions.commit(with(&shop, allowed)).await.is_ok());
        let refusals = [
            (commit("orders.new", "orders.new", "orders.old"), "read:map:orders.new"),
            (commit("users", "users", "orders.old"), "write:map:users"),
            (commit("users", "orders.new", "users"), "write:map:users"),
        ];
        for (request, missing) in refusals {
            let refused = transactions.commit(with(&shop, request)).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert!(refused.message().contains(missing), "{refused}");
        }
    });
    server.stop().unwrap();
}

#[test]
fn a_verified_certificate_has_the_permissions_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let new = NewToken {
        principal: "shop".into(),
        permissions: vec!["read:map:users".parse().unwrap()],
        is_for_certificates: true,
        valid_for: None,
        calls: 0,
        bytes_per_second: 0,
    };
    assert!(create_token(&store, &new).unwrap().text.is_none());
    store.close().unwrap();
    let authority = Authority::new("one");
    let issued = authority.server();
    let files = [
        ("tls_cert", write(directory.path(), "server.pem", &issued.certificate)),
        ("tls_key", write(directory.path(), "server.key", &issued.key)),
        ("tls_client_ca", write(directory.path(), "ca.pem", &authority.pem())),
    ];
    let settings: Vec<_> = files
        .iter()
        .map(|(name, path)| (*name, path.to_str().unwrap()))
        .collect();
    let server = serve_with(directory.path(), &settings);
    client(async {
        let maps = async |name: &str| {
            let identity = authority.client(name);
            let tls = ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(authority.pem()))
                .identity(Identity::from_pem(&identity.certificate, &identity.key));
            let address = format!("https://{}", server.listening().tcp.unwrap());
            let endpoint = Endpoint::from_shared(address).unwrap().tls_config(tls).unwrap();
            MapsClient::new(endpoint.connect().await.unwrap())
        };
        let mut shop = maps("shop").await;
        assert!(shop.get(get("users")).await.is_ok());
        assert_eq!(
            shop.get(get("orders.new")).await.unwrap_err().code(),
            Code::PermissionDenied
        );
        let unknown = maps("other").await.get(get("users")).await.unwrap_err();
        assert_eq!(unknown.code(), Code::Unauthenticated);
        assert!(
            unknown.message().contains("\"other\", which has no permissions"),
            "{unknown}"
        );
    });
    server.stop().unwrap();
}

#[test]
fn the_user_of_the_server_needs_no_token_on_the_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    token(&store, "ada", &["admin:*"]);
    store.close().unwrap();
    let socket = directory.path().join("socket");
    let server = serve_with(directory.path(), &[("unix_socket", socket.to_str().unwrap())]);
    client(async {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let mut admins = AdminClient::new(channel.clone());
        assert!(admins.statistics(StatisticsRequest::default()).await.is_ok());
        let wrong = MapsClient::new(channel).get(with_text("dur_", get("users"))).await;
        assert_eq!(
            wrong.unwrap_err().code(),
            Code::Unauthenticated,
            "a wrong token is refused here too"
        );
    });
    server.stop().unwrap();
}

#[test]
fn subscriptions_sessions_and_watches_end_when_their_token_is_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let opened = Store::open(directory.path().join("store")).unwrap();
    Topics::open(&opened)
        .unwrap()
        .create("orders", TopicOptions::new())
        .unwrap();
    let created = token(&opened, "ada", &["read:topic:orders", "read:map:config"]);
    let admin = token(&opened, "root", &["admin:*"]);
    opened.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let subscribe = SubscribeRequest {
            topic: "orders".into(),
            ..Default::default()
        };
        let subscribed = clients.topics.subscribe(with(&created, subscribe)).await;
        let mut messages = subscribed.unwrap().into_inner();
        let (requests, receiver) = tokio::sync::mpsc::unbounded_channel();
        let say = |say| requests.send(SessionRequest { say: Some(say) }).unwrap();
        say(session_request::Say::Open(OpenSession::default()));
        let receiver = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
        let session = clients.topics.session(with(&created, receiver)).await;
        let mut session = session.unwrap().into_inner();
        session.message().await.unwrap().unwrap();
        // A topic that the principal may not read ends its subscription, and the session goes on.
        say(session_request::Say::Begin(BeginSubscription {
            subscription: 1,
            topic: "secrets".into(),
            ..Default::default()
        }));
        let Some(session_response::Say::Ended(ended)) = session.message().await.unwrap().unwrap().say else {
            panic!("the subscription is refused");
        };
        assert_eq!(ended.reason, "PERMISSION_DENIED");

        for map in ["config", "secret"] {
            let create = CreateMapRequest {
                map: map.into(),
                keep_changes: Some(KeepChanges::default()),
                ..Default::default()
            };
            clients.maps.create_map(with(&admin, create)).await.unwrap();
        }
        let mut watches = WatchClient::new(clients.channel.clone());
        let mut watch = async |map: &str| {
            let request = WatchRequest {
                map: map.into(),
                ..Default::default()
            };
            watches.watch(with(&created, request)).await
        };
        let refused = watch("secret").await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let mut changes = watch("config").await.unwrap().into_inner();
        changes.message().await.unwrap().unwrap();

        // Another process of the machine revokes the token.
        let store = Store::open(directory.path().join("store")).unwrap();
        revoke_token(&store, &created.id).unwrap();
        store.close().unwrap();
        let over = messages.message().await.unwrap_err();
        assert_eq!(over.code(), Code::Unauthenticated);
        let over = session.message().await.unwrap_err();
        assert_eq!(over.code(), Code::Unauthenticated);
        let over = changes.message().await.unwrap_err();
        assert_eq!(over.code(), Code::Unauthenticated);
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_that_has_much_to_send_ends_when_its_token_is_revoked() {
    const WRITES: usize = 100;
    let directory = tempfile::tempdir().unwrap();
    let opened = Store::open(directory.path().join("store")).unwrap();
    let reader = token(&opened, "ada", &["read:map:config"]);
    let admin = token(&opened, "root", &["admin:*"]);
    opened.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let create = CreateMapRequest {
            map: "config".into(),
            keep_changes: Some(KeepChanges::default()),
            ..Default::default()
        };
        clients.maps.create_map(with(&admin, create)).await.unwrap();
        for _ in 0..WRITES {
            let put = PutRequest {
                value: vec![7; 300_000].into(),
                options: written(),
                ..put("config", "key", "")
            };
            clients.maps.put(with(&admin, put)).await.unwrap();
        }
        let request = |start| WatchRequest {
            map: "config".into(),
            start: Some(start),
            ..Default::default()
        };
        let mut watches = WatchClient::new(clients.channel.clone());
        let all = with(&reader, request(watch_request::Start::Earliest(true)));
        let mut responses = watches.watch(all).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap();

        let store = Store::open(directory.path().join("store")).unwrap();
        revoke_token(&store, &reader.id).unwrap();
        store.close().unwrap();
        // A watch looks every two seconds, and sends nothing while its client does not read.
        tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
        let mut seen = 0;
        let over = loop {
            match responses.message().await {
                Ok(response) => seen += response.unwrap().changes.len(),
                Err(status) => break status,
            }
        };
        assert_eq!(over.code(), Code::Unauthenticated);
        assert!(seen < WRITES, "all {seen} changes were sent");
    });
    server.stop().unwrap();
}

#[test]
fn a_watch_ends_when_its_map_gets_a_name_that_the_principal_may_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let opened = Store::open(directory.path().join("store")).unwrap();
    let reader = token(&opened, "ada", &["read:map:public.*"]);
    let admin = token(&opened, "root", &["admin:*"]);
    opened.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let create = CreateMapRequest {
            map: "public.a".into(),
            keep_changes: Some(KeepChanges::default()),
            ..Default::default()
        };
        clients.maps.create_map(with(&admin, create)).await.unwrap();
        let request = WatchRequest {
            map: "public.a".into(),
            ..Default::default()
        };
        let mut watches = WatchClient::new(clients.channel.clone());
        let mut responses = watches.watch(with(&reader, request)).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap();
        for (from, to) in [("public.a", "public.b"), ("public.b", "secret")] {
            let rename = RenameMapRequest {
                map: from.into(),
                new_name: to.into(),
                ..Default::default()
            };
            clients.maps.rename_map(with(&admin, rename)).await.unwrap();
            if to == "secret" {
                break;
            }
            // A name that the principal may read does not end the watch.
            tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
            clients.maps.put(with(&admin, put(to, "key", "value"))).await.unwrap();
            assert_eq!(responses.message().await.unwrap().unwrap().changes.len(), 1);
        }
        let over = responses.message().await.unwrap_err();
        assert_eq!(over.code(), Code::PermissionDenied);
    });
    server.stop().unwrap();
}

#[test]
fn a_session_belongs_to_the_principal_that_opened_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    Topics::open(&store)
        .unwrap()
        .create("orders", TopicOptions::new())
        .unwrap();
    let [ada, bob] = ["ada", "bob"].map(|name| token(&store, name, &["read:topic:*"]));
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let open = |session: &[u8]| SessionRequest {
            say: Some(session_request::Say::Open(OpenSession {
                session: session.to_vec().into(),
                ..Default::default()
            })),
        };
        let opened = clients
            .topics
            .session(with(&ada, tokio_stream::iter([open(b"")])))
            .await
            .unwrap();
        let mut opened = opened.into_inner();
        let Some(session_response::Say::Opened(opened)) = opened.message().await.unwrap().unwrap().say else {
            panic!("the session is open");
        };
        let taken = clients
            .topics
            .session(with(&bob, tokio_stream::iter([open(&opened.session)])))
            .await
            .unwrap();
        let refused = taken.into_inner().message().await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        let fetch = FetchRequest {
            topic: "orders".into(),
            group: "packers".into(),
            session: opened.session.clone(),
            ..Default::default()
        };
        let refused = clients.topics.fetch(with(&bob, fetch)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
    });
    server.stop().unwrap();
}

#[test]
fn dead_letters_of_a_group_need_a_permission_too() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    Topics::open(&store)
        .unwrap()
        .create("orders", TopicOptions::new())
        .unwrap();
    let created = token(&store, "ada", &["admin:topic:orders"]);
    store.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let create = |dead: Option<&str>| CreateGroupRequest {
            topic: "orders".into(),
            group: "packers".into(),
            group_options: Some(GroupOptions {
                dead_letters: dead.map(|topic| group_options::DeadLetters::DeadLetterTopic(topic.into())),
                ..Default::default()
            }),
            ..Default::default()
        };
        let refused = clients
            .topics
            .create_group(with(&created, create(Some("secrets"))))
            .await;
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
        clients.topics.create_group(with(&created, create(None))).await.unwrap();
    });
    server.stop().unwrap();
}

/// A token with limits, for the maps and topics of the tests.
fn limited(store: &Store, principal: &str, calls: u32, bytes_per_second: u64) -> CreatedToken {
    let new = NewToken {
        principal: principal.into(),
        permissions: vec!["admin:*".parse().unwrap()],
        is_for_certificates: false,
        valid_for: None,
        calls,
        bytes_per_second,
    };
    create_token(store, &new).unwrap()
}

#[test]
fn a_principal_has_as_many_calls_at_a_time_as_its_token_allows() {
    let directory = tempfile::tempdir().unwrap();
    let opened = store(directory.path());
    let few = limited(&opened, "few", 2, 0);
    let few_too = limited(&opened, "few", 2, 0);
    let any = token(&opened, "any", &["admin:*"]);
    opened.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let (mut clients, mut others) = (connect(&server).await, connect(&server).await);
        let create = CreateTopicRequest {
            topic: "orders".into(),
            ..Default::default()
        };
        clients.topics.create_topic(with(&any, create)).await.unwrap();
        let subscribe = || SubscribeRequest {
            topic: "orders".into(),
            ..Default::default()
        };
        let first = clients.topics.subscribe(with(&few, subscribe())).await.unwrap();
        let second = others.topics.subscribe(with(&few_too, subscribe())).await.unwrap();
        // Each connection, thread and token of the principal counts, and no other principal.
        for clients in [&mut clients, &mut others] {
            let refused = clients.maps.get(with(&few, get("users"))).await.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
            assert_eq!(reason(&refused), "TOO_MANY_CALLS");
            assert!(refused.get_details_retry_info().is_some());
            assert!(refused.message().contains("\"few\" has 2 calls"), "{refused}");
            clients.maps.get(with(&any, get("users"))).await.unwrap();
        }
        drop(second);
        let mut tries = 0;
        while let Err(refused) = clients.maps.get(with(&few, get("users"))).await {
            // The server hears of the end of a stream a little later.
            assert!(reason(&refused) == "TOO_MANY_CALLS" && tries < 1_000, "{refused}");
            tries += 1;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        drop(first);
    });
    server.stop().unwrap();
}

#[test]
fn a_principal_that_sends_and_reads_more_than_its_bytes_waits_and_loses_nothing() {
    const BYTES: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let opened = store(directory.path());
    let slow = limited(&opened, "slow", 0, BYTES as u64);
    opened.close().unwrap();
    let server = serve(directory.path());
    client(async {
        let mut clients = connect(&server).await;
        let value = "v".repeat(BYTES);
        let begun = std::time::Instant::now();
        clients.maps.put(with(&slow, put("users", "k", &value))).await.unwrap();
        let read = clients.maps.get(with(&slow, get("users"))).await.unwrap();
        assert_eq!(read.into_inner().value.unwrap(), value);
        clients.maps.get(with(&slow, get("users"))).await.unwrap();
        // The bytes of one second may come at once. The last response waits for those before it.
        assert!(begun.elapsed() >= std::time::Duration::from_millis(900));
    });
    server.stop().unwrap();
}
