//! Health of the store, as `/healthz.json` shows it.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use towpath_store::StoreFailure;

/// The last known failure of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth(ArcSwapOption<StoreFailure>);

impl StoreHealth {
    pub(crate) fn failure(&self) -> Option<Arc<StoreFailure>> {
        self.0.load_full()
    }

    pub(crate) fn set(&self, failure: Option<Arc<StoreFailure>>) {
        self.0.store(failure);
    }
}
