//! Rewrites the configuration reference and the list of the keys' versions: `cargo xtask config-reference`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::write(package.join("data/since.toml"), towpath_config::complete_since())?;
    std::fs::write(package.join("../../docs/configuration.md"), towpath_config::reference())
}
