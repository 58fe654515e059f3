//! ActivityStreams 1.0 collections and objects (JSON).
