//! Limits of what is read from publishers, as arguments.

use clap::Args;
use towpath_client::ReadLimits;

/// Limits of what is read from publishers.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// Limit of what is read: items, depth, members, string_mib, memory_mib, max_mib (a document), entity_mib (an entity
    /// of Data Replication) or file_mib (a file of --large-content). Can be repeated
    #[arg(long = "limit", value_name = "NAME=NUMBER", value_parser = parse_limit)]
    limits: Vec<(String, usize)>,
}

impl LimitArgs {
    /// Returns the limits: the defaults, with those that were given.
    pub(super) fn limits(&self) -> ReadLimits {
        let mut limits = ReadLimits::default();
        for (name, value) in &self.limits {
            // Parsing has tested both.
            let _ = limits.set(name, *value);
        }
        limits
    }
}

fn parse_limit(text: &str) -> Result<(String, usize), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=NUMBER, such as items=1000000")?;
    let value = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    ReadLimits::default().set(name, value)?;
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_names_and_ranges() {
        let given = ["items=5", "max_mib=1", "items=7"].map(|text| parse_limit(text).unwrap());
        let limits = LimitArgs { limits: given.into() }.limits();
        assert_eq!((limits.document.items, limits.max_document), (7, Some(1 << 20)));
        for bad in ["items", "items=", "items=x", "items=0", "depth=257", "size=1"] {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }
}
