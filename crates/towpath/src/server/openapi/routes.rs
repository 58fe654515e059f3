//! Addresses of the server, from the table of operations: one that is not in the table is not answered.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::all;

/// An address with its methods.
struct Route {
    segments: Vec<&'static str>,
    /// Methods that it answers, as in `Allow`.
    methods: &'static str,
    /// Methods with OPTIONS.
    options: &'static str,
}

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let paths: BTreeSet<&str> = all().map(|operation| operation.path).collect();
    let mut routes: Vec<Route> = paths.into_iter().map(route).collect();
    // Words before parameters: /feeds/events is no feed.
    routes
        .sort_by_cached_key(|route| route.segments.iter().map(|part| is_parameter(part)).collect::<Vec<_>>());
    routes
});

fn route(path: &'static str) -> Route {
    let operations = all().filter(|operation| operation.path == path);
    let mut methods: BTreeSet<&str> =
        operations.flat_map(|operation| operation.verb.methods()).copied().collect();
    let join = |methods: &BTreeSet<&str>| -> &'static str {
        // Once for each address of the table.
        methods.iter().copied().collect::<Vec<_>>().join(", ").leak()
    };
    let allowed = join(&methods);
    methods.insert("OPTIONS");
    let segments = path.trim_start_matches('/').split('/').collect();
    Route { segments, methods: allowed, options: join(&methods) }
}

fn is_parameter(part: &str) -> bool {
    part.starts_with('{')
}

fn find(segments: &[&str]) -> Option<&'static Route> {
    let is_equal = |route: &&Route| {
        route.segments.len() == segments.len()
            && route.segments.iter().zip(segments).all(|(part, given)| is_parameter(part) || part == given)
    };
    ROUTES.iter().find(is_equal)
}

/// Returns the methods of an address, as in `Allow`; `None` if there is nothing at the address.
pub(in crate::server) fn methods(segments: &[&str]) -> Option<&'static str> {
    find(segments).map(|route| route.methods)
}

/// Returns the methods of an address with OPTIONS.
pub(in crate::server) fn methods_with_options(segments: &[&str]) -> Option<&'static str> {
    find(segments).map(|route| route.options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_before_parameters() {
        assert_eq!(methods(&[""]), Some("GET, HEAD"));
        assert_eq!(methods(&["feeds", "events"]), Some("GET"));
        assert_eq!(methods(&["feeds", "aa", "items", "x/y"]), Some("DELETE, GET, HEAD, PATCH, PUT"));
        assert_eq!(methods_with_options(&["feeds", "aa", "items"]), Some("GET, HEAD, OPTIONS, POST"));
        assert_eq!(methods(&["diff", "source", "head.json"]), Some("GET, HEAD"));
        assert_eq!(methods(&["feeds", "aa", "nonsense"]), None);
        assert_eq!(methods(&["feeds", "aa", "items", "x", "y"]), None);
    }
}
