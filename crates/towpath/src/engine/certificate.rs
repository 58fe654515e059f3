//! End of the certificate that the server shows, for metrics, health and alerts.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;

/// End of the certificate in use; none where the server speaks plain HTTP.
#[derive(Debug)]
pub(crate) struct CertificateEnd(AtomicI64);

const NONE: i64 = i64::MIN;

impl Default for CertificateEnd {
    fn default() -> Self {
        Self(AtomicI64::new(NONE))
    }
}

impl CertificateEnd {
    pub(crate) fn get(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn set(&self, end: Option<Timestamp>) {
        self.0.store(end.map_or(NONE, Timestamp::as_second), Ordering::Relaxed);
    }
}
