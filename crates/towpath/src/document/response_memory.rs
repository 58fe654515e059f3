//! Memory of response bodies that wait to be sent.
//!
//! A page that is made for one request lives until its client has read it. Clients that ask for large pages and do not
//! read them would hold a page each. So equal bodies are shared while they are in use, and their sum has a limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

/// Bodies below this many bytes are neither counted nor shared over HTTP/1.1.
// They fit into the socket's buffer, so they are gone as soon as they are written.
pub const MIN_BODY: usize = 16 << 10;

/// Bodies of responses that wait to be sent.
#[derive(Debug)]
pub struct ResponseMemory {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// Bodies in use by their checksum.
    in_use: Mutex<HashMap<u32, Weak<SharedBody>>>,
}

/// A body with its place in the memory, which it gives back when the last response that shares it is gone.
#[derive(Debug)]
struct SharedBody {
    bytes: Bytes,
    checksum: u32,
    memory: Arc<ResponseMemory>,
}

/// Reference to a shared body, as the owner of a response's bytes.
struct BodyOwner(Arc<SharedBody>);

impl AsRef<[u8]> for BodyOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl ResponseMemory {
    /// Creates an empty memory with a limit in bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.into(), used: AtomicUsize::new(0), in_use: Mutex::default() })
    }

    /// Replaces the limit. Bodies that are in use stay.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns true if the bodies in use reach the limit.
    pub fn is_exceeded(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }

    /// Returns true if a body of at least `min` bytes cannot be sent now: it would be another one, and the limit is
    /// reached.
    pub fn refuses(&self, body: &Bytes, min: usize) -> bool {
        body.len() >= min && self.is_exceeded() && self.find(body, crc32fast::hash(body)).is_none()
    }

    /// Counts a body until it is dropped everywhere. An equal body that is in use takes its place.
    pub fn hold(self: &Arc<Self>, body: Bytes) -> Bytes {
        self.hold_from(MIN_BODY, body)
    }

    /// Counts a body as [`Self::hold`] does if it has at least `min` bytes.
    pub fn hold_from(self: &Arc<Self>, min: usize, body: Bytes) -> Bytes {
        if body.len() < min {
            return body;
        }
        // A collision costs a comparison, or the sharing of two bodies; no attacker gains by it.
        let checksum = crc32fast::hash(&body);
        let shared = self.find(&body, checksum).unwrap_or_else(|| {
            self.used.fetch_add(body.len(), Ordering::Relaxed);
            let shared = Arc::new(SharedBody { bytes: body, checksum, memory: self.clone() });
            self.in_use.lock().insert(checksum, Arc::downgrade(&shared));
            shared
        });
        Bytes::from_owner(BodyOwner(shared))
    }

    fn find(&self, body: &Bytes, checksum: u32) -> Option<Arc<SharedBody>> {
        let shared = self.in_use.lock().get(&checksum)?.upgrade()?;
        // Outside of the lock: comparing megabytes takes a while. Mostly both are clones of one cached document.
        let is_clone = shared.bytes.as_ptr() == body.as_ptr() && shared.bytes.len() == body.len();
        (is_clone || shared.bytes == *body).then_some(shared)
    }
}

impl Drop for SharedBody {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        let mut in_use = self.memory.in_use.lock();
        // Another body with this checksum may have come since.
        if in_use.get(&self.checksum).is_some_and(|shared| shared.strong_count() == 0) {
            in_use.remove(&self.checksum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(byte: u8) -> Bytes {
        vec![byte; MIN_BODY].into()
    }

    #[test]
    fn equal_bodies_are_shared_and_counted_once() {
        let memory = ResponseMemory::new(2 * MIN_BODY);
        let first = memory.hold(body(1));
        let second = memory.hold(body(1));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(memory.used.load(Ordering::Relaxed), MIN_BODY);
        // A slice keeps the whole body alive, as hyper's half-written buffer does.
        let rest = second.slice(MIN_BODY - 1..);
        drop((first, second));
        assert_eq!(memory.used.load(Ordering::Relaxed), MIN_BODY);
        drop(rest);
        assert_eq!((memory.used.load(Ordering::Relaxed), memory.in_use.lock().len()), (0, 0));
    }

    #[test]
    fn another_body_beyond_the_limit_is_refused() {
        let memory = ResponseMemory::new(2 * MIN_BODY);
        assert!(!memory.refuses(&body(1), MIN_BODY));
        let held = [memory.hold(body(1)), memory.hold(body(2))];
        assert!(memory.refuses(&body(3), MIN_BODY));
        // Equal to one in use, or small: it takes no more memory.
        assert!(!memory.refuses(&body(1), MIN_BODY) && !memory.refuses(&Bytes::from_static(b"x"), MIN_BODY));
        memory.set_limit(3 * MIN_BODY);
        assert!(!memory.refuses(&body(3), MIN_BODY));
        memory.set_limit(2 * MIN_BODY);
        drop(held);
        assert!(!memory.refuses(&body(3), MIN_BODY));
    }
}
