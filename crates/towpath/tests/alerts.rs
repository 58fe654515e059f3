//! Alerts of a real server: each condition, told to a webhook, by e-mail and in the feed of events.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};

use crate::callback::{CallbackRequest, CallbackServer};
use crate::common::xmpp::{HOSTS, XmppClient, XmppServer};
use crate::common::{TestFolder, get_from, stderr, stdout, wait_until};
use crate::nodes::{NODES, TestCluster};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const QUICK: &str = "wait = 0\npause = 0\n";

/// A mail server that takes every message.
struct MailServer {
    address: String,
    messages: Arc<Mutex<Vec<String>>>,
}

impl MailServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let messages: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = messages.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = kept.clone();
                std::thread::spawn(move || drop(take_mail(stream.unwrap(), &kept)));
            }
        });
        Self { address, messages }
    }

    fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap().clone()
    }
}

/// Speaks SMTP (RFC 5321) with one client.
fn take_mail(mut stream: TcpStream, messages: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    stream.write_all(b"220 mail.example ESMTP\r\n")?;
    let mut envelope = String::new();
    while let Some(line) = lines.next() {
        let line = line?;
        let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        let reply: &[u8] = match verb.as_str() {
            "EHLO" => b"250-mail.example\r\n250 8BITMIME\r\n",
            "MAIL" | "RCPT" => {
                envelope.push_str(&format!("{line}\n"));
                b"250 ok\r\n"
            }
            "DATA" => {
                stream.write_all(b"354 go on\r\n")?;
                let mut message = std::mem::take(&mut envelope);
                for line in lines.by_ref() {
                    let line = line?;
                    if line == "." {
                        break;
                    }
                    message.push_str(&format!("{line}\n"));
                }
                messages.lock().unwrap().push(message);
                b"250 taken\r\n"
            }
            "QUIT" => {
                return stream.write_all(b"221 bye\r\n");
            }
            _ => b"250 ok\r\n",
        };
        stream.write_all(reply)?;
    }
    Ok(())
}

fn webhook(receiver: &CallbackServer) -> String {
    format!(
        "[alerts.webhook]\nurl = \"{}/hook\"\nallow_private = true\nsecrets = [\"{SECRET}\"]\n",
        receiver.base
    )
}

fn email(mail: &MailServer) -> String {
    let MailServer { address, .. } = mail;
    format!(
        "[alerts.email]\nserver = \"smtp://{address}\"\nfrom = \"towpath@example.com\"\nto = [\"ops@example.com\"]\n"
    )
}

fn kinds(calls: &[CallbackRequest]) -> BTreeSet<String> {
    calls.iter().map(|call| call.json()["type"].as_str().unwrap().to_owned()).collect()
}

/// Checks the signature as a receiver does.
fn is_signed(call: &CallbackRequest) -> bool {
    let key = BASE64_STANDARD.decode(&SECRET["whsec_".len()..]).unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    let (id, timestamp) = (call.header("webhook-id").unwrap(), call.header("webhook-timestamp").unwrap());
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(&call.body);
    let expected = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    call.header("webhook-signature") == Some(&expected)
}

#[test]
fn a_failing_source_is_told_once_everywhere_and_its_recovery_too() {
    let (receiver, mail) = (CallbackServer::good(), MailServer::start());
    let config = format!(
        "[server]\ntokens = [\"admin\"]\n[alerts]\nsource_failing = \"1s\"\nfeed = true\n{QUICK}{}\
         {}[[feed]]\nid = \"prices\"\n[feed.source]\nurl = \"prices.json\"\nevery = \"1s\"\njson = {{ id = \"/id\" }}\n",
        webhook(&receiver),
        email(&mail)
    );
    let dir = TestFolder::new(&config);
    let server = dir.serve();
    let calls = receiver.wait_for("told of the failure", |calls| !calls.is_empty());
    assert!(is_signed(&calls[0]), "{:?}", calls[0]);
    let told = calls[0].json();
    assert_eq!(
        (&told["type"], &told["data"]["title"]),
        (&"alert.source_failing".into(), &"the source of feed prices fails".into())
    );
    assert_eq!(told["data"]["began"]["events"][0]["subject"], "prices");
    wait_until("the mail arrives", || !mail.messages().is_empty());
    let message = &mail.messages()[0];
    for part in [
        "MAIL FROM:<towpath@example.com>",
        "RCPT TO:<ops@example.com>",
        "Subject: towpath: the source of feed prices fails",
        "- prices, since",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let events = |base: &str| {
        let answer = get_from(base, "/feeds/_events/items?timeout=0", &[("Authorization", "Bearer admin")]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["items"].as_array().unwrap().clone()
    };
    wait_until("the feed has the event", || events(&server.base).len() == 1);
    // It tells what is wrong with private feeds, and nobody else publishes there.
    assert_eq!(server.get("/feeds/_events/items?timeout=0").status, 401);
    let put = server.ask("PUT", "/feeds/_events/items/a", &[("Authorization", "Bearer admin")], b"x");
    assert_eq!(put.status, 409, "{}", put.text());
    let is_counted = |base: &str| {
        get_from(base, "/metrics", &[]).text().contains("towpath_alerts{kind=\"source_failing\"} 1")
    };
    // Counted once everybody is told.
    wait_until("it is counted", || is_counted(&server.base));

    // A restart tells nothing again.
    server.kill();
    let server = dir.serve();
    wait_until("it looked again", || is_counted(&server.base));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((receiver.calls().len(), mail.messages().len(), events(&server.base).len()), (1, 1, 1));

    dir.write("prices.json", b"[{\"id\": \"tea\"}]");
    let calls = receiver.wait_for("told of the recovery", |calls| calls.len() == 2);
    assert_eq!(calls[1].json()["data"]["title"], "the source of feed prices works again");
    wait_until("everybody is told", || mail.messages().len() == 2 && events(&server.base).len() == 2);
}

/// Messages that the receivers of a server got, by their titles.
struct Receivers<'a> {
    webhook: &'a CallbackServer,
    mail: &'a MailServer,
    dir: &'a TestFolder,
    base: String,
}

impl Receivers<'_> {
    /// Asks the server, over TLS and with its token. Returns the body.
    fn curl(&self, path: &str, args: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "60", "--cacert"]).arg(self.dir.path("cert.pem"));
        curl.args(["-H", "Authorization: Bearer admin"]).args(args).arg(format!("{}{path}", self.base));
        stdout(&curl.output().unwrap())
    }

    /// Waits until the webhook got a message of a kind, and each other destination the same one.
    fn wait_for(&self, kind: &str) {
        let is_wanted = |call: &CallbackRequest| call.json()["type"] == format!("alert.{kind}");
        let calls = self.webhook.wait_for(kind, |calls| calls.iter().any(is_wanted));
        let call = calls.into_iter().rev().find(is_wanted).unwrap();
        assert!(is_signed(&call), "{call:?}");
        self.wait_for_message(kind, &call.json()["data"]);
    }

    fn wait_for_message(&self, kind: &str, data: &Value) {
        let (title, id) = (data["title"].as_str().unwrap(), data["id"].as_str().unwrap());
        let is_mailed = |message: &String| {
            // RFC 5322, section 2.2.3: a long header has several lines.
            message.replace("\n ", " ").contains(&format!("Subject: towpath: {title}\n"))
                && message.contains(id)
        };
        wait_until(&format!("a mail: {title}"), || self.mail.messages().iter().any(is_mailed));
        let event = || {
            let text = self.curl(&format!("/feeds/_events/items/{id}?as=line"), &[]);
            serde_json::from_str::<Value>(&text).unwrap_or_default()["item"].clone()
        };
        wait_until(&format!("an event: {title}"), || event()["title"] == title);
        assert!(event()["tags"].as_array().unwrap().contains(&kind.into()), "{}", event());
    }

    /// Waits until all destinations were told of a recovery.
    fn wait_for_recovery(&self, kind: &str, title: &str) {
        let is_wanted = |call: &CallbackRequest| call.json()["data"]["title"] == title;
        let calls = self.webhook.wait_for(title, |calls| calls.iter().any(is_wanted));
        self.wait_for_message(kind, &calls.iter().find(|call| is_wanted(call)).unwrap().json()["data"]);
    }
}

/// Every kind of event reaches every destination, and so do recoveries.
#[test]
fn each_condition_is_told() {
    let (receiver, mail) = (CallbackServer::good(), MailServer::start());
    let config = format!(
        "[server]\ntokens = [\"admin\"]\nreserve_mib = 1000000000\n[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n\
         [alerts]\nfeed = true\nsource_failing = \"1s\"\nfeed_silent = \"2s\"\nsink_behind = \"1s\"\n\
         disk_free_mib = 1000000000\ncertificate = \"10000000d\"\n{QUICK}{}{}\
         [[sink]]\nname = \"hook\"\nfeeds = [\"prices\"]\ninto = \"webhook:http://127.0.0.1:1/\"\nallow_private = true\n\
         [[feed]]\nid = \"daily\"\n\
         [[feed]]\nid = \"broken\"\n[feed.source]\nurl = \"broken.json\"\nevery = \"1s\"\njson = {{ id = \"/id\" }}\n\
         [[feed]]\nid = \"prices\"\n[feed.source]\nurl = \"prices.json\"\nevery = \"1s\"\ncomplete = true\n\
         json = {{ id = \"/id\" }}\n",
        webhook(&receiver),
        email(&mail)
    );
    let enough_disk = config.replace("reserve_mib = 1000000000\n", "");
    let dir = TestFolder::new(&enough_disk);
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    dir.write("cert.pem", pair.cert.pem().as_bytes());
    dir.write("key.pem", pair.signing_key.serialize_pem().as_bytes());
    let items: Vec<Value> = (0..50).map(|n| serde_json::json!({ "id": format!("item-{n}") })).collect();
    dir.write("prices.json", Value::from(items).to_string().as_bytes());
    let server = dir.serve();
    let receivers = Receivers { webhook: &receiver, mail: &mail, dir: &dir, base: server.base.clone() };
    let publish = |id: &str| {
        receivers.curl(&format!("/feeds/daily/items/{id}"), &["-X", "PUT", "--data", "x"]);
    };
    // A feed has a habit after eight pauses of a second and more.
    for number in 0..10 {
        publish(&number.to_string());
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    for kind in ["source_failing", "sink_behind", "disk_low", "certificate_expiring", "feed_silent"] {
        receivers.wait_for(kind);
    }
    dir.write("prices.json", b"[{\"id\": \"item-0\"}]");
    receivers.wait_for("guard_refused");
    publish("again");
    receivers.wait_for_recovery("feed_silent", "feed daily has changes again");
    dir.write("broken.json", b"[{\"id\": \"tea\"}]");
    receivers.wait_for_recovery("source_failing", "the source of feed broken works again");
    let expected = [
        "alert.certificate_expiring",
        "alert.disk_low",
        "alert.feed_silent",
        "alert.guard_refused",
        "alert.sink_behind",
        "alert.source_failing",
    ];
    assert_eq!(kinds(&receiver.calls()), expected.map(str::to_owned).into());
    drop(server);

    // Nothing can be written now, not even that it was told.
    dir.write("towpath.toml", config.as_bytes());
    let server = dir.serve();
    let calls = receiver.wait_for("told of the store", |calls| kinds(calls).contains("alert.store_failed"));
    let store = calls.iter().find(|call| call.json()["type"] == "alert.store_failed").unwrap();
    assert!(
        store.json()["data"]["began"]["events"][0]["message"].as_str().unwrap().contains("the disk is full")
    );
    drop(server);
}

/// Each node tells of its own disk, in messages that a receiver tells apart.
#[test]
fn nodes_of_a_cluster_have_messages_of_their_own() {
    let receiver = CallbackServer::good();
    let alerts = format!("[alerts]\ndisk_free_mib = 1000000000\n{QUICK}{}", webhook(&receiver));
    let cluster = TestCluster::start(&alerts);
    let data = |name: &str| -> BTreeSet<String> {
        let calls = receiver.calls().into_iter().filter(|call| call.json()["type"] == "alert.disk_low");
        calls.filter_map(|call| Some(call.json()["data"][name].as_str()?.to_owned())).collect()
    };
    wait_until("each node has told", || data("node").len() == NODES);
    assert_eq!(data("id").len(), NODES);
    drop(cluster);
}

/// The feed of events has every protocol, for those who may read it.
#[test]
fn every_protocol_carries_the_feed_of_events() {
    let (receiver, xmpp_server) = (CallbackServer::good(), XmppServer::prosody(&["alice"]));
    let config = |visibility: &str| {
        format!(
            "[server]\ntokens = [\"admin\"]\nallow_private_callbacks = true\n{}\
             [alerts]\nsource_failing = \"1s\"\nfeed = true\n{QUICK}\
             [[feed]]\nid = \"_events\"\nvisibility = \"{visibility}\"\n\
             [[feed]]\nid = \"prices\"\n[feed.source]\nurl = \"prices.json\"\nevery = \"1s\"\n",
            xmpp_server.component()
        )
    };
    let title = "the source of feed prices fails";
    let mut xmpp_client = xmpp_server.client("alice", HOSTS[0], "1");
    for visibility in ["private", "public"] {
        let dir = TestFolder::new(&config(visibility));
        let server = dir.serve();
        let admin = [("Authorization", "Bearer admin")];
        if visibility == "public" {
            // A subscriber is told by the hub.
            let topic = format!("{}/feeds/_events/atom", server.base);
            let callback = receiver.url("/events");
            let form = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs([("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", &callback)])
                .finish();
            let headers = [("Content-Type", "application/x-www-form-urlencoded")];
            assert_eq!(server.ask("POST", "/feeds/_events/hub", &headers, form.as_bytes()).status, 202);
            receiver.wait_for("the event", |calls| {
                calls.iter().any(|call| String::from_utf8_lossy(&call.body).contains(title))
            });
        }
        wait_until("the event is published", || {
            get_from(&server.base, "/feeds/_events", &admin).json()["seq"] == 1
        });
        let url = |path: &str| format!("{}/feeds/_events{path}", server.base);
        for (protocol, address) in [
            ("diffdelta", format!("{}/diff/_events/latest.json", server.base)),
            ("replication", url("/replication")),
            ("history", url("/atom")),
            ("history", url("/rss")),
            ("history", url("/feed.json")),
            ("smart", url("/items")),
        ] {
            let follow = |header: &[&str]| {
                let args = ["follow", &address, "--once", "--protocol", protocol, "--from", "beginning"];
                dir.run(&[&args, header].concat())
            };
            let followed = || follow(&["--header", "Authorization: Bearer admin"]);
            wait_until(&format!("{visibility} {protocol} {address}"), || stdout(&followed()).contains(title));
            let stranger = follow(&[]);
            assert_eq!(stranger.status.success(), visibility == "public", "{address}: {}", stderr(&stranger));
        }
        // SUP tells of it by an id that says nothing to strangers.
        let link =
            get_from(&server.base, "/feeds/_events/atom", &admin).header("x-sup-id").unwrap().to_owned();
        let (_, id) = link.split_once('#').unwrap();
        wait_until("SUP tells of it", || {
            let told = server.json("/sup.json?seconds=600")["updates"].clone();
            told.as_array().unwrap().iter().any(|update| update[0] == id)
        });
        subscribe_over_xmpp(&mut xmpp_client, visibility == "public", title);
        dir.write(
            "prices.json",
            br#"{"version": "https://jsonfeed.org/version/1.1", "title": "", "items": []}"#,
        );
        wait_until("the recovery is published", || {
            get_from(&server.base, "/feeds/_events", &admin).json()["seq"] == 2
        });
        if visibility == "public" {
            let push = xmpp_client.pushed();
            assert_eq!(push["items"][0]["title"], "the source of feed prices works again", "{push}");
        } else {
            assert!(xmpp_client.is_quiet());
        }
    }
}

/// Reads the feed of events, and subscribes to it. XMPP has no tokens, so a feed that is not public is for nobody there.
fn subscribe_over_xmpp(client: &mut XmppClient, is_public: bool, title: &str) {
    let mut page = Value::Null;
    wait_until("the component answers", || {
        page = client.ask("items", json!({ "node": "_events", "max": "5", "timeout": 5 }));
        if is_public { page["items"][0]["title"] == title } else { page["error"] == "forbidden" }
    });
    assert!(is_public || !page.to_string().contains(title), "{page}");
    let answer = client.ask("subscribe", json!({ "node": "_events" }));
    let (key, value) = if is_public { ("subscription", "subscribed") } else { ("error", "forbidden") };
    assert_eq!(answer[key], value, "{answer}");
}

/// A clock that jumps ahead makes no failure last longer. One that is set back keeps no message back.
#[test]
fn a_clock_that_jumps_tells_nothing_early_or_late() {
    if crate::common::clustered::skips("its nodes have clocks of their own") {
        return;
    }
    let receiver = CallbackServer::good();
    let source = |id: &str| {
        format!(
            "[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{id}.json\"\nevery = \"1s\"\njson = {{ id = \"/id\" }}\n"
        )
    };
    let config = |failing: &str| {
        let alerts = format!("[alerts]\nsource_failing = \"{failing}\"\nwait = 0\npause = \"3s\"\n");
        format!("{alerts}{}{}{}", webhook(&receiver), source("one"), source("two"))
    };
    let dir = TestFolder::new(&config("30m"));
    let set = |offset: &str| dir.write("clock", offset.as_bytes());
    set("+0");
    dir.write("two.json", b"[]");
    let server = dir.start(dir.command_with_clock());
    let fails = |feed: &str| server.json(&format!("/feeds/{feed}"))["source"]["error"].is_object();
    wait_until("a source fails", || fails("one"));
    // Alerts look every two seconds.
    std::thread::sleep(std::time::Duration::from_secs(5));
    set("+50m");
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(receiver.calls().is_empty(), "{:?}", receiver.calls());
    dir.write("towpath.toml", config("1s").as_bytes());
    let reloaded = dir.run(&["reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    receiver.wait_for("told of the first", |calls| calls.len() == 1);
    set("-1h");
    std::fs::remove_file(dir.path("two.json")).unwrap();
    let calls = receiver.wait_for("told of the second", |calls| calls.len() == 2);
    assert_eq!(calls[1].json()["data"]["title"], "the source of feed two fails");
}

#[test]
fn many_failures_at_once_are_one_message() {
    let receiver = CallbackServer::good();
    let mut config = format!("[alerts]\nsource_failing = \"1s\"\nwait = \"4s\"\n{}", webhook(&receiver));
    for n in 0..300 {
        config.push_str(&format!(
            "[[feed]]\nid = \"feed-{n:03}\"\n[feed.source]\nurl = \"none-{n}.json\"\nevery = \"1s\"\n"
        ));
    }
    let dir = TestFolder::new(&config);
    let _server = dir.serve();
    let calls = receiver.wait_for("told", |calls| !calls.is_empty());
    assert_eq!(calls[0].json()["data"]["title"], "300 sources fail");
    assert_eq!(calls[0].json()["data"]["began"]["events"].as_array().unwrap().len(), 20);
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(receiver.calls().len(), 1);
}

#[test]
fn destinations_can_be_tested() {
    let (receiver, mail) = (CallbackServer::good(), MailServer::start());
    let email = |address: &str| {
        format!(
            "[alerts.email]\nserver = \"smtp://{address}\"\nfrom = \"a@example.com\"\nto = [\"b@example.com\"]\n"
        )
    };
    let dir =
        TestFolder::new(&format!("[alerts]\nfeed = true\n{}{}", webhook(&receiver), email(&mail.address)));
    let tested = dir.run(&["alerts", "test"]);
    assert!(tested.status.success(), "{}", stderr(&tested));
    assert!(stdout(&tested).contains("webhook: sent\nemail: sent\n"), "{}", stdout(&tested));
    assert_eq!((receiver.calls().len(), mail.messages().len()), (1, 1));
    dir.write("towpath.toml", format!("[alerts]\n{}", email("me:hush@127.0.0.1:1")).as_bytes());
    let failed = dir.run(&["alerts", "test"]);
    assert_eq!(failed.status.code(), Some(1));
    let text = stdout(&failed) + &stderr(&failed);
    assert!(text.contains("email: cannot send mail") && !text.contains("hush"), "{text}");
}
