//! JSON over several lines, as far as a page has room for it.

use std::io::{self, Write};

use serde::Serialize;

/// Returns the beginning of a value's JSON over several lines, of at most so many bytes.
///
/// Deeply nested values of a few megabytes are gigabytes of white space in this form. So the writing ends at the limit.
pub(super) fn pretty(value: &impl Serialize, most: usize) -> String {
    let mut out = BoundedWriter { bytes: Vec::new(), most };
    // It fails at the limit, which is no error here.
    let _ = serde_json::to_writer_pretty(&mut out, value);
    match String::from_utf8(out.bytes) {
        Ok(text) => text,
        Err(cut) => {
            let end = cut.utf8_error().valid_up_to();
            let mut bytes = cut.into_bytes();
            bytes.truncate(end);
            String::from_utf8(bytes).unwrap_or_default()
        }
    }
}

/// Memory that takes no more than so many bytes.
struct BoundedWriter {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.most - self.bytes.len();
        if room == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let taken = bytes.len().min(room);
        self.bytes.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_limit_holds() {
        assert_eq!(pretty(&json!({"a": [1]}), 100), "{\n  \"a\": [\n    1\n  ]\n}");
        // Cut within a character.
        assert_eq!(pretty(&json!("ää"), 4), "\"ä");
        let mut deep: Value = vec![1; 100_000].into();
        for _ in 0..100 {
            deep = vec![deep].into();
        }
        // Whole, it would be 20 MB.
        assert_eq!(pretty(&deep, 1000).len(), 1000);
    }
}
