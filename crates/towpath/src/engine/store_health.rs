//! Health of the store, as `/healthz.json` shows it.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use towpath_store::{StoreDamage, StoreFailure};

/// The last known failure of the store, and the damage that readers met.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    failure: ArcSwapOption<StoreFailure>,
    damage: ArcSwapOption<StoreDamage>,
}

impl StoreHealth {
    pub(crate) fn failure(&self) -> Option<Arc<StoreFailure>> {
        self.failure.load_full()
    }

    pub(crate) fn damage(&self) -> Option<Arc<StoreDamage>> {
        self.damage.load_full()
    }

    pub(crate) fn set(&self, failure: Option<Arc<StoreFailure>>, damage: Option<StoreDamage>) {
        self.failure.store(failure);
        self.damage.store(damage.map(Arc::new));
    }
}
