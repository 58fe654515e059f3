//! One feed's documents, in the order in which they are put.
//!
//! First what nobody is led to yet: archives, sealed pages, pages of snapshots. Then what leads there and is reached
//! from what is in the tree already ([`Reached`]): the page that was the newest, with its link to the next. Last the documents at
//! which readers begin. What is not needed any more goes when nothing leads there.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use towpath_proto::FeedId;
use towpath_proto::format::link;
use towpath_proto::history::wire::{Syntax, THIS};
use towpath_proto::replication::pages::Cleanup;
use towpath_store::StoreError;

use super::document::TreeDocument;
use super::made::Made;
use super::paths::{page_path, past_path, snapshot_page_path, superfluous};
use super::state::{Exported, Extent, Stretch};
use super::{ExportError, Tree, together};
use crate::config::FeedConfig;
use crate::engine::diffdelta::{served as diffdelta, tree as chains};
use crate::engine::pages::cleanup;
use crate::engine::pages::paging::{Division, divided};
use crate::engine::replication::{served, snapshot};
use crate::engine::{Engine, Feed, history};

/// To be counted up when the same feed gives other documents.
const FORM: &str = "towpath tree 1";

/// A feed whose documents are in the tree, except for those at which readers begin.
pub(super) struct Staged {
    pub(super) feed: Arc<Feed>,
    pub(super) before: Exported,
    pub(super) extent: Extent,
    made: Made,
}

impl Staged {
    /// How many bytes it holds.
    pub(super) fn bytes(&self) -> usize {
        self.made.pointers.iter().map(|document| document.body.len()).sum()
    }

    /// Whether its log went on since it was exported last.
    pub(super) fn has_moved(&self) -> bool {
        self.before.done.as_ref().is_none_or(|done| done.seq != self.extent.seq)
    }
}

/// A document that is made when its turn comes.
enum Ask {
    Archive(String),
    Page(u64),
    Past(Syntax, history::Which),
    SnapshotPage(u64, u64),
    Snapshot(u64),
}

/// Up to which sealed page a tree's readers may have got.
struct Reached {
    /// All pages up to here are there, with their links to the next.
    surely: u64,
    /// An export that was killed may have put those up to here, so that readers get there.
    maybe: u64,
}

impl Reached {
    fn of(before: &Exported) -> Self {
        let sealed = |extent: &Option<Extent>| extent.as_ref().map_or(0, |extent| extent.sealed);
        let surely = sealed(&before.done);
        Self { surely, maybe: surely.max(sealed(&before.begun)) }
    }

    /// Whether a reader may be here, where the document that comes after is not there: that one has to be put first,
    /// and so on backwards. All others can be put in any order.
    fn is_open(&self, number: u64) -> bool {
        (self.surely..=self.maybe).contains(&number)
    }
}

/// Where a feed stands, from a few records.
pub(super) struct Standing {
    settings: String,
    seq: u64,
    chain: chains::Progress,
    cleanup: Cleanup,
    pub(super) snapshots: Vec<snapshot::Snapshot>,
}

impl Standing {
    async fn of(engine: &Engine, feed: &Feed) -> Result<Self, StoreError> {
        Ok(Self {
            settings: settings(engine, &feed.config),
            seq: engine.store.head(feed.id()).await?.seq,
            chain: chains::progress(engine, feed).await?,
            cleanup: cleanup(engine, feed).await?,
            snapshots: snapshot::list(engine, feed).await?,
        })
    }

    fn is(&self, done: &Extent) -> bool {
        let snapshots = self.snapshots.iter().map(|one| (one.id, one.pages));
        self.settings == done.settings
            && self.seq == done.seq
            && self.chain.snapshots == done.archives
            && (self.cleanup.first_page, self.cleanup.gone_below) == (done.first_page, done.gone_below)
            && snapshots.eq(done.snapshots.iter().copied())
    }
}

/// What a feed's documents depend on beside its log.
fn settings(engine: &Engine, config: &FeedConfig) -> String {
    let grace = config.retention.map(|retention| retention.grace);
    let all = format!(
        "{FORM}\n{}\n{}\n{:?}\n{:?}\n{:?}\n{}\n{grace:?}",
        env!("CARGO_PKG_VERSION"),
        engine.base_url,
        config.title(),
        config.lang,
        config.ttl,
        config.complete,
    );
    hex::encode(&Sha256::digest(all)[..12])
}

impl Tree {
    /// Puts what is new of a feed, except for the documents at which readers begin. `None` where nothing is.
    pub(super) async fn stage(&self, feed: Arc<Feed>) -> Result<Option<Staged>, ExportError> {
        let store = self.engine.store.as_ref();
        let before = self.states.load(store, feed.id()).await?;
        let standing = Standing::of(&self.engine, &feed).await?;
        // Another node may be about to tell of its last changes, or to begin its chain: nothing moves when it does.
        let is_to_begin = standing.chain.snapshots == 0 && feed.config.source.is_none();
        if standing.chain.minted_seq < standing.seq || is_to_begin {
            self.late.lock().push(feed.id().clone());
        }
        if before.begun.is_none() && before.done.as_ref().is_some_and(|done| standing.is(done)) {
            return Ok(None);
        }
        // Made before it is looked up how much there is: so there is all that they lead to.
        let made = self.made(&feed, &standing).await?;
        let division = divided(&self.engine, &feed).await?;
        let open = division.open.map(|page| page_path(feed.id(), page.number));
        if made.newest_page.as_ref().map(|page| &page.path) != open.as_ref() {
            return Err(ExportError::Moved(feed.id().clone()));
        }
        let extent = self.extent(&feed, standing, &division, &made, &before).await?;
        let staged = Staged { feed, before, extent, made };
        self.begin(&staged).await?;
        self.put_past(&staged).await?;
        Ok(Some(staged))
    }

    /// Puts everything but the documents at which readers begin.
    async fn put_past(&self, staged: &Staged) -> Result<(), ExportError> {
        let Staged { feed, before, extent, made } = staged;
        let done = before.done.as_ref().filter(|done| done.settings == extent.settings);
        let (first, then) = self.asks(staged, done).await?;
        let puts = first.into_iter().map(|ask| self.ask(feed, ask));
        together(puts).await?;
        // What was made of the last sealed page names the next where that was sealed meanwhile.
        if divided(&self.engine, feed).await?.last.map_or(0, |page| page.number) != extent.sealed {
            return Err(ExportError::Moved(feed.id().clone()));
        }
        let is_there = before.begun.is_none() && done.is_some_and(|done| done.newest == extent.newest);
        if let (Some(page), false) = (&made.newest_page, is_there) {
            self.put(page).await?;
        }
        for ask in then {
            self.ask(feed, ask).await?;
        }
        Ok(())
    }

    /// Puts the documents at which readers begin, as far as they are others than before.
    pub(super) fn point<'a>(&'a self, staged: &'a Staged) -> BoxFuture<'a, Result<(), ExportError>> {
        async move {
            let Exported { done, begun, .. } = &staged.before;
            let known = done.as_ref().filter(|_| begun.is_none()).map(|done| &done.pointers);
            for document in &staged.made.pointers {
                let is_there = known.and_then(|known| known.get(&document.path));
                match is_there == staged.extent.pointers.get(&document.path) {
                    true => self.count_unchanged(1),
                    false => self.put(document).await?,
                }
            }
            Ok(())
        }
        .boxed()
    }

    /// Removes what nothing leads to any more.
    pub(super) fn tidy<'a>(&'a self, staged: &'a Staged) -> BoxFuture<'a, Result<(), ExportError>> {
        async move {
            let (id, new) = (staged.feed.id(), &staged.extent);
            for old in [&staged.before.begun, &staged.before.done].into_iter().flatten() {
                let pointers = old.pointers.keys().filter(|path| !new.pointers.contains_key(*path)).cloned();
                for path in pointers.chain(superfluous(id, old, new)) {
                    self.remove(&path).await?;
                }
            }
            Ok(())
        }
        .boxed()
    }

    /// Removes all that is or may be there of a feed.
    pub(super) async fn drop_feed(&self, id: &FeedId, exported: &Exported) -> Result<(), ExportError> {
        let nothing = Extent::default();
        for old in [&exported.begun, &exported.done].into_iter().flatten() {
            for path in old.pointers.keys().rev() {
                self.remove(path).await?;
            }
            for path in superfluous(id, old, &nothing) {
                self.remove(&path).await?;
            }
            for number in old.gone_below.max(1)..=old.sealed + 1 {
                self.remove(&page_path(id, number)).await?;
                for syntax in Syntax::ALL {
                    self.remove(&past_path(id, syntax, &number.to_string())).await?;
                }
            }
        }
        for one in chains::snapshots(&self.engine, id.as_str(), 0).await? {
            self.remove(chains::path(&one.url)).await?;
        }
        Ok(())
    }

    async fn extent(
        &self,
        feed: &Feed,
        standing: Standing,
        division: &Division,
        made: &Made,
        before: &Exported,
    ) -> Result<Extent, ExportError> {
        let Standing { settings, seq, cleanup, snapshots, .. } = standing;
        let done = before.done.as_ref();
        let of_newest = made.pointers.iter().filter_map(window);
        let of_last = division.last.filter(|_| !feed.config.complete).map(|page| (page.first, page.last));
        let windows: BTreeSet<Stretch> = of_newest.chain(of_last).collect();
        // Whoever read a document just before the last export may still ask for what it named.
        let past = done.map(|done| done.windows.clone()).unwrap_or_default();
        let archives = chains::progress(&self.engine, feed).await?.snapshots;
        Ok(Extent {
            settings,
            seq,
            archives,
            complete: feed.config.complete,
            first_page: cleanup.first_page,
            gone_below: cleanup.gone_below,
            sealed: division.last.map_or(0, |page| page.number),
            newest: made.newest_page.as_ref().map(TreeDocument::fingerprint).unwrap_or_default(),
            snapshots: snapshots.iter().map(|one| (one.id, one.pages)).collect(),
            past_windows: past.into_iter().filter(|window| !windows.contains(window)).collect(),
            windows: windows.into_iter().collect(),
            pointers: made
                .pointers
                .iter()
                .map(|document| (document.path.clone(), document.fingerprint()))
                .collect(),
        })
    }

    /// What is to be put in any order, and then what in just this.
    async fn asks(
        &self,
        staged: &Staged,
        done: Option<&Extent>,
    ) -> Result<(Vec<Ask>, Vec<Ask>), ExportError> {
        let Staged { feed, extent: new, .. } = staged;
        let (mut first, mut then) = (Vec::new(), Vec::new());
        let archived = done.map_or(0, |done| done.archives);
        for one in chains::snapshots(&self.engine, feed.id().as_str(), archived).await? {
            first.push(Ask::Archive(chains::path(&one.url).to_owned()));
        }
        let low = new.gone_below.max(1);
        let last = done.map_or(0, |done| done.sealed);
        let reached = Reached::of(&staged.before);
        for number in (low.max(last + 1)..=new.sealed).rev() {
            let at = if reached.is_open(number.saturating_sub(1)) { &mut then } else { &mut first };
            at.push(Ask::Page(number));
        }
        // Pages that lost their link to the one before.
        if done.is_some_and(|done| done.first_page != new.first_page) {
            then.extend((low..=new.first_page.min(last)).map(Ask::Page));
        }
        if !new.complete {
            // The last one did not name the next.
            let from = if new.sealed > last { low.max(last) } else { low.max(last + 1) };
            for number in (from..=new.sealed).rev() {
                let at = if reached.is_open(number) { &mut then } else { &mut first };
                at.extend(past(history::Which::Page(number)));
            }
            let known = done.map_or(&[][..], |done| &done.windows);
            let windows = new.windows.iter().filter(|window| !known.contains(window));
            first.extend(windows.flat_map(|(first, last)| past(history::Which::Window(*first, *last))));
        }
        for (id, pages) in &new.snapshots {
            if done.is_none_or(|done| !done.snapshots.contains(&(*id, *pages))) {
                first.extend((0..*pages).map(|number| Ask::SnapshotPage(*id, number)));
                then.push(Ask::Snapshot(*id));
            }
        }
        Ok((first, then))
    }

    /// Makes a document and puts it.
    fn ask<'a>(&'a self, feed: &'a Arc<Feed>, ask: Ask) -> BoxFuture<'a, Result<(), ExportError>> {
        async move {
            let (engine, moved) = (&self.engine, || ExportError::Moved(feed.id().clone()));
            let (path, document) = match ask {
                Ask::Archive(path) => {
                    let document =
                        diffdelta::document(engine, &path, &["archive", feed.id().as_str(), ""]).await?;
                    (path, document.ok_or_else(moved)?)
                }
                Ask::Page(number) => {
                    let which = served::Which::Number(number);
                    match served::page(engine, feed, which, false).await? {
                        served::Found::Page(document) => (page_path(feed.id(), number), document),
                        _ => return Err(moved()),
                    }
                }
                Ask::Past(syntax, which) => match history::document(engine, feed, syntax, which).await? {
                    history::Found::Document(document) => (history::path(feed, syntax, which), document),
                    _ => return Err(moved()),
                },
                Ask::SnapshotPage(id, number) => match snapshot::page(engine, feed, id, number, false).await?
                {
                    served::Found::Page(document) => (snapshot_page_path(feed.id(), id, number), document),
                    _ => return Err(moved()),
                },
                Ask::Snapshot(id) => return self.put(&self.snapshot(feed, id).await?).await,
            };
            self.put(&TreeDocument::new(engine, path, &document)).await
        }
        .boxed()
    }
}

fn past(which: history::Which) -> impl Iterator<Item = Ask> {
    Syntax::ALL.into_iter().map(move |syntax| Ask::Past(syntax, which))
}

/// The stretch that a document of Feed History names as its own for ever.
fn window(document: &TreeDocument) -> Option<Stretch> {
    let links = link::from_headers(&document.headers, None);
    let (_, name) = link::target(&links, THIS)?.rsplit_once('/')?;
    let (first, last) = name.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}
