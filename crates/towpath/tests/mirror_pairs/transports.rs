//! Protocols by which a feed is mirrored and followed.

use std::process::Stdio;

use serde_json::Value;

use crate::common::xmpp::{HOSTS, PASSWORD, SERVICE, XmppServer};
use crate::common::{self, TestFolder, TestServer, stderr};

/// The feed that is copied.
pub(crate) const ORIGIN: &str = "origin";

/// A server, with the ways to reach it.
pub(crate) struct Reach<'a> {
    pub(crate) folder: &'a TestFolder,
    pub(crate) server: &'a TestServer,
    pub(crate) prosody: &'a XmppServer,
}

/// Way in which a mirror gets its items.
enum Way {
    /// `[feed.source] follow` with this path of the feed, and further keys.
    Source { path: &'static str, keys: &'static str },
    /// A source with pushes; `follow` cannot take it alone.
    Pushed { path: &'static str },
    /// `towpath follow xmpp:… | towpath import`.
    Xmpp,
    /// `towpath follow` of two feeds whose SUP document says which changed, `| towpath import`.
    Sup,
}

/// A protocol, or a syntax or way of one.
pub(crate) struct Transport {
    pub(crate) name: &'static str,
    /// Feed of the mirror that is copied so.
    pub(crate) feed: &'static str,
    way: Way,
}

pub(crate) static TRANSPORTS: &[Transport] = &[
    source("DiffDelta", "diffdelta", "/diff/{}/head.json"),
    source("Data Replication", "replication", "/feeds/{}/replication"),
    source("Atom", "atom", "/feeds/{}/atom"),
    source("RSS", "rss", "/feeds/{}/rss"),
    source("JSON Feed", "json_feed", "/feeds/{}/feed.json"),
    source("Smart Feeds", "smart", "/feeds/{}/items"),
    Transport {
        name: "Smart Feeds, Atom",
        feed: "smart_atom",
        way: Way::Source {
            path: "/feeds/{}/items",
            keys: "headers = { Accept = \"application/atom+xml\" }\n",
        },
    },
    Transport { name: "WebSub", feed: "websub", way: Way::Pushed { path: "/feeds/{}/items" } },
    Transport { name: "XMPP", feed: "xmpp", way: Way::Xmpp },
    Transport { name: "SUP", feed: "sup", way: Way::Sup },
];

const fn source(name: &'static str, feed: &'static str, path: &'static str) -> Transport {
    Transport { name, feed, way: Way::Source { path, keys: "" } }
}

/// Configuration of the publisher.
pub(crate) fn origin(prosody: &XmppServer) -> String {
    // A second feed, which a follower of many feeds follows too.
    format!(
        "[server]\nallow_private_callbacks = true\n{}[[feed]]\nid = \"{ORIGIN}\"\nttl = 1\n[[feed]]\nid = \"other\"\n",
        prosody.component()
    )
}

/// Configuration of the mirror: a feed for each transport.
pub(crate) fn mirror(prosody: &XmppServer, origin: &TestServer) -> String {
    let feeds: String = TRANSPORTS.iter().map(|transport| transport.mirrored(&origin.base)).collect();
    format!("{}[[feed]]\nid = \"other\"\n{feeds}", prosody.component())
}

impl Transport {
    /// Returns the configuration of the mirror's feed.
    fn mirrored(&self, base: &str) -> String {
        let feed = format!("[[feed]]\nid = \"{}\"\nttl = 1\n", self.feed);
        let source = |path: &str, keys: &str| {
            let path = path.replace("{}", ORIGIN);
            format!("{feed}[feed.source]\nfollow = \"{base}{path}\"\nevery = \"1s\"\n{keys}")
        };
        match self.way {
            Way::Source { path, keys } => source(path, keys),
            Way::Pushed { path } => source(path, "push = true\n"),
            Way::Xmpp | Way::Sup => feed,
        }
    }

    /// Returns true if `towpath follow --once` takes the transport.
    pub(crate) fn can_follow(&self) -> bool {
        !matches!(self.way, Way::Pushed { .. })
    }

    /// Copies what no source of the mirror copies.
    pub(crate) fn copy(&self, from: &Reach<'_>, to: &Reach<'_>) {
        if matches!(self.way, Way::Source { .. } | Way::Pushed { .. }) {
            return;
        }
        let lines = self.follow(from, ORIGIN);
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let answer =
            to.folder.run_with(&["import", self.feed, "-", "--server", &to.server.base], body.as_bytes());
        assert!(answer.status.success(), "{}", stderr(&answer));
    }

    /// Returns the lines of a feed that a follower prints.
    pub(crate) fn follow(&self, reach: &Reach<'_>, feed: &str) -> Vec<Value> {
        let url = |path: &str| format!("{}{}", reach.server.base, path.replace("{}", feed));
        let mut args = vec!["follow".to_owned(), "--once".to_owned()];
        match self.way {
            Way::Source { path, keys: "" } => args.push(url(path)),
            Way::Source { path, .. } => {
                args.extend([url(path), "--header".into(), "Accept: application/atom+xml".into()]);
            }
            Way::Pushed { .. } => unreachable!("a push comes when something changes"),
            Way::Xmpp => args.extend(reach.account(feed)),
            Way::Sup => {
                args.extend([url("/feeds/{}/items"), format!("{}/feeds/other/items", reach.server.base)]);
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = reach.folder.command(&args);
        command.env("TOWPATH_XMPP_PASSWORD", PASSWORD).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}: {}", self.name, stderr(&output));
        common::lines(&output)
    }
}

impl Reach<'_> {
    /// Returns the lines of a feed that the server itself tells.
    pub(crate) fn native(&self, feed: &str) -> Vec<Value> {
        native(self.server, feed)
    }

    /// Returns the arguments by which `follow` reaches a feed over XMPP.
    fn account(&self, feed: &str) -> [String; 5] {
        let address = format!("xmpp:{SERVICE}?;node={feed}%3Forder%3Dmodified");
        let server = format!("127.0.0.1:{}", self.prosody.client_port);
        [address, "--jid".into(), format!("alice@{}", HOSTS[0]), "--xmpp-server".into(), server]
    }
}

/// Returns the lines of a feed that its server tells.
pub(crate) fn native(server: &TestServer, feed: &str) -> Vec<Value> {
    let answer = server.get(&format!("/feeds/{feed}/items?as=line&max=1000"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
