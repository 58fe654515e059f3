//! Destinations that are not as they should be.

use super::*;

async fn open_error(url: &str) -> SinkError {
    sink(url).open(SOURCE).await.unwrap_err()
}

#[track_caller]
fn refused(error: &SinkError, needle: &str) {
    assert!(matches!(error, SinkError::Refused { .. }), "{error:?}");
    let message = message(error);
    assert!(message.contains(needle), "{needle}: {message}");
}

#[track_caller]
fn unavailable(error: &SinkError, needle: &str) {
    assert!(matches!(error, SinkError::Unavailable { .. }), "{error:?}");
    let message = message(error);
    assert!(message.contains(needle), "{needle}: {message}");
}

#[tokio::test]
async fn a_server_says_what_is_wrong() {
    let mut server = PostgresServer::start();
    refused(&open_error(&server.url_of("owner", "hush-wrong")).await, "check the password");
    refused(&open_error(&server.url().replace("/feeds", "/nothing")).await, "CREATE DATABASE");
    server
        .query("CREATE ROLE reader LOGIN PASSWORD 'hush-reader'; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    refused(&open_error(&server.url_of("reader", "hush-reader")).await, "GRANT");
    server.query("CREATE TABLE items (mine int)");
    refused(&open_error(&server.url()).await, "?table=NAME");
    server.query("DROP TABLE items; CREATE TABLE towpath (mine int)");
    refused(&open_error(&server.url()).await, "not of this program");
    server.query("DROP TABLE towpath");
    let mut sink = sink(&server.url());
    sink.open(SOURCE).await.unwrap();
    server.query("UPDATE towpath SET version = 99");
    refused(&open_error(&server.url()).await, "version 99");
    server.query("UPDATE towpath SET version = 0");
    refused(&open_error(&server.url()).await, "version 0, which no towpath has");
    server.query("DROP TABLE changes");
    let error = sink.apply(&batch(vec![put("a", "one", 1)], Some("1"))).await.unwrap_err();
    refused(&error, "dropped or renamed");
    server.kill();
    unavailable(&open_error(&server.url()).await, "refused");
}

#[tokio::test]
async fn two_writers_of_one_source_do_not_mix() {
    let server = PostgresServer::start();
    let (mut one, mut two) = (sink(&server.url()), sink(&server.url()));
    one.open(SOURCE).await.unwrap();
    two.open(SOURCE).await.unwrap();
    one.apply(&batch(vec![put("a", "one", 1)], Some("1"))).await.unwrap();
    let same = batch(vec![put("a", "one", 1), put("b", "two", 2)], Some("2"));
    refused(&two.apply(&same).await.unwrap_err(), "another process");
    assert_eq!(history(&server), "put 1");
    // A feed of the same name from elsewhere would overwrite the items.
    let mut other = sink(&server.url());
    other.open("elsewhere").await.unwrap();
    let others = SinkBatch { source: "elsewhere".into(), ..batch(vec![put("a", "x", 1)], Some("1")) };
    refused(&other.apply(&others).await.unwrap_err(), "?table=NAME");
}

#[tokio::test]
async fn refused_items_are_found_and_kept_aside() {
    let server = PostgresServer::start();
    let mut sink = sink(&server.url());
    sink.open(SOURCE).await.unwrap();
    server.query("ALTER TABLE items ADD CHECK (title <> 'bad')");
    // Random, because PostgreSQL compresses keys before it measures them.
    let long: String = (0..8000).map(|_| fastrand::alphanumeric()).collect();
    let mut nul = Item::new("nul");
    nul.summary = Some("a\0b".into());
    let mut events: Vec<SinkEvent> = (1..=60).map(|n| put(&format!("good-{n}"), "fine", n)).collect();
    events.insert(10, put("bad", "bad", 100));
    events.insert(40, change(Op::Put, nul, 101));
    events.insert(50, put(&long, "long id", 102));
    let mut left = batch(events, Some("end"));
    let mut reasons = Vec::new();
    loop {
        match sink.apply(&left).await {
            Ok(()) => break,
            Err(SinkError::Items(items)) => {
                for item in items.into_iter().rev() {
                    let SinkEvent::Change(change) = Arc::make_mut(&mut left.events).remove(item.index) else {
                        panic!("a reset is refused")
                    };
                    assert!(sink.set_aside(SOURCE, &change, &item.message).await.unwrap());
                    reasons.push(item.message);
                }
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert_eq!(server.query("SELECT count(*) FROM items"), "60");
    let kept =
        server.query("SELECT position, left(change, 11) FROM refused ORDER BY position").replace('\n', " ");
    assert_eq!(kept, r#"100|{"feed":"f" 101|{"feed":"f" 102|{"feed":"f""#);
    assert!(server.query("SELECT reason FROM refused WHERE id = 'nul'").contains("summary"));
}

#[tokio::test]
async fn a_read_only_server_is_waited_for() {
    let server = PostgresServer::start();
    let mut sink = sink(&server.url());
    sink.open(SOURCE).await.unwrap();
    server.query("ALTER DATABASE feeds SET default_transaction_read_only = on");
    server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'towpath'");
    let change = batch(vec![put("a", "one", 1)], Some("1"));
    // The first attempt may meet the connection that was closed.
    drop(sink.apply(&change).await.unwrap_err());
    unavailable(&sink.apply(&change).await.unwrap_err(), "read-only");
    server.query_in("postgres", "ALTER DATABASE feeds SET default_transaction_read_only = off");
    // A new connection: settings of a database count from its start.
    drop(sink.close().await);
    sink.apply(&change).await.unwrap();
    assert_eq!(items(&server), "a|one|1");
}

#[tokio::test]
async fn encrypted_connections_are_verified() {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let mut server = PostgresServer::start();
    server.kill();
    let (certificate, private) = (server.data().join("server.crt"), server.data().join("server.key"));
    std::fs::write(&certificate, key.cert.pem()).unwrap();
    std::fs::write(&private, key.signing_key.serialize_pem()).unwrap();
    server.own_key(&private);
    server.set("ssl=on");
    server.run();
    let url = server.url().replace("127.0.0.1", "localhost");
    refused(&open_error(&format!("{url}?sslmode=verify-full")).await, "sslrootcert");
    let trusted = format!("{url}?sslmode=verify-full&sslrootcert={}", certificate.display());
    let mut sink = sink(&trusted);
    sink.open(SOURCE).await.unwrap();
    let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                     WHERE s.ssl AND a.application_name = 'towpath'";
    assert_eq!(server.query(encrypted), "1");
}

/// Applies a batch until it is kept, as the writer does; returns the messages of the failed attempts.
async fn apply_until_kept(sink: &mut PostgresSink, batch: &SinkBatch) -> Vec<String> {
    let mut messages = Vec::new();
    while let Err(error) = sink.apply(batch).await {
        assert!(matches!(error, SinkError::Unavailable { .. }), "{error:?}");
        messages.push(message(&error));
        assert!(messages.len() < 500, "{messages:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    messages
}

#[tokio::test]
async fn a_full_disk_undoes_the_batch_and_is_waited_for() {
    let server = PostgresServer::start();
    let mut sink = sink(&server.url());
    sink.open(SOURCE).await.unwrap();
    sink.apply(&batch(vec![put("a", "one", 1)], Some("1"))).await.unwrap();
    // The server's own error at the last row of the batch, when most of it is written.
    server.query(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$; \
         CREATE TRIGGER fill BEFORE INSERT ON changes FOR EACH ROW WHEN (NEW.position = '600') \
         EXECUTE FUNCTION fill()",
    );
    for size in [10, 600] {
        let events = (0..size).map(|n| put(&format!("i{n}"), "x", if n + 1 == size { 600 } else { n + 2 }));
        let full = batch(events.collect(), Some("600"));
        unavailable(&sink.apply(&full).await.unwrap_err(), "the disk of the database is full");
        assert_eq!((items(&server).as_str(), history(&server).as_str()), ("a|one|1", "put 1"));
    }
    server.query("DROP TRIGGER fill ON changes");
    let next = batch(vec![put("b", "two", 2)], Some("2"));
    assert!(apply_until_kept(&mut sink, &next).await.is_empty());
    assert_eq!(history(&server), "put 1, put 2");
}

#[tokio::test]
async fn credentials_that_are_revoked_and_a_restart_lose_nothing() {
    let mut server = PostgresServer::start();
    server.query(
        "CREATE ROLE writer LOGIN PASSWORD 'hush-writer'; GRANT CREATE, USAGE ON SCHEMA public TO writer",
    );
    let mut sink = sink(&server.url_of("writer", "hush-writer"));
    sink.open(SOURCE).await.unwrap();
    sink.apply(&batch(vec![put("a", "one", 1)], Some("1"))).await.unwrap();
    server.query(
        "ALTER ROLE writer PASSWORD 'hush-other'; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'towpath'",
    );
    let second = batch(vec![put("b", "two", 2)], Some("2"));
    // The first attempt may meet the connection that was closed.
    drop(sink.apply(&second).await.unwrap_err());
    unavailable(&sink.apply(&second).await.unwrap_err(), "check the password");
    server.query("ALTER ROLE writer PASSWORD 'hush-writer'");
    apply_until_kept(&mut sink, &second).await;
    server.kill();
    server.run();
    let third = batch(vec![put("c", "three", 3)], Some("3"));
    apply_until_kept(&mut sink, &third).await;
    assert_eq!(items(&server), "a|one|1 b|two|2 c|three|3");
    assert_eq!(history(&server), "put 1, put 2, put 3");
    // Rights that are taken away are for a person to give back; nothing of the batch is kept.
    server.query("ALTER TABLE items OWNER TO owner");
    let fourth = batch(vec![put("d", "four", 4)], Some("4"));
    refused(&sink.apply(&fourth).await.unwrap_err(), "GRANT");
    assert_eq!(history(&server), "put 1, put 2, put 3");
    server.query("ALTER TABLE items OWNER TO writer");
    apply_until_kept(&mut sink, &fourth).await;
    assert_eq!(history(&server), "put 1, put 2, put 3, put 4");
}
