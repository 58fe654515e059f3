//! Counts with their nouns, for people.

/// Returns a count with its noun: "1 feed", "2 feeds".
pub(crate) fn counted(count: impl TryInto<u64>, noun: &str) -> String {
    // Nothing that is counted here exceeds the type.
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", noun_for(count, noun))
}

/// Returns the form of a noun for a count.
pub(crate) fn noun_for(count: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if count == 1 => noun.to_owned(),
        Some(stem) if noun.ends_with("ry") => format!("{stem}ies"),
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_count() {
        let all = [(0_usize, "feed"), (1, "feed"), (2, "feed"), (1, "entry"), (3, "entry"), (3, "day")];
        let words = all.map(|(count, noun)| counted(count, noun));
        assert_eq!(words, ["0 feeds", "1 feed", "2 feeds", "1 entry", "3 entries", "3 days"]);
    }
}
