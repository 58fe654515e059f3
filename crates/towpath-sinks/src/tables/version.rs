//! Version of the tables: older ones are migrated step by step, newer ones refused.

/// Version of the tables that this program writes.
pub const VERSION: i64 = 1;

/// Versions that this program cannot use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VersionError {
    /// A newer program wrote the tables.
    #[error("version {0}, and this program knows {known}", known = VERSION)]
    Newer(i64),
    /// No program of ours has written this version.
    #[error("version {0}, which no towpath has")]
    Unknown(i64),
}

/// Returns the steps that lead from the version of the tables to `known`. The step at index i leads from version i + 1.
pub(crate) fn steps_from<T>(found: i64, known: i64, steps: &[T]) -> Result<&[T], VersionError> {
    if found > known {
        return Err(VersionError::Newer(found));
    }
    let done = usize::try_from(found - 1).map_err(|_| VersionError::Unknown(found))?;
    steps.get(done..).ok_or(VersionError::Unknown(found))
}

/// Fails to compile if a database has no step to [`VERSION`].
pub(crate) const fn assert_complete(steps: usize) {
    assert!(steps as i64 + 1 == VERSION, "each version after the first needs a migration to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_lead_from_the_version_that_is_there() {
        let steps = ["1 to 2", "2 to 3"];
        assert_eq!(steps_from(1, 3, &steps), Ok(&steps[..]));
        assert_eq!(steps_from(2, 3, &steps), Ok(&steps[1..]));
        assert_eq!(steps_from(3, 3, &steps), Ok(&[][..]));
        assert_eq!(steps_from(4, 3, &steps), Err(VersionError::Newer(4)));
        for unknown in [0, -1, i64::MIN + 1] {
            assert_eq!(steps_from(unknown, 3, &steps), Err(VersionError::Unknown(unknown)));
        }
    }
}
