//! Cryptographically random numbers: callback keys, secrets, challenges.

/// Returns a random number from the generator that TLS uses.
pub fn unguessable() -> u128 {
    let mut bytes = [0; 16];
    match rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes) {
        Ok(()) => u128::from_be_bytes(bytes),
        // Unreachable in practice: without system randomness no TLS handshake works either.
        Err(_) => fastrand::u128(..),
    }
}
