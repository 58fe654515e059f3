//! Values that protocols keep with an engine or a feed, found by their type.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

/// An append-only list of values, at most one of each type.
///
/// Reading takes no lock. A value is never replaced or removed, so references to it live as long as the list. The
/// list is as short as there are protocols; a walk along it is cheaper than hashing the type.
#[derive(Default)]
pub struct Extensions {
    first: OnceLock<Box<Node>>,
}

/// A list's node with its value. The unsized last field saves a second allocation for each value.
struct Node<T: ?Sized = dyn Any + Send + Sync> {
    next: OnceLock<Box<Node>>,
    value: T,
}

impl Extensions {
    /// Returns the value of a type, if there is one.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        let mut place = &self.first;
        while let Some(node) = place.get() {
            let value: &(dyn Any + Send + Sync) = &node.value;
            if let Some(value) = value.downcast_ref() {
                return Some(value);
            }
            place = &node.next;
        }
        None
    }

    /// Returns the value of a type, made by `make` if there is none.
    ///
    /// `make` may use the list itself. Two threads may both make a value; the first one stored wins.
    pub fn get_or_insert_with<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        // Made before any place is taken: a `OnceLock` that is initialised from within its own initialiser deadlocks.
        let mut new: Option<Box<Node>> = Some(Box::new(Node { next: OnceLock::new(), value: make() }));
        let mut place = &self.first;
        loop {
            // Another thread may have taken this place. Its value is then examined like any other.
            let node = place.get_or_init(|| new.take().unwrap_or_else(Node::empty));
            let value: &(dyn Any + Send + Sync) = &node.value;
            if let Some(value) = value.downcast_ref() {
                return value;
            }
            place = &node.next;
        }
    }
}

impl Node {
    /// A node of no value. Never stored: a list ends the walk at the value that was just put in.
    fn empty() -> Box<Self> {
        Box::new(Node { next: OnceLock::new(), value: () })
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Extensions")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let extensions = Extensions::default();
        assert_eq!(extensions.get::<u8>(), None);
        assert_eq!(*extensions.get_or_insert_with(|| 1_u8), 1);
        assert_eq!(*extensions.get_or_insert_with(|| "text".to_owned()), "text");
        assert_eq!(*extensions.get_or_insert_with(|| 2_u8), 1, "the first value stays");
        assert_eq!(extensions.get::<String>().map(String::as_str), Some("text"));
    }

    #[test]
    fn making_a_value_may_use_the_list() {
        let extensions = Extensions::default();
        let sum = extensions.get_or_insert_with(|| u64::from(*extensions.get_or_insert_with(|| 3_u8)) + 1);
        assert_eq!(*sum, 4);
        assert_eq!(extensions.get::<u8>(), Some(&3));
    }

    #[test]
    fn threads_agree_on_one_value() {
        let extensions = Extensions::default();
        let made = AtomicUsize::new(0);
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let get = || *extensions.get_or_insert_with(|| made.fetch_add(1, Ordering::SeqCst));
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(get)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|value| *value == seen[0]));
    }
}
