//! Follows and checks feeds over HTTP and XMPP, without a server or a store.
//!
//! [`Follow`] follows one feed by the strongest protocol that it offers: DiffDelta, Data Replication, Smart Feeds,
//! Feed History, or plain RSS, Atom and JSON Feed.
//!
//! ```
//! use towpath_client::{Follow, FollowEvent, StartFrom};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let url = serve()?;
//! let mut feed = Follow::new(&url).start(StartFrom::Beginning).once().open().await?;
//! let (mut titles, mut saved) = (Vec::new(), None);
//! while let Some(event) = feed.next().await? {
//!     match event {
//!         FollowEvent::Change(change) => titles.extend(change.item.title),
//!         FollowEvent::Reset(_) => titles.clear(),
//!         FollowEvent::Checkpoint(checkpoint) => saved = Some(checkpoint),
//!         FollowEvent::Notice(notice) => eprintln!("{notice:?}"),
//!         _ => {}
//!     }
//! }
//! assert_eq!(titles, ["First", "Second"]);
//!
//! // Continue later, for example after a restart: nothing has changed since.
//! let mut feed = Follow::resume(saved.expect("there is a checkpoint")).once().open().await?;
//! while let Some(event) = feed.next().await? {
//!     assert!(!matches!(event, FollowEvent::Change(_)));
//! }
//! # Ok(())
//! # }
//! #
//! # /// Serves a feed of two entries on a free port.
//! # fn serve() -> std::io::Result<String> {
//! #     use std::io::{BufRead, BufReader, Write};
//! #     let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! #     let url = format!("http://{}/feed", listener.local_addr()?);
//! #     let feed = r#"{"version":"https://jsonfeed.org/version/1.1","title":"Example","items":[
//! #         {"id":"2","title":"Second","date_published":"2026-01-02T00:00:00Z"},
//! #         {"id":"1","title":"First","date_published":"2026-01-01T00:00:00Z"}]}"#;
//! #     std::thread::spawn(move || {
//! #         for stream in listener.incoming().flatten() {
//! #             let mut lines = BufReader::new(&stream).lines();
//! #             while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
//! #             let _ = write!(
//! #                 &stream,
//! #                 "HTTP/1.1 200 OK\r\nContent-Type: application/feed+json\r\nContent-Length: {}\r\n\
//! #                  Connection: close\r\n\r\n{feed}",
//! #                 feed.len()
//! #             );
//! #         }
//! #     });
//! #     Ok(url)
//! # }
//! ```
//!
//! The other modules are the parts that it is made of:
//!
//! | module | content |
//! |---|---|
//! | [`changes`] | a stream of one feed's changes with acknowledgement and a state file |
//! | [`state_file`] | state file of one feed |
//! | [`durable_file`] | files that are replaced as a whole |
//! | [`follow`](mod@follow) | a builder, and a stream of one feed's events |
//! | [`discover`](mod@discover) | finds the strongest protocol that a URL offers |
//! | [`protocol`] | protocols, and constructors of their followers and checks |
//! | [`drive`](mod@drive) | runs a follower or a check, and delivers changes to an [`Output`] |
//! | [`fleet`] | follows many feeds with few requests |
//! | [`xmpp`] | follows and checks publish-subscribe nodes |
//! | [`route`] | protocol, URL and position with which a follow begins |
//! | [`fetch`] | one HTTP request: redirects, timeouts, limits |
//! | [`transport`] | what carries requests in place of the network |
//! | [`body`] | streaming response bodies |
//! | [`validators`] | conditional requests |
//! | [`address_policy`] | addresses that a stranger may lead to |
//! | [`memory_budget`] | memory of all fetches at once |
//! | [`sink`] | destinations in which a follow ends: databases, folders, queues |
//! | [`publish`] | publishes to feeds of a towpath server |
//! | [`check`](mod@check) | checks a feed for conformance |
//! | [`listen`](mod@listen) | callback listener of a follower that is pushed to |
//! | [`callback`] | requests to callback URLs that third parties register |
//! | [`clock`] | source of time |
//! | [`stop`] | stop signal of a follow or a check |
//! | [`redact`] | URLs without credentials, for logs |
//! | [`explain`] | network errors as readable phrases |
//! | [`random`] | unguessable numbers |

pub mod address_policy;
pub mod body;
pub mod callback;
mod callback_body;
pub mod changes;
pub mod check;
pub mod clock;
mod coding;
mod delivery_batch;
pub mod discover;
pub mod drive;
pub mod durable_file;
pub mod explain;
pub mod fetch;
mod first_attempt;
pub mod fleet;
pub mod follow;
mod http1;
mod large_files;
pub mod listen;
pub mod memory_budget;
mod problem;
pub mod progress;
pub mod protocol;
pub mod publish;
pub mod random;
pub mod redact;
mod redirects;
mod request_driver;
mod response_hints;
pub mod route;
pub mod sink;
pub mod state_file;
pub mod stop;
mod tls;
pub mod transport;
mod url_credentials;
pub mod validators;
pub mod xmpp;

pub use address_policy::PrivateFetches;
pub use body::StreamingBody;
pub use callback::{
    AddressGate, CallbackClient, CallbackError, CallbackOptions, CallbackRequest, CallbackResponse,
};
pub use callback_body::UnreadBody;
pub use changes::{ChangeBatch, Changes, ChangesError, FeedChange};
pub use check::{FeedReport, check};
pub use clock::{DriverActivity, DriverClock, SystemClock};
pub use discover::{DiscoverError, Offer, discover, discover_all, discover_pushed, locate};
pub use drive::{FollowNotice, FollowSummary, Output, drive, drive_check, drive_with_calls};
pub use fetch::{FetchOptions, Fetcher, FullResponse, StreamingResponse};
pub use follow::{Checkpoint, Follow, FollowEvent, FollowStream};
pub use large_files::{FilePart, FileStore, OpenedFile, StoredBytes, large_folder};
pub use listen::{CallQueue, ListenError, PendingCall, listen};
pub use memory_budget::{BodyBudget, BodyShare, MemoryBudget, ReadingShare};
pub use protocol::{
    FollowPace, FollowerOptions, Protocol, checker, content_folder, follower, hub_checker, pushed_follower,
    topic_follower,
};
pub use publish::{FeedClient, PublishError, PublishReport, ServerClient};
pub use route::{FindRouteError, FollowRoute, RouteFollower, RouteOrigin, RouteRequest};
pub use sink::{Sink, SinkBatch, SinkError, SinkEvent};
pub use stop::{Stop, stopped, unless_stopped};
pub use tls::{SetupError, install_provider, root_store};
pub use transport::{Transport, TransportBody};
pub use validators::Validators;

pub use towpath_proto::follow::{FeedReset, FollowError, FollowMode, Followed, ReadLimits, StartFrom};
