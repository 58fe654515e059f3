//! Runs the sinks of the configuration, each under its role, and follows their changes at a reload.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use towpath_client::Fetcher;

use super::changes::AppendCollector;
use super::run::SinkTask;
use crate::engine::Engine;
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::roles::{self, Roles};
use crate::engine::sinks::SinkEntry;
use crate::stop::{Stop, stopped};

/// Runs all sinks until `stop` is set, and returns when they have ended.
pub(crate) async fn run(engine: Arc<Engine>, fetcher: Arc<Fetcher>, roles: Arc<Roles>, stop: Stop) {
    let mut replacements = engine.sinks.replacements();
    let mut supervisor = Supervisor {
        engine,
        fetcher,
        roles,
        collector: AppendCollector::default(),
        running: HashMap::new(),
        ending: HashMap::new(),
    };
    loop {
        // Before the sinks are read: a reload in between is seen as a change.
        replacements.borrow_and_update();
        supervisor.adjust();
        tokio::select! {
            _ = replacements.changed() => {}
            () = stopped(&stop) => break,
        }
    }
    supervisor.end().await;
}

struct Supervisor {
    engine: Arc<Engine>,
    fetcher: Arc<Fetcher>,
    roles: Arc<Roles>,
    collector: AppendCollector,
    /// Sinks that run, by name.
    running: HashMap<String, RunningSink>,
    /// Tasks of earlier sinks that finish their last batch, by name.
    ending: HashMap<String, JoinHandle<()>>,
}

/// A sink with its task.
struct RunningSink {
    sink: Arc<SinkEntry>,
    changes: Arc<ChangedFeeds>,
    end: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Ends the tasks of sinks that changed or left the configuration, and begins those of new ones.
    fn adjust(&mut self) {
        let wanted = self.engine.sinks.all();
        self.ending.retain(|_, task| !task.is_finished());
        let is_kept = |running: &RunningSink| wanted.iter().any(|sink| Arc::ptr_eq(sink, &running.sink));
        // By identity: a reload keeps the entry of a sink whose settings are the same.
        let ended: Vec<_> = self.running.extract_if(|_, running| !is_kept(running)).collect();
        for (name, running) in ended {
            running.end.send_replace(true);
            // The counters of a sink that only changed go on.
            let is_removed = !wanted.iter().any(|sink| sink.config.name == name);
            let finished = async move {
                // A panic was logged where the task is restarted.
                let _ = running.task.await;
                if is_removed {
                    running.sink.forget_metrics();
                }
            };
            self.ending.insert(name, tokio::spawn(finished));
        }
        let new = wanted.iter().filter(|sink| !self.running.contains_key(&sink.config.name));
        let new: Vec<_> = new.map(|sink| (sink.clone(), Arc::new(ChangedFeeds::default()))).collect();
        let kept = self.running.values().map(|running| (running.sink.clone(), running.changes.clone()));
        // Before the tasks begin: an append after they listed the feeds must be noted.
        self.collector.set(&self.engine, kept.chain(new.iter().cloned()));
        for (sink, changes) in new {
            self.begin(sink, changes);
        }
    }

    fn begin(&mut self, sink: Arc<SinkEntry>, changes: Arc<ChangedFeeds>) {
        let (end, stop) = watch::channel(false);
        let task = SinkTask {
            engine: self.engine.clone(),
            sink: sink.clone(),
            fetcher: self.fetcher.clone(),
            changes: changes.clone(),
        };
        // Two tasks of one name would deliver twice.
        let earlier = self.ending.remove(&sink.config.name);
        let roles = self.roles.clone();
        let run = async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            let role = task.role();
            let in_role = Box::new(move |lease, stop| task.clone().run(lease, stop).boxed());
            roles::run_to_the_end(roles, role, in_role, stop).await;
        };
        let name = sink.config.name.clone();
        let task = tokio::spawn(run.boxed());
        self.running.insert(name, RunningSink { sink, changes, end, task });
    }

    /// Ends all tasks.
    async fn end(self) {
        for running in self.running.values() {
            running.end.send_replace(true);
        }
        for task in self.running.into_values().map(|running| running.task).chain(self.ending.into_values()) {
            let _ = task.await;
        }
    }
}
