//! A node: the program's engine, protocols, background tasks and server, on a simulated disk and network.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use towpath::cli::Background;
use towpath::config::Config;
use towpath::engine::Engine;
use towpath::protocols;
use towpath::server::StreamServer;
use towpath_client::{FetchOptions, Fetcher, PrivateFetches};
use towpath_proto::change::Change;
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{ReadLimit, Store};

use crate::bug::Bug;
use crate::disk::{Disk, Remains};
use crate::network::{Address, Server, SimulatedNetwork};
use crate::store::{SimulatedStore, block_on};
use crate::world::World;
use crate::{system, trace};

/// A node, which is on or off.
pub struct Node {
    /// Host name.
    pub host: String,
    config: String,
    scratch: PathBuf,
    /// Number of the disk's folder.
    runs: u32,
    disk: Arc<Disk>,
    running: Option<Running>,
    world: Arc<World>,
}

struct Running {
    store: Arc<SimulatedStore>,
    is_off: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    _engine: Arc<Engine>,
}

/// Way in which a node ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed; the kernel writes what it has.
    Kill,
    /// The machine loses power.
    PowerLoss,
}

impl Node {
    /// Creates a node that is off, with an empty disk.
    pub fn new(world: &Arc<World>, host: &str, config: &str, scratch: &Path) -> Result<Self, String> {
        let disk = Disk::mount(&scratch.join(format!("{host}-0"))).map_err(|e| e.to_string())?;
        Ok(Self {
            host: host.to_owned(),
            config: config.to_owned(),
            scratch: scratch.to_owned(),
            runs: 0,
            disk,
            running: None,
            world: world.clone(),
        })
    }

    /// Returns true while it is on.
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the store of a node that is on.
    pub fn store(&self) -> Option<&Arc<SimulatedStore>> {
        self.running.as_ref().map(|running| &running.store)
    }

    /// Leaves so many bytes of its disk free; `None` for more than it needs.
    pub fn set_free(&self, free: Option<u64>) {
        self.disk.set_free(free, self.world.has(Bug::IgnoreFullDisk));
    }

    /// Starts the node on its disk.
    pub async fn start(&mut self) -> Result<(), String> {
        trace!("{} starts", self.host);
        let store = SimulatedStore::open(self.disk.clone(), self.world.clone());
        let store = store.map_err(|e| format!("{} does not start: {e}", self.host))?;
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:1\"\nbase_url = \"http://{}\"\ntokens = [\"simulation-token-0123456789\"]\n{}",
            self.host, self.config
        );
        let config = Config::parse(&config, Path::new("simulation.toml")).map_err(|e| e.to_string())?;
        let (stop, stopped) = watch::channel(false);
        let is_off = watch::Sender::new(false);
        let engine = protocols::start(config, store.clone()).await.map_err(|e| e.to_string())?;
        let fetcher = Arc::new(fetcher_until(&self.world, &self.host, Some(is_off.subscribe()))?);
        let background = Background::of(&engine, &fetcher, &stopped).await.map_err(|e| e.to_string())?;
        tokio::spawn(background.ended());
        let server = Server::Node(StreamServer::new(engine.clone(), stopped));
        let address = Address { server, is_off: is_off.subscribe() };
        self.world.nodes.lock().insert(self.host.clone(), address);
        self.running = Some(Running { store, is_off, stop, _engine: engine });
        Ok(())
    }

    /// Ends the node at this moment. Its disk is what the crash leaves.
    pub async fn crash(&mut self, crash: Crash) -> Result<(), String> {
        let Some(Running { store, is_off, stop, _engine: engine }) = self.running.take() else {
            return Ok(());
        };
        trace!("{} ends: {crash:?}", self.host);
        self.world.nodes.lock().remove(&self.host);
        self.runs += 1;
        let world = self.world.clone();
        let mut remains = |written: u64| {
            let (remains, name) = match world.below(6) {
                0..3 => (Remains::Short(world.below(written + 1)), "writes cut off"),
                3 | 4 => (Remains::Torn(world.below(written + 1)), "torn writes"),
                _ => (Remains::Hole(world.below(written)), "writes with holes"),
            };
            trace!("of {written} bytes that were not synced is left: {remains:?}");
            trace::count(name);
            remains
        };
        let to = self.scratch.join(format!("{}-{}", self.host, self.runs));
        let new = match crash {
            Crash::Kill => self.disk.crash(&to, None),
            Crash::PowerLoss => self.disk.crash(&to, Some(&mut remains)),
        };
        let new = new.map_err(|e| e.to_string())?;
        let old = std::mem::replace(&mut self.disk, new);
        store.turn_off();
        is_off.send_replace(true);
        // What is left of the process can reach neither disk nor network; this ends it.
        stop.send_replace(true);
        drop(engine);
        drop(old);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            store.remove();
        });
        Ok(())
    }

    /// Flips a bit in a copy of the disk, and opens it as a store. Returns the place of the bit, and the store if it opens
    /// and finds no damage.
    pub async fn flip(&self) -> Result<(String, Option<EmbeddedStore>), String> {
        let folder = self.scratch.join("flipped");
        drop(std::fs::remove_dir_all(&folder));
        // Choices of its own: how many files there are to choose from depends on the engine's threads.
        let mut choices = fastrand::Rng::with_seed(self.world.below(u64::MAX));
        let place = self.disk.flip(&folder, &mut |end| choices.u64(..end)).map_err(|e| e.to_string())?;
        let Ok(store) = system::run_apart(|| EmbeddedStore::open(&folder, EmbeddedOptions::default())) else {
            return Ok((place, None));
        };
        let verified = block_on(store.verify());
        let is_sound = verified.is_ok_and(|report| report.is_sound());
        Ok((place, is_sound.then_some(store)))
    }

    /// Reads the whole log of a feed.
    pub async fn log(&self, feed: &str) -> Result<Vec<Change>, String> {
        let store = self.store().ok_or("the node is off")?.whole();
        read_log(&store, feed).await
    }
}

/// Reads the whole log of a feed.
pub async fn read_log(store: &EmbeddedStore, feed: &str) -> Result<Vec<Change>, String> {
    let feed = FeedId::new(feed).map_err(|e| e.to_string())?;
    let mut log: Vec<Change> = Vec::new();
    loop {
        let after = log.last().map_or(0, |change| change.seq);
        let page = store.read(&feed, after, ReadLimit::items(1000)).await.map_err(|e| e.to_string())?;
        if page.is_empty() {
            return Ok(log);
        }
        log.extend(page);
    }
}

/// Creates the fetcher of a host.
pub fn fetcher(world: &Arc<World>, host: &str) -> Result<Fetcher, String> {
    fetcher_until(world, host, None)
}

/// Creates the fetcher of a host whose process may be gone at some time.
fn fetcher_until(
    world: &Arc<World>,
    host: &str,
    is_off: Option<watch::Receiver<bool>>,
) -> Result<Fetcher, String> {
    // Addresses are names of the simulation: there is nothing to resolve.
    let options = FetchOptions::default().with_private(PrivateFetches::All);
    let fetcher = Fetcher::new(options).map_err(|e| e.to_string())?;
    Ok(fetcher.with_transport(SimulatedNetwork::new(world.clone(), host, is_off)))
}
