//! Limits of what a follower or a check reads.

use crate::format::DocumentLimits;

/// Size of the largest document, in bytes, unless configured: one with a content of 64 MiB in Base64, and more beside it.
pub(crate) const MAX_DOCUMENT: u64 = 128 << 20;

/// Limits of what a follower or a check reads from a publisher. Errors name the limit that a document exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Limits of reading a document.
    pub document: DocumentLimits,
    /// Largest document, in bytes after decoding. `None` means the protocol's default.
    pub max_document: Option<u64>,
    /// Largest entity of Data Replication, in bytes.
    pub max_entity: usize,
    /// Largest file with the content of an item, in bytes.
    pub max_file: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            document: DocumentLimits::default(),
            max_document: None,
            max_entity: 72 << 20,
            max_file: 6 << 30,
        }
    }
}

impl ReadLimits {
    /// Names of the limits, and the largest value of each.
    // Deeper documents would need a larger stack.
    pub const NAMES: [(&str, usize); 8] = [
        ("items", 100_000_000),
        ("depth", 256),
        ("members", 1_000_000),
        ("string_mib", 4096),
        ("memory_mib", 65_536),
        ("max_mib", 4096),
        ("entity_mib", 4096),
        ("file_mib", 1_048_576),
    ];

    /// Sets a limit by its name. Those whose names end in `_mib` are in MiB.
    ///
    /// # Errors
    ///
    /// A description of an unknown name, or of a value out of range.
    pub fn set(&mut self, name: &str, value: usize) -> Result<(), String> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        let Some((_, most)) = known.copied() else {
            let names = Self::NAMES.map(|(name, _)| name).join(", ");
            return Err(format!("{name:?} is no limit; expected one of {names}"));
        };
        if !(1..=most).contains(&value) {
            return Err(format!("{name} is not between 1 and {most}"));
        }
        let document = &mut self.document;
        match name {
            "items" => document.items = value,
            "depth" => document.depth = value,
            "members" => document.members = value,
            "string_mib" => document.string = value << 20,
            "memory_mib" => document.memory = value << 20,
            "max_mib" => self.max_document = Some((value as u64) << 20),
            "entity_mib" => self.max_entity = value << 20,
            _ => self.max_file = (value as u64) << 20,
        }
        Ok(())
    }

    /// Returns the size of the largest document, given the protocol's default.
    pub fn largest_document(&self, default: u64) -> u64 {
        self.max_document.unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_sets_its_limit() {
        let mut limits = ReadLimits::default();
        for (name, most) in ReadLimits::NAMES {
            let before = limits;
            limits.set(name, 7).unwrap();
            assert_ne!(limits, before, "{name}");
            assert!(limits.set(name, 0).is_err() && limits.set(name, most + 1).is_err());
        }
        assert_eq!((limits.document.string, limits.max_entity), (7 << 20, 7 << 20));
        assert_eq!(limits.largest_document(1), 7 << 20);
        assert!(limits.set("max_mib", usize::MAX).is_err());
        let unknown = limits.set("x", 1).unwrap_err();
        assert!(unknown.contains("memory_mib"), "{unknown}");
    }
}
