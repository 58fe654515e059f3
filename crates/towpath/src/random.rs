//! Numbers that nobody can guess: keys of callbacks, secrets, challenges.

/// A random number from the source that TLS uses.
pub(crate) fn unguessable() -> u128 {
    let mut bytes = [0; 16];
    match rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes) {
        Ok(()) => u128::from_be_bytes(bytes),
        // A machine without randomness has no TLS either.
        Err(_) => fastrand::u128(..),
    }
}
