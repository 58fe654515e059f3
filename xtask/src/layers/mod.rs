//! The check of the layers: no module imports one above it, and no modules import each other in a cycle.

pub(crate) mod imports;

use std::collections::{BTreeMap, BTreeSet};

use crate::run::root;
use imports::{Import, Modules};

/// Layers of the program, from the lowest to the highest. Modules of one layer do not import each other.
const PROGRAM: &[&[&str]] = &[
    &["blocking", "plural", "private_files", "spans", "stop", "store_error", "wall_clock"],
    &["document"],
    &["engine"],
    &["protocols"],
    &["source", "sink", "export"],
    &["server", "alerts"],
    &["cli"],
];

/// Parts of each protocol in `towpath-proto`, as layers: `wire` is below the others, which do not import each other.
const PARTS: &[&[&str]] = &[&["wire"], &["publish", "follow", "check"]];

/// Folders of `towpath-proto` that have these parts.
const PROTOCOLS: [&str; 5] = ["diffdelta", "history", "replication", "smart", "sup"];

/// Checks the layers of the program, and the parts of the protocols.
pub(crate) fn check() -> Result<(), String> {
    let program = Modules::read(&root().join("crates/towpath/src"))?;
    let mut faults = upward(&program.imports(), "", PROGRAM);
    faults.extend(unlayered(&program));
    faults.extend(cycles(&program.imports()));
    let proto = Modules::read(&root().join("crates/towpath-proto/src"))?;
    for protocol in PROTOCOLS {
        faults.extend(upward(&proto.imports(), protocol, PARTS));
    }
    if faults.is_empty() {
        println!("no module imports one above it, and no modules import each other in a cycle");
        return Ok(());
    }
    Err(format!("the layers are broken:\n{}", faults.join("\n")))
}

/// Finds imports from a layer to a higher one, or to a neighbour in the same layer.
fn upward(imports: &BTreeSet<Import>, folder: &str, layers: &[&[&str]]) -> Vec<String> {
    let level = |module: &str| {
        let inside =
            if folder.is_empty() { module } else { module.strip_prefix(folder)?.strip_prefix("::")? };
        let first = inside.split("::").next()?;
        let level = layers.iter().position(|layer| layer.contains(&first))?;
        Some((level, first.to_owned()))
    };
    let fault = |(from, to): &Import| {
        let ((low, part), (high, other)) = (level(from)?, level(to)?);
        // Neighbours count as well: two of them that import each other are one module.
        let what = match high.cmp(&low) {
            std::cmp::Ordering::Greater => "is above it",
            std::cmp::Ordering::Equal if part != other => "is beside it",
            _ => return None,
        };
        Some(format!("{from} imports {to}, which {what}"))
    };
    imports.iter().filter_map(fault).collect()
}

/// Finds modules at the top of the program that have no layer.
fn unlayered(modules: &Modules) -> Vec<String> {
    let tops: BTreeSet<&str> = modules
        .paths()
        .filter_map(|module| module.split("::").next())
        .filter(|top| !top.is_empty())
        .collect();
    let is_known = |top: &&str| PROGRAM.iter().any(|layer| layer.contains(top));
    tops.into_iter().filter(|top| !is_known(top)).map(|top| format!("{top} has no layer")).collect()
}

/// Finds the cycles: groups of modules that import each other, each described with its imports.
fn cycles(imports: &BTreeSet<Import>) -> Vec<String> {
    let mut to: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, target) in imports {
        to.entry(from).or_default().push(target);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        to.keys().map(|module| (*module, reach(module, &to))).collect();
    let reaches = |from: &str, target: &str| reached.get(from).is_some_and(|all| all.contains(target));
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut faults = Vec::new();
    for module in to.keys() {
        if seen.contains(module) || !reaches(module, module) {
            continue;
        }
        let group: BTreeSet<&str> =
            to.keys().copied().filter(|other| reaches(module, other) && reaches(other, module)).collect();
        let within =
            |(from, target): &&Import| group.contains(from.as_str()) && group.contains(target.as_str());
        let ties: Vec<String> =
            imports.iter().filter(within).map(|(from, target)| format!("  {from} -> {target}")).collect();
        faults.push(format!("{} modules import each other:\n{}", group.len(), ties.join("\n")));
        seen.extend(group);
    }
    faults
}

/// Returns every module that can be reached from one over imports.
fn reach<'a>(module: &str, imports: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut all = BTreeSet::new();
    let mut open: Vec<&str> = imports.get(module).cloned().unwrap_or_default();
    while let Some(next) = open.pop() {
        if all.insert(next) {
            open.extend(imports.get(next).into_iter().flatten());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(pairs: &[(&str, &str)]) -> BTreeSet<Import> {
        pairs
            .iter()
            .map(|(from, to): &(&str, &str)| -> Import { ((*from).to_owned(), (*to).to_owned()) })
            .collect()
    }

    #[test]
    fn an_import_of_a_higher_layer_is_a_fault() {
        let all = imports(&[
            ("cli::serve", "server"),
            ("engine::feed", "server::route"),
            ("source::poll", "export"),
            ("engine::feed", "engine::roles"),
        ]);
        assert_eq!(
            upward(&all, "", PROGRAM),
            [
                "engine::feed imports server::route, which is above it",
                "source::poll imports export, which is beside it",
            ]
        );
    }

    #[test]
    fn the_parts_of_a_protocol_import_only_wire() {
        let all = imports(&[
            ("sup::publish", "sup::wire::id"),
            ("sup::wire", "sup::check"),
            ("sup::follow", "sup::publish"),
            ("sup::follow", "smart::publish"),
            ("sup", "sup::check"),
        ]);
        assert_eq!(
            upward(&all, "sup", PARTS),
            [
                "sup::follow imports sup::publish, which is beside it",
                "sup::wire imports sup::check, which is above it"
            ]
        );
    }

    #[test]
    fn a_cycle_is_shown_with_its_imports() {
        let all = imports(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("x", "a")]);
        assert_eq!(cycles(&all), ["3 modules import each other:\n  a -> b\n  b -> c\n  c -> a"]);
    }

    #[test]
    fn a_module_without_a_layer_is_a_fault() {
        let modules = Modules::of([("", ""), ("engine", ""), ("engine::feed", ""), ("misc", "")]);
        assert_eq!(unlayered(&modules), ["misc has no layer"]);
    }
}
