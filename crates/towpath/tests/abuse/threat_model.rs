//! The threat model names a test for each attack, and each test exists.

use std::path::{Path, PathBuf};

/// Returns the source files below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Returns the quoted names of a table's cell.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_line_of_the_threat_model_names_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let model = page.split("\n## ").find(|part| part.starts_with("Threat model")).unwrap();
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let texts: Vec<String> = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let is_test = |name: &str| {
        // A file of unit tests, a test binary, or a test.
        let file = if name.ends_with(".rs") { name.to_owned() } else { format!("tests/{name}.rs") };
        files.iter().any(|path| path.ends_with(&file))
            || texts.iter().any(|text| text.contains(&format!("fn {name}(")))
    };
    let rows: Vec<&str> =
        model.lines().filter(|line| line.starts_with("| ") && !line.contains("| test |")).collect();
    assert!(rows.len() > 40, "{} rows", rows.len());
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let named = names(cell);
        assert!(!named.is_empty(), "no test: {row}");
        for name in named {
            assert!(is_test(name), "there is no test {name}: {row}");
        }
    }
}
