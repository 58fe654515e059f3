//! Feed History: Atom with a past (draft-nottingham-atompub-feed-history-00, RFC 5005).
